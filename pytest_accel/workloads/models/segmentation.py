"""SegFormer and DeepLabV3+ as trained on Cityscapes, over the layers and weights of segmentation-models-pytorch.

The forward passes are ours, channels last from end to end. So are the auxiliary head, which that library does not have,
fused attention and bilinear upsampling. Each replacement has the parameters and names of the library's layer and
computes the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from pytest_accel.workloads.tasks.segmentation import CITYSCAPES_CLASSES

SEGFORMERS = {"segformer-b0": "mit_b0", "segformer-b4": "mit_b4"}
DEEPLABS = {"deeplabv3plus-r18": "resnet18", "deeplabv3plus-r101": "resnet101"}
# Height and width that a model is trained at
CROPS = dict.fromkeys(SEGFORMERS, (1024, 1024)) | dict.fromkeys(DEEPLABS, (512, 1024))
DROPOUT = 0.1
OUTPUT_STRIDE = 8  # of DeepLabV3+: its last stages are dilated


def build_segformer(
    name: str, *, num_classes: int = CITYSCAPES_CLASSES, decoder_channels: int = 256
) -> SegFormer:
    import segmentation_models_pytorch as smp

    sizes = {"classes": num_classes, "decoder_segmentation_channels": decoder_channels}
    return SegFormer(smp.Segformer(SEGFORMERS[name], encoder_weights=None, **sizes))


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


class SegFormer(nn.Module):
    """A Mix Transformer of four stages, whose outputs are upsampled, concatenated and classified."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.encoder = network.encoder
        self.decoder = _SegFormerDecoder(network.decoder)
        self.segmentation_head = nn.Sequential(network.segmentation_head[0], Upsample(4, logits=True))
        for block in self.encoder.modules():
            if hasattr(block, "attn"):
                block.attn = FusedAttention(block.attn)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = []
        for stage in "1234":
            # The library makes every stage's output contiguous, and the next stage turns it back.
            for part in ("patch_embed", "block", "norm"):
                images = getattr(self.encoder, part + stage)(images)
            features.append(images)
        return self.segmentation_head(self.decoder(features))


class _SegFormerDecoder(nn.Module):
    """A linear layer for each stage, all upsampled to the first, and one convolution over them."""

    def __init__(self, theirs: Any) -> None:
        super().__init__()
        self.mlp_stage = theirs.mlp_stage  # the last stage's is the first
        self.fuse_stage = theirs.fuse_stage

    def forward(self, features: list[torch.Tensor]) -> torch.Tensor:
        size = tuple(features[0].shape[-2:])
        layers = zip(self.mlp_stage, reversed(features), strict=True)
        return self.fuse_stage(torch.cat([upsample(layer(each), size) for layer, each in layers], dim=1))


class DeepLabV3Plus(nn.Module):
    """A dilated ResNet, its ASPP and decoder, and in training a second head on the third stage."""

    def __init__(self, network: Any, *, classes: int) -> None:
        super().__init__()
        self.encoder = network.encoder
        self.decoder = network.decoder
        self.segmentation_head = nn.Sequential(network.segmentation_head[0], Upsample(4, logits=True))
        self.decoder.up = Upsample(2)
        branches = self.decoder.aspp[0].convs
        branches[-1] = ImagePooling(*branches[-1])
        channels = self.encoder.out_channels[-2]
        self.auxiliary_head = nn.Sequential(
            nn.Conv2d(channels, channels // 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels // 4),
            nn.ReLU(inplace=True),
            nn.Dropout(DROPOUT),
            nn.Conv2d(channels // 4, classes, 1),
            Upsample(OUTPUT_STRIDE, logits=True),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return logits (batch, classes, height, width), in training of both heads."""
        features = self.encoder(images)
        main = self.segmentation_head(self.decoder(features))
        return (main, self.auxiliary_head(features[-2])) if self.training else main


# The fused backward pass of attention parallelizes over blocks of keys: the 1,024 keys of a SegFormer are 8 blocks for each
# image and head. Queries are split until there are 8 times this many blocks, one for each of an H200's 132 SMs.
FILLING = 20
FEWEST_QUERIES = 512  # of a part


class FusedAttention(nn.Module):
    """A Mix Transformer's attention through scaled_dot_product_attention; keys are fewer than queries."""

    def __init__(self, theirs: Any) -> None:
        super().__init__()
        self.q, self.kv, self.proj = theirs.q, theirs.kv, theirs.proj
        self.sr, self.norm = theirs.sr, theirs.norm
        self._heads = theirs.num_heads
        self._reduces = theirs.sr_ratio > 1

    def forward(self, tokens: torch.Tensor, height: int, width: int) -> torch.Tensor:
        batch, length, channels = tokens.shape
        parts = query_parts(batch * self._heads, length)
        queries = self.q(tokens).reshape(batch * parts, length // parts, self._heads, -1).transpose(1, 2)
        fewer = self._reduced(tokens, height, width) if self._reduces else tokens
        pairs = self.kv(fewer).unflatten(2, (2, self._heads, -1)).permute(2, 0, 3, 1, 4)
        keys, values = (_repeated(each, parts) for each in pairs.unbind(0))
        mixed = F.scaled_dot_product_attention(queries, keys, values)
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, channels))

    def _reduced(self, tokens: torch.Tensor, height: int, width: int) -> torch.Tensor:
        images = tokens.transpose(1, 2).unflatten(2, (height, width))
        return self.norm(self.sr(images).flatten(2).transpose(1, 2))


def query_parts(rows: int, length: int) -> int:
    """Return into how many parts to split the queries, for so many images times heads."""
    parts, most = 1, min(FILLING // rows, length // FEWEST_QUERIES)
    while 2 * parts <= most and length % (2 * parts) == 0:
        parts *= 2
    return parts


def _repeated(images: torch.Tensor, parts: int) -> torch.Tensor:
    """Return (batch * parts, ...): each image for every part of its queries."""
    return images[:, None].expand(-1, parts, *[-1] * (images.dim() - 1)).flatten(0, 1)


class Upsample(nn.Module):
    """Bilinear upsampling by an integer factor; corners are not aligned, as in the studies' configurations."""

    def __init__(self, factor: int, *, logits: bool = False) -> None:
        super().__init__()
        self._factor = factor
        self._logits = logits

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        height, width = images.shape[-2:]
        size = (height * self._factor, width * self._factor)
        return upsample(images, size, logits=self._logits)


class ImagePooling(nn.Sequential):
    """The image-pooling branch of an ASPP."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        # Not interpolated: that backward pass adds all pixels into one address, one after the other.
        return super().forward(images).expand(-1, -1, *images.shape[-2:])


def upsample(images: torch.Tensor, size: tuple[int, int], *, logits: bool = False) -> torch.Tensor:
    """Upsample (batch, channels, height, width), bilinear.

    Inductor's backward pass of it is four atomic additions for each value (torch 2.10). Compiled, it is instead two matrix
    products, whose backward pass is products too. Eager it is torch's own, so that no extra FLOPs are counted.
    """
    if tuple(images.shape[-2:]) == tuple(size):
        return images
    if not torch.compiler.is_compiling():
        return F.interpolate(images, size=size, mode="bilinear", align_corners=False)
    return upsample_planes(images, size) if logits else upsample_pixels(images, size)


def upsample_planes(images: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Upsample class by class, into planes: 19 classes are no width for a tensor core, and the softmax reads planes faster."""
    count, channels, height, width = images.shape
    rows, columns = _weights(size[0], height, images), _weights(size[1], width, images)
    planes = images.reshape(count * channels * height, width)
    wide = (planes @ columns.T).view(count * channels, height, size[1])
    return torch.bmm(rows.expand(count * channels, -1, -1), wide).view(count, channels, *size)


def upsample_pixels(images: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Upsample all channels of a pixel at once: hundreds of them, channels last."""
    count, channels, height, width = images.shape
    rows, columns = _weights(size[0], height, images), _weights(size[1], width, images)
    lines = images.permute(0, 2, 3, 1).reshape(count, height, width * channels)
    tall = torch.bmm(rows.expand(count, -1, -1), lines).view(count * size[0], width, channels)
    pixels = torch.bmm(columns.expand(count * size[0], -1, -1), tall)
    return pixels.view(count, *size, channels).permute(0, 3, 1, 2)


def _weights(target: int, source: int, images: torch.Tensor) -> torch.Tensor:
    """Return the weight of each source row in each target row, (target, source); exact in bf16 for powers of two."""
    places = torch.arange(target, device=images.device, dtype=torch.float32)
    middles = ((places + 0.5) * (source / target) - 0.5).clamp(0, source - 1)
    sources = torch.arange(source, device=images.device, dtype=torch.float32)
    return (1 - (middles[:, None] - sources).abs()).clamp(min=0).to(images.dtype)
