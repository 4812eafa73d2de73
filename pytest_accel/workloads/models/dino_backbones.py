"""What turns images into maps for DINO: timm's Swin, or four convolutions where seconds count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

PLAIN_WIDTHS = (16, 32, 64, 64)  # at a half, a quarter, an eighth and a sixteenth of the image


class SwinBackbone(nn.Module):
    """Maps of some stages of a Swin of timm, each through a norm of its own; images of any size."""

    def __init__(self, name: str, *, stages: Sequence[int], checkpoint: bool) -> None:
        super().__init__()
        import timm  # slow to import

        # always_partition: else the last stage, which is one window at the 384 pixels of the name, would not shift
        # its windows on larger images either.
        self.swin: Any = timm.create_model(
            name,
            pretrained=False,
            features_only=True,
            out_indices=tuple(stages),
            strict_img_size=False,
            always_partition=True,
            drop_path_rate=0.0,
        )
        self.channels: list[int] = self.swin.feature_info.channels()
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for channels in self.channels)
        self.checkpoint = checkpoint
        self._compute_again(again=checkpoint)

    @property
    def compiled_apart(self) -> list[nn.Module]:
        """Its blocks, many of a few kinds."""
        return [block for stage in self._stages for block in stage.blocks]

    def forward(self, images: Tensor) -> list[Tensor]:
        # Where operations are counted, once: computing twice is no work of the model's.
        maps = self._once(images) if images.is_meta else self.swin(images)
        return [norm(stage).permute(0, 3, 1, 2) for norm, stage in zip(self.norms, maps, strict=True)]

    def _once(self, images: Tensor) -> list[Tensor]:
        self._compute_again(again=False)
        try:
            maps: list[Tensor] = self.swin(images)
        finally:
            self._compute_again(again=self.checkpoint)
        return maps

    def _compute_again(self, *, again: bool) -> None:
        for stage in self._stages:  # what lies between stages is kept anyway
            stage.grad_checkpointing = again

    @property
    def _stages(self) -> list[Any]:
        return [module for module in self.swin.modules() if hasattr(module, "blocks")]


class PlainBackbone(nn.Module):
    """Convolutions that halve the image four times; the last two maps."""

    def __init__(self) -> None:
        super().__init__()
        self.channels = list(PLAIN_WIDTHS[-2:])
        before = 3
        self.blocks = nn.ModuleList()
        for width in PLAIN_WIDTHS:
            self.blocks.append(
                nn.Sequential(
                    nn.Conv2d(before, width, 3, stride=2, padding=1),
                    nn.GroupNorm(8, width),
                    nn.ReLU(inplace=True),
                )
            )
            before = width

    @property
    def compiled_apart(self) -> list[nn.Module]:
        return [self]

    def forward(self, images: Tensor) -> list[Tensor]:
        maps = []
        for block in self.blocks:
            images = block(images)
            maps.append(images)
        return maps[-2:]
