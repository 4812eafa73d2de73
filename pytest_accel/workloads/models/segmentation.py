"""SegFormer and DeepLabV3+ as they are trained on Cityscapes, over segmentation-models-pytorch: its layers and weights.

The way through them is ours, in channels last from end to end; so are the auxiliary head, which that library has none of,
and the few layers in segmentation_layers.py.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import nn

from pytest_accel.workloads.data.segmentation import CITYSCAPES_CLASSES
from pytest_accel.workloads.models.segmentation_layers import Enlarged, FusedAttention, Pooled, enlarged

SEGFORMERS = {"segformer-b0": "mit_b0", "segformer-b4": "mit_b4"}
DEEPLABS = {"deeplabv3plus-r18": "resnet18", "deeplabv3plus-r101": "resnet101"}
# Height and width that a name is trained at.
CROPS = dict.fromkeys(SEGFORMERS, (1024, 1024)) | dict.fromkeys(DEEPLABS, (512, 1024))
DROPOUT = 0.1
SMALLEST_STAGE = 32  # of a SegFormer: pixels for one of its last stage, each way
OUTPUT_STRIDE = 8  # of DeepLabV3+: its last stages are dilated, and not smaller


class Segmented(NamedTuple):
    """What DeepLabV3+ returns in training: logits (batch, classes, height, width) of both heads."""

    main: torch.Tensor
    auxiliary: torch.Tensor


def build_segformer(
    name: str, *, num_classes: int = CITYSCAPES_CLASSES, decoder_channels: int = 256
) -> SegFormer:
    library = _library(name)
    network = library.Segformer(
        SEGFORMERS[name],
        encoder_weights=None,
        classes=num_classes,
        decoder_segmentation_channels=decoder_channels,
    )
    return SegFormer(network)


def build_deeplabv3plus(
    name: str, *, num_classes: int = CITYSCAPES_CLASSES, decoder_channels: int = 512
) -> DeepLabV3Plus:
    library = _library(name)
    network = library.DeepLabV3Plus(
        DEEPLABS[name],
        encoder_weights=None,
        encoder_output_stride=OUTPUT_STRIDE,
        classes=num_classes,
        decoder_channels=decoder_channels,
        decoder_aspp_dropout=DROPOUT,
    )
    return DeepLabV3Plus(network, classes=num_classes)


def _library(name: str) -> Any:  # noqa: ANN401 - a module without types
    if find_spec("segmentation_models_pytorch") is None:
        raise ValueError(
            f"model: 'zoo/{name}' needs segmentation-models-pytorch. pip install 'pytest-accel[suites]'"
        )
    import segmentation_models_pytorch

    return segmentation_models_pytorch


class SegFormer(nn.Module):
    """A Mix Transformer of four stages, whose outputs are brought to one size, put together and classified."""

    def __init__(self, network: Any) -> None:  # noqa: ANN401 - a Segformer of the library
        super().__init__()
        self.encoder = network.encoder
        self.decoder = _Fused(network.decoder)
        self.segmentation_head = _head(network.segmentation_head, factor=4)
        for block in self.encoder.modules():
            if hasattr(block, "attn"):
                block.attn = FusedAttention(block.attn)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        check_size(images.shape[-2], images.shape[-1], SMALLEST_STAGE)
        features = []
        for stage in "1234":
            # The library's own way makes every stage's output contiguous, and the next stage turns it back.
            for part in ("patch_embed", "block", "norm"):
                images = getattr(self.encoder, part + stage)(images)
            features.append(images)
        return self.segmentation_head(self.decoder(features))


class _Fused(nn.Module):
    """The decoder: a linear layer for each stage, all enlarged to the first, and one convolution over them."""

    def __init__(self, theirs: Any) -> None:  # noqa: ANN401 - a SegformerDecoder of the library
        super().__init__()
        self.mlp_stage = theirs.mlp_stage  # the last stage's is the first
        self.fuse_stage = theirs.fuse_stage

    def forward(self, features: list[torch.Tensor]) -> torch.Tensor:
        size = tuple(features[0].shape[-2:])
        layers = zip(self.mlp_stage, reversed(features), strict=True)
        return self.fuse_stage(torch.cat([enlarged(layer(each), size) for layer, each in layers], dim=1))


class DeepLabV3Plus(nn.Module):
    """A dilated ResNet, its ASPP and decoder, and in training a second head on the third stage."""

    def __init__(self, network: Any, *, classes: int) -> None:  # noqa: ANN401 - a DeepLabV3Plus of the library
        super().__init__()
        self.encoder = network.encoder
        self.decoder = network.decoder
        self.segmentation_head = _head(network.segmentation_head, factor=4)
        self.decoder.up = Enlarged(2)
        branches = self.decoder.aspp[0].convs
        branches[-1] = Pooled(*branches[-1])
        channels = self.encoder.out_channels[-2]
        self.auxiliary_head = nn.Sequential(
            nn.Conv2d(channels, channels // 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels // 4),
            nn.ReLU(inplace=True),
            nn.Dropout(DROPOUT),
            nn.Conv2d(channels // 4, classes, 1),
            Enlarged(OUTPUT_STRIDE, logits=True),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor | Segmented:
        check_size(images.shape[-2], images.shape[-1], OUTPUT_STRIDE)
        features = self.encoder(images)
        main = self.segmentation_head(self.decoder(features))
        return Segmented(main, self.auxiliary_head(features[-2])) if self.training else main


def _head(theirs: Any, *, factor: int) -> nn.Sequential:  # noqa: ANN401 - a SegmentationHead of the library
    return nn.Sequential(theirs[0], Enlarged(factor, logits=True))


def check_size(height: int, width: int, multiple: int) -> None:
    if height % multiple or width % multiple:
        raise ValueError(
            f"image_size: {height} x {width} pixels do not divide by {multiple}, and this model halves them so often. "
            f"Choose multiples of {multiple}."
        )
