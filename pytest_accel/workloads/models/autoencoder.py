"""The representative image-compression model: residual blocks on both sides of one bottleneck.

The PEARC'22 study describes it so and gives no sizes; those below are ours. It halves the image twice on its
way to the bottleneck, and twice comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

BLOCKS_PER_STAGE = 2
BOTTLENECK_CHANNELS = 16
WIDTHS = {
    "autoencoder": (64, 128, 256),
    "autoencoder-tiny": (8, 16, 32),  # of seconds on one CPU core
}


class Block(nn.Module):
    """Two convolutions, and the input added to what they make of it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.change = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, features: Tensor) -> Tensor:
        return self.activation(features + self.change(features))


class Autoencoder(nn.Module):
    """Images in, images out: (batch, channels, height, width), both sides divisible by four."""

    def __init__(self, widths: Sequence[int], *, channels: int) -> None:
        super().__init__()
        wide, narrow = list(widths), list(reversed(widths))
        encoder: list[nn.Module] = [nn.Conv2d(channels, wide[0], 3, padding=1), *_blocks(wide[0])]
        for before, after in pairwise(wide):
            encoder += [nn.Conv2d(before, after, 3, stride=2, padding=1), *_blocks(after)]
        decoder: list[nn.Module] = [nn.Conv2d(BOTTLENECK_CHANNELS, narrow[0], 1), *_blocks(narrow[0])]
        for before, after in pairwise(narrow):
            decoder += [nn.ConvTranspose2d(before, after, 2, stride=2), *_blocks(after)]
        self.encoder = nn.Sequential(*encoder)
        self.bottleneck = nn.Conv2d(wide[-1], BOTTLENECK_CHANNELS, 1)
        self.decoder = nn.Sequential(*decoder, nn.Conv2d(wide[0], channels, 3, padding=1))

    def forward(self, images: Tensor) -> Tensor:
        return self.decoder(self.bottleneck(self.encoder(images)))


def _blocks(channels: int) -> list[nn.Module]:
    return [Block(channels) for _ in range(BLOCKS_PER_STAGE)]


def build_autoencoder(name: str, *, channels: int = 1) -> Autoencoder:
    """Build it by its name in the zoo."""
    return Autoencoder(WIDTHS[name], channels=channels)
