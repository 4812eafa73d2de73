"""What models of the zoo ask of their images and batches: known, and said, before minutes go into building one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_accel.workloads.data.detection import MANY_SCALES, Bucket
from pytest_accel.workloads.models.dino_shapes import DINO_SHAPES, DinoShape
from pytest_accel.workloads.models.segmentation import OUTPUT_STRIDE, SMALLEST_STAGE, check_size
from pytest_accel.workloads.models.segmentation_layers import check_pooled_batch

if TYPE_CHECKING:
    from pytest_accel.workloads.models.catalogue import Asked

PATCH = 4  # pixels, of a Swin: its first stage has one token for so many, squared
PLAIN_STRIDES = (8, 16)  # of the maps of DINO's plain backbone


def check_segformer(asked: Asked) -> None:
    if asked.image_size is not None:
        check_size(asked.image_size, asked.image_size, SMALLEST_STAGE)


def check_deeplab(asked: Asked) -> None:
    if asked.image_size is not None:
        check_size(asked.image_size, asked.image_size, OUTPUT_STRIDE)
    if asked.training:
        check_pooled_batch(asked.batch_size, asked.batch_argument)


def check_dino(name: str, asked: Asked) -> None:
    """Every query is proposed by a token, so an image must have as many."""
    shape = replace(DINO_SHAPES[name], **asked.options)
    size = asked.image_size
    if size is not None and shape.backbone != "plain" and size % PATCH:
        raise ValueError(
            f"image_size: {size} pixels do not divide into patches of {PATCH}. Choose a multiple of {PATCH}."
        )
    sizes: tuple[Bucket, ...] = MANY_SCALES.buckets if size is None else ((size, size),)
    tokens = min(tokens_of(shape, *each) for each in sizes)
    if tokens < shape.queries:
        raise ValueError(
            f"image_size: the {tokens} tokens of zoo/{name}'s smallest image cannot propose {shape.queries} boxes. "
            f'Choose a larger image_size=, or fewer queries: model_options={{"queries": {tokens}}}.'
        )


def tokens_of(shape: DinoShape, height: int, width: int) -> int:
    """Return how many tokens a DINO makes of an image."""
    strides = PLAIN_STRIDES if shape.backbone == "plain" else tuple(PATCH * 2**each for each in shape.stages)
    further = (strides[-1] * 2**level for level in range(1, shape.scales - len(strides) + 1))
    return sum(-(-height // stride) * -(-width // stride) for stride in (*strides, *further))
