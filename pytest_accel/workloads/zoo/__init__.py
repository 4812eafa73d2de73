"""Models that no library has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_accel.workloads.plan import ModelTask


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooModel:
    """What builds a model of the zoo, and what is known before it is built."""

    build: Callable[..., Any]
    task: ModelTask
    crop: tuple[int, int] | None = None  # height and width that it is trained at, where it takes any


def zoo_models() -> dict[str, ZooModel]:
    """Return each name of the zoo with its model."""
    from pytest_accel.workloads.zoo import autoencoder, bert, dino, gpt, segmentation, wide_resnet

    detection = {name: partial(dino.build_dino, name) for name in dino.DINO_SHAPES}
    language = {name: partial(gpt.build_gpt, name) for name in gpt.GPT_SHAPES}
    classification = {name: partial(wide_resnet.build_wide_resnet, name) for name in wide_resnet.WIDTHS}
    answering = {name: partial(bert.build_bert, name) for name in bert.BERT_SHAPES}
    reconstruction = {name: partial(autoencoder.build_autoencoder, name) for name in autoencoder.WIDTHS}
    segmenters: dict[str, Callable[..., Any]] = {
        **{name: partial(segmentation.build_segformer, name) for name in segmentation.SEGFORMERS},
        **{name: partial(segmentation.build_deeplabv3plus, name) for name in segmentation.DEEPLABS},
    }
    crops = segmentation.CROPS
    return {
        **{
            name: ZooModel(build=build, task="segmentation", crop=crops[name])
            for name, build in segmenters.items()
        },
        **{name: ZooModel(build=build, task="detection") for name, build in detection.items()},
        **{name: ZooModel(build=build, task="language") for name, build in language.items()},
        **{name: ZooModel(build=build, task="classification") for name, build in classification.items()},
        **{name: ZooModel(build=build, task="reconstruction") for name, build in reconstruction.items()},
        **{name: ZooModel(build=build, task="answering") for name, build in answering.items()},
    }
