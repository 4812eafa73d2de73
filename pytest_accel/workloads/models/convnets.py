"""Small convolutional networks of the studies: Olivia's WideResNet, and the PEARC'22 image-compression autoencoder."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

STEM_CHANNELS = 16
BLOCKS_PER_STAGE = 2
WIDE_RESNET_WIDTHS = {
    "wide_resnet": (160, 320, 640),
    "wide_resnet-tiny": (8, 16, 32),  # of seconds on one CPU core
}


class WideBlock(nn.Module):
    def __init__(self, channels_in: int, channels: int, dropout: float) -> None:
        super().__init__()
        self.straight = nn.Identity() if channels_in == channels else nn.Conv2d(channels_in, channels, 1)
        self.wide = nn.Sequential(
            *_convolution(channels_in, channels), nn.Dropout(dropout), *_convolution(channels, channels)
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.wide(images) + self.straight(images)


class WideResNet(nn.Module):
    def __init__(self, widths: Sequence[int], *, num_classes: int, channels: int, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, STEM_CHANNELS, 3, padding=1, bias=False)]
        before = STEM_CHANNELS
        for number, width in enumerate(widths):
            if number:
                layers.append(nn.MaxPool2d(2))
            for _ in range(BLOCKS_PER_STAGE):
                layers.append(WideBlock(before, width, dropout))
                before = width
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(before, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.pool(self.features(images)).flatten(1))


def _convolution(channels_in: int, channels: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels_in, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
    ]


def build_wide_resnet(
    name: str, *, num_classes: int = 100, channels: int = 3, dropout: float = 0.01
) -> WideResNet:
    return WideResNet(WIDE_RESNET_WIDTHS[name], num_classes=num_classes, channels=channels, dropout=dropout)


BOTTLENECK_CHANNELS = 16
AUTOENCODER_WIDTHS = {
    "autoencoder": (64, 128, 256),
    "autoencoder-tiny": (8, 16, 32),  # of seconds on one CPU core
}


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        convolutions = [*_convolution(channels, channels), *_convolution(channels, channels)]
        self.change = nn.Sequential(*convolutions[:-1])  # a ReLU follows the sum
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
    return [ResidualBlock(channels) for _ in range(BLOCKS_PER_STAGE)]


def build_autoencoder(name: str, *, channels: int = 1) -> Autoencoder:
    return Autoencoder(AUTOENCODER_WIDTHS[name], channels=channels)
