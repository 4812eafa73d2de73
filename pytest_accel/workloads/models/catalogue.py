"""Models that no library has."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_accel.workloads.plan import ModelTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a benchmark asks of a named model."""

    image_size: int | None  # None: what the model is trained at
    batch_size: int  # that lies on a device at once
    batch_argument: str  # what the user calls that
    training: bool
    options: Mapping[str, Any]


def nothing(asked: Asked) -> None:
    """The model takes whatever is asked of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooModel:
    """What builds a model of the zoo, and what is known before it is built."""

    build: Callable[..., Any]
    task: ModelTask
    crop: tuple[int, int] | None = None  # height and width that it is trained at, where it takes any
    shape: type | None = None  # whose fields its builder takes, where it does not name them
    check: Callable[[Asked], None] = nothing  # raises ValueError for what the model cannot take

    @property
    def options(self) -> tuple[str, ...]:
        """What its builder takes by name."""
        if self.shape is not None:
            return tuple(each.name for each in fields(self.shape))
        named = signature(self.build).parameters.values()
        return tuple(each.name for each in named if each.kind is Parameter.KEYWORD_ONLY)


def zoo_model(model: object) -> ZooModel | None:
    """Return what is known of `zoo/NAME`; None of any other model."""
    library, _, name = model.rpartition("/") if isinstance(model, str) else ("", "", "")
    return zoo_models().get(name) if library == "zoo" else None


def zoo_models() -> dict[str, ZooModel]:
    """Return each name of the zoo with its model."""
    from pytest_accel.workloads.models import (
        autoencoder,
        bert,
        demands,
        dino,
        dino_shapes,
        gpt,
        segmentation,
        wide_resnet,
    )

    segmenters = {
        **{
            name: ZooModel(
                build=partial(segmentation.build_segformer, name),
                task="segmentation",
                crop=segmentation.CROPS[name],
                check=demands.check_segformer,
            )
            for name in segmentation.SEGFORMERS
        },
        **{
            name: ZooModel(
                build=partial(segmentation.build_deeplabv3plus, name),
                task="segmentation",
                crop=segmentation.CROPS[name],
                check=demands.check_deeplab,
            )
            for name in segmentation.DEEPLABS
        },
    }
    detection = {
        name: ZooModel(
            build=partial(dino.build_dino, name),
            task="detection",
            shape=dino_shapes.DinoShape,
            check=partial(demands.check_dino, name),
        )
        for name in dino_shapes.DINO_SHAPES
    }
    language = {
        name: ZooModel(build=partial(gpt.build_gpt, name), task="language", shape=gpt.GptShape)
        for name in gpt.GPT_SHAPES
    }
    answering = {
        name: ZooModel(build=partial(bert.build_bert, name), task="answering", shape=bert.BertShape)
        for name in bert.BERT_SHAPES
    }
    classification = {
        name: ZooModel(build=partial(wide_resnet.build_wide_resnet, name), task="classification")
        for name in wide_resnet.WIDTHS
    }
    reconstruction = {
        name: ZooModel(build=partial(autoencoder.build_autoencoder, name), task="reconstruction")
        for name in autoencoder.WIDTHS
    }
    return {**segmenters, **detection, **language, **classification, **reconstruction, **answering}
