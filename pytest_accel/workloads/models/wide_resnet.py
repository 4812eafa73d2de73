"""The WideResNet of Olivia's guide: three stages of two wide blocks over 32 x 32 images.

It is not the WideResNet of the paper by that name: blocks end without an activation, stages are separated by
pooling, and the convolutions inside a block are followed by their normalisation.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

STEM_CHANNELS = 16
BLOCKS_PER_STAGE = 2
WIDTHS = {
    "wide_resnet": (160, 320, 640),
    "wide_resnet-tiny": (8, 16, 32),  # of seconds on one CPU core
}


class Block(nn.Module):
    """Two convolutions beside a straight path, which is a projection where the channels change."""

    def __init__(self, channels_in: int, channels: int, dropout: float) -> None:
        super().__init__()
        self.straight = nn.Identity() if channels_in == channels else nn.Conv2d(channels_in, channels, 1)
        self.wide = nn.Sequential(
            *_convolution(channels_in, channels), nn.Dropout(dropout), *_convolution(channels, channels)
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.wide(images) + self.straight(images)


class WideResNet(nn.Module):
    """A stem, stages of blocks with a max-pool between them, an average pool and one linear layer."""

    def __init__(self, widths: Sequence[int], *, num_classes: int, channels: int, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, STEM_CHANNELS, 3, padding=1, bias=False)]
        before = STEM_CHANNELS
        for number, width in enumerate(widths):
            if number:
                layers.append(nn.MaxPool2d(2))
            for _ in range(BLOCKS_PER_STAGE):
                layers.append(Block(before, width, dropout))
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
    """Build it by its name in the zoo."""
    return WideResNet(WIDTHS[name], num_classes=num_classes, channels=channels, dropout=dropout)
