"""The sizes of every DINO of the zoo, by name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DinoShape:
    """The sizes of a DINO."""

    backbone: str  # a Swin's name in timm, or "plain"
    stages: tuple[int, ...] = ()  # of the Swin: whose maps are taken
    scales: int  # levels of tokens; those beyond the backbone's maps halve its last map again
    width: int = 256
    heads: int = 8
    points: int = 4  # a head and level
    encoder_layers: int = 6
    decoder_layers: int = 6
    feedforward: int = 2048
    queries: int = 900
    denoising_pairs: int = 100  # of a positive and a negative copy
    num_classes: int = 91
    checkpoint: bool = False  # recompute the backbone's activations in the backward pass

    def __post_init__(self) -> None:
        if self.width % self.heads or self.width % 32:
            raise ValueError(
                f"width: {self.width} is not a multiple of 32 groups and of {self.heads} heads. "
                "Choose one that is, 256 for instance."
            )


_SWIN_L = "swin_large_patch4_window12_384"
DINO_SHAPES = {
    "dino-swin-l-4scale": DinoShape(backbone=_SWIN_L, stages=(1, 2, 3), scales=4),
    "dino-swin-l-5scale": DinoShape(backbone=_SWIN_L, stages=(0, 1, 2, 3), scales=5),
    # Of seconds on one CPU core.
    "dino-tiny": DinoShape(
        backbone="plain", scales=3, width=64, heads=4, encoder_layers=2, decoder_layers=2, feedforward=128,
        queries=30, denoising_pairs=10,
    ),
}  # fmt: skip
