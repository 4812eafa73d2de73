"""SegFormer and DeepLabV3+ as trained on Cityscapes: the models of segmentation-models-pytorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pytest_accel.workloads.tasks.segmentation import CITYSCAPES_CLASSES

SEGFORMERS = {"segformer-b0": "mit_b0", "segformer-b4": "mit_b4"}
DEEPLABS = {"deeplabv3plus-r18": "resnet18", "deeplabv3plus-r101": "resnet101"}
# Height and width that a model is trained at
CROPS = dict.fromkeys(SEGFORMERS, (1024, 1024)) | dict.fromkeys(DEEPLABS, (512, 1024))
DROPOUT = 0.1
OUTPUT_STRIDE = 8  # of DeepLabV3+: its last stages are dilated


def build_segformer(
    name: str, *, num_classes: int = CITYSCAPES_CLASSES, decoder_channels: int = 256
) -> nn.Module:
    import segmentation_models_pytorch as smp

    sizes = {"classes": num_classes, "decoder_segmentation_channels": decoder_channels}
    network: nn.Module = smp.Segformer(SEGFORMERS[name], encoder_weights=None, **sizes)
    return network


def build_deeplabv3plus(
    name: str, *, num_classes: int = CITYSCAPES_CLASSES, decoder_channels: int = 512
) -> DeepLabV3Plus:
    import segmentation_models_pytorch as smp

    network = smp.DeepLabV3Plus(
        DEEPLABS[name],
        encoder_weights=None,
        encoder_output_stride=OUTPUT_STRIDE,
        classes=num_classes,
        decoder_channels=decoder_channels,
        decoder_aspp_dropout=DROPOUT,
    )
    return DeepLabV3Plus(network, classes=num_classes)


class DeepLabV3Plus(nn.Module):
    """The library's DeepLabV3+, and in training an auxiliary head on the third stage, which the library does not have."""

    def __init__(self, network: Any, *, classes: int) -> None:
        super().__init__()
        self.network = network
        channels = network.encoder.out_channels[-2]
        self.auxiliary_head = nn.Sequential(
            nn.Conv2d(channels, channels // 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels // 4),
            nn.ReLU(inplace=True),
            nn.Dropout(DROPOUT),
            nn.Conv2d(channels // 4, classes, 1),
            nn.Upsample(scale_factor=OUTPUT_STRIDE, mode="bilinear", align_corners=False),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return logits (batch, classes, height, width), in training of both heads."""
        network = self.network
        if not self.training:
            logits: torch.Tensor = network(images)
            return logits
        features = network.encoder(images)
        return network.segmentation_head(network.decoder(features)), self.auxiliary_head(features[-2])
