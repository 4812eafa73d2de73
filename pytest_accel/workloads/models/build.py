"""Models by name or by callable: random weights from a fixed seed, never a download.

Names come from torchvision, timm (`timm/NAME`) and this package (`zoo/NAME`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from importlib.util import find_spec
from inspect import Parameter, signature
from typing import Any

import torch
from torch import nn

from pytest_accel.measure.errors import check_whole, did_you_mean
from pytest_accel.workloads.config import Model, StepConfig, callable_name
from pytest_accel.workloads.data.detection import MANY_SCALES
from pytest_accel.workloads.input_pipeline import ModelTask
from pytest_accel.workloads.models import bert, convnets, dino, gpt, segmentation
from pytest_accel.workloads.models.detection import build_detector

WHERE_NAMES_COME_FROM = (
    "Names come from torchvision ('resnet50'; torchvision.models.list_models()), timm ('timm/NAME'; "
    "timm.list_models()) and the zoo of pytest-accel ('zoo/NAME': {zoo}). "
    "Or pass any callable that returns an nn.Module."
)
# Arguments that every model is built with: a second value for one of them would be a TypeError.
BUILD_ARGUMENTS = ("device", "image_size", "model", "num_classes", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What a step must know of a model to build its batches."""

    name: str
    task: ModelTask
    parameters: int
    convolutional: bool  # channels last is faster
    image_size: int | None = None  # pixels, height and width; None: any, the data decides
    crop: tuple[int, int] | None = None  # height and width that it is trained at, where it takes any size
    channels: int | None = None
    vocabulary: int | None = None
    sequence: int | None = None
    own: bool = False  # the user's callable: nothing about it was looked up


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooModel:
    """A model of this package, before it is built."""

    build: Callable[..., nn.Module]
    task: ModelTask
    crop: tuple[int, int] | None = None
    shape: type | None = (
        None  # a dataclass whose fields the builder takes, where its signature does not name them
    )
    check: Callable[[StepConfig], None] | None = None  # raises ValueError for what the model cannot take

    @property
    def options(self) -> tuple[str, ...]:
        """Keywords of the builder."""
        if self.shape is not None:
            return tuple(each.name for each in fields(self.shape))
        named = signature(self.build).parameters.values()
        return tuple(each.name for each in named if each.kind is Parameter.KEYWORD_ONLY)


@cache
def zoo_models() -> dict[str, ZooModel]:
    """Return the models of this package by name, without their prefix `zoo/`."""

    def entries(names: Any, build: Any, task: ModelTask, **more: Any) -> dict[str, ZooModel]:
        return {name: ZooModel(build=partial(build, name), task=task, **more) for name in names}

    seg = segmentation
    return {
        **entries(
            seg.SEGFORMERS,
            seg.build_segformer,
            "segmentation",
            crop=seg.SEGFORMER_CROP,
            check=_check_segformer,
        ),
        **entries(
            seg.DEEPLABS, seg.build_deeplabv3plus, "segmentation", crop=seg.DEEPLAB_CROP, check=_check_deeplab
        ),
        **entries(dino.DINO_SHAPES, dino.build_dino, "detection", shape=dino.DinoShape, check=_check_dino),
        **entries(gpt.GPT_SHAPES, gpt.build_gpt, "language", shape=gpt.GptShape),
        **entries(convnets.WIDE_RESNET_WIDTHS, convnets.build_wide_resnet, "classification"),
        **entries(convnets.AUTOENCODER_WIDTHS, convnets.build_autoencoder, "reconstruction"),
        **entries(bert.BERT_SHAPES, bert.build_bert, "answering", shape=bert.BertShape),
    }


def zoo_model(model: object) -> ZooModel | None:
    """Return the entry of `zoo/NAME`; None for any other model."""
    library, _, name = model.rpartition("/") if isinstance(model, str) else ("", "", "")
    return zoo_models().get(name) if library == "zoo" else None


def task_of(model: Model) -> ModelTask | None:
    """Return the task of a named model, without building it; None for a user's own and for an unknown name."""
    if not isinstance(model, str):
        return None
    library, _, name = model.rpartition("/")
    if library == "zoo":
        known = zoo_models().get(name)
        return known.task if known else None
    return _torchvision_tasks().get(name) if library == "" else "classification"


# --- checks before a model is built ----------------------------------------------------------------


def check_model_options(config: StepConfig) -> None:
    """Refuse model_options that the builder does not take, and sizes or batches that the model cannot take."""
    for option, value in config.model_options.items():
        if option in BUILD_ARGUMENTS:
            remedy = (
                f"Write {option}={value!r} beside model_options."
                if isinstance(config.model, str)
                else f"Bind it: functools.partial(model, {option}={value!r})."
            )
            raise ValueError(f"model_options: {option!r} is an argument of every step. {remedy}")
        if option in {"sequence", "vocabulary"}:
            check_whole(f"model_options: {option}", value)
    known = zoo_model(config.model)
    if known is None:
        if config.name.startswith("deeplabv3_"):  # torchvision's
            _check_pooled_batch(config)
        return
    valid = sorted(set(known.options) - set(BUILD_ARGUMENTS))
    for option in config.model_options:
        if option not in valid:
            choices = f"Valid: {', '.join(valid)}." if valid else "It has none."
            raise ValueError(
                f"model_options: {config.model} does not take {option!r}.{did_you_mean(option, valid)} {choices}"
            )
    if known.check is not None:
        known.check(config)


def _check_segformer(config: StepConfig) -> None:
    if config.image_size is not None:
        segmentation.check_size(config.image_size, config.image_size, segmentation.SMALLEST_STAGE)


def _check_deeplab(config: StepConfig) -> None:
    if config.image_size is not None:
        segmentation.check_size(config.image_size, config.image_size, segmentation.OUTPUT_STRIDE)
    _check_pooled_batch(config)


def _check_pooled_batch(config: StepConfig) -> None:
    if config.training:
        argument = "batch_size" if config.micro_batch_size is None else "micro_batch_size"
        segmentation.check_pooled_batch(config.forward_batch_size, argument)


def _check_dino(config: StepConfig) -> None:
    """Refuse images with fewer tokens than queries: every query is proposed by a token."""
    shape = replace(dino.DINO_SHAPES[config.name.removeprefix("zoo/")], **config.model_options)
    size = config.image_size
    if size is not None and shape.backbone != "plain" and size % dino.PATCH:
        raise ValueError(
            f"image_size: {size} pixels do not divide into patches of {dino.PATCH}. Choose a multiple of {dino.PATCH}."
        )
    sizes = MANY_SCALES.buckets if size is None else ((size, size),)
    tokens = min(dino.count_tokens(shape, *each) for each in sizes)
    if tokens < shape.queries:
        raise ValueError(
            f"image_size: the {tokens} tokens of {config.name}'s smallest image cannot propose {shape.queries} boxes. "
            f'Choose a larger image_size=, or fewer queries: model_options={{"queries": {tokens}}}.'
        )


# --- building --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recipe:
    """A builder, and what is known before it is called."""

    build: Callable[[], nn.Module]
    task: ModelTask = "classification"
    image_size: int | None = None
    crop: tuple[int, int] | None = None
    channels: int | None = None
    own: bool = False


def build_model(
    model: Model,
    *,
    seed: int = 0,
    num_classes: int | None = None,
    image_size: int | None = None,
    device: torch.device | str = "cpu",
    **options: Any,
) -> tuple[nn.Module, ModelInfo]:
    """Build a model on a device with random weights; the random state of the process stays as it was.

    `image_size` is for models whose weights depend on it (ViT), and tells the data for the others. `options` go to
    the model's own builder. `num_classes` is not passed to a callable. Weights of one seed differ between kinds of
    device, because they are drawn there: an 800 M model takes seconds on a GPU, a minute on a CPU core.
    """
    device = torch.device(device)
    recipe = _find(model, num_classes=num_classes, image_size=image_size, options=options)
    try:
        with _seeded(seed, device), device:
            module = recipe.build()
    except TypeError as error:
        if not options or "unexpected keyword argument" not in str(error):
            raise
        raise ValueError(
            f"model_options: {_name(model)} does not take all of {', '.join(sorted(options))}: {error}. "
            "Leave out what it does not know."
        ) from error
    if not isinstance(module, nn.Module):
        raise TypeError(f"model: {callable_name(model)} returned {type(module).__name__}, not an nn.Module.")
    module = module.to(device)
    return module, _describe(model, module, recipe)


def _find(
    model: Model, *, num_classes: int | None, image_size: int | None, options: Mapping[str, Any]
) -> _Recipe:
    """Return how a model is built, without building it."""
    if not isinstance(model, str):
        return _Recipe(build=lambda: model(**options), image_size=image_size, own=True)
    if "img_size" in options:
        raise ValueError("img_size: write image_size=, which every model and its data understand.")
    if num_classes is not None:
        options = {"num_classes": num_classes, **options}
    library, _, name = model.rpartition("/")
    match library:
        case "":
            return _from_torchvision(name, image_size=image_size, options=dict(options))
        case "timm":
            return _from_timm(name, image_size=image_size, options=dict(options))
        case "zoo":
            return _from_zoo(name, image_size=image_size, options=dict(options))
        case _:
            raise _unknown_model(model, [], "has an unknown prefix")


def _from_torchvision(name: str, *, image_size: int | None, options: dict[str, Any]) -> _Recipe:
    if find_spec("torchvision") is None:
        raise ValueError(f"model: {name!r} needs torchvision. pip install 'pytest-accel[suites]'")
    from torchvision import models

    task = _torchvision_tasks().get(name)
    if task is None:
        if name in models.list_models():  # video, optical flow, quantized
            raise ValueError(
                f"model: {name!r} of torchvision is for another task than those of a step. Choose a model for classes, boxes "
                "or masks, or pass a callable that returns it."
            )
        raise _unknown_model(name, list(_torchvision_tasks()), "is not a model of torchvision")
    if task == "detection":
        build = partial(build_detector, name, **options)
        return _Recipe(build=build, task=task, image_size=image_size, channels=3)
    if task != "classification":
        # Without weights_backbone, weights=None still downloads a pretrained backbone.
        options = {"weights_backbone": None} | options
        return _Recipe(
            build=lambda: models.get_model(name, weights=None, **options),
            task=task,
            image_size=image_size,
            channels=3,
        )
    # The size that the library's best weights were trained at (vit_h_14: 518, efficientnet_b4: 380).
    size = image_size or models.get_model_weights(name).DEFAULT.transforms().crop_size[0]
    if name.startswith("vit_"):
        options = {"image_size": size} | options
    elif name.startswith("maxvit_"):
        options = {"input_size": (size, size)} | options
    elif name in {"googlenet", "inception_v3"}:
        options = {"init_weights": True} | options  # their default, without their warning
    return _Recipe(build=lambda: models.get_model(name, weights=None, **options), image_size=size, channels=3)


@cache
def _torchvision_tasks() -> dict[str, ModelTask]:
    """Return torchvision's models that a step can be built from, each with its task."""
    if find_spec("torchvision") is None:
        return {}
    from torchvision import models

    modules: dict[ModelTask, Any] = {
        "classification": models,
        "detection": models.detection,
        "segmentation": models.segmentation,
    }
    return {name: task for task, module in modules.items() for name in models.list_models(module=module)}


def _from_timm(name: str, *, image_size: int | None, options: dict[str, Any]) -> _Recipe:
    if find_spec("timm") is None:
        raise ValueError(f"model: 'timm/{name}' needs timm. pip install 'pytest-accel[suites]'")
    import timm

    if not timm.is_model(name):
        known = [f"timm/{known}" for known in timm.list_models()]
        raise _unknown_model(f"timm/{name}", known, "is not a model of timm")
    pretrained = timm.get_pretrained_cfg(name)
    channels, own_size, _ = pretrained.input_size
    if image_size and pretrained.fixed_input_size:
        options = {"img_size": image_size} | options
    return _Recipe(
        build=lambda: timm.create_model(name, pretrained=False, **options),
        image_size=image_size or own_size,
        channels=options.get("in_chans", channels),
    )


def _from_zoo(name: str, *, image_size: int | None, options: dict[str, Any]) -> _Recipe:
    model = zoo_models().get(name)
    if model is None:
        raise _unknown_model(f"zoo/{name}", [f"zoo/{known}" for known in zoo_models()], "is not in the zoo")
    if model.task == "language" and "num_classes" in options:
        raise ValueError(f"num_classes: zoo/{name} predicts tokens. Set vocabulary= instead.")
    if model.task == "answering" and "num_classes" in options:
        raise ValueError(f"num_classes: zoo/{name} points at tokens, and has no classes. Leave it out.")
    if model.task == "reconstruction":
        options.pop("num_classes", None)  # it has no classes
    return _Recipe(
        build=lambda: model.build(**options),
        task=model.task,
        image_size=image_size,
        crop=model.crop,
        channels=options.get("channels"),
    )


def _describe(model: Model, module: nn.Module, recipe: _Recipe) -> ModelInfo:
    shape = getattr(module, "shape", None)  # a GptShape, ours or of a user's own token model
    vocabulary, sequence = getattr(shape, "vocabulary", None), getattr(shape, "sequence", None)
    convolutions = sum(isinstance(layer, nn.Conv2d) for layer in module.modules())
    linears = sum(isinstance(layer, nn.Linear) for layer in module.modules())
    return ModelInfo(
        name=_name(model),
        task="language" if vocabulary and recipe.own else recipe.task,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        # Counted in layers: the few linear layers of VGG hold most of its parameters. A ViT or Swin has one
        # convolution, for the patches; a ConvNeXt has one for two linear layers.
        convolutional=4 * convolutions >= convolutions + linears > 0,
        image_size=recipe.image_size,
        crop=recipe.crop,
        channels=recipe.channels,
        vocabulary=vocabulary,
        sequence=sequence,
        own=recipe.own,
    )


def _name(model: Model) -> str:
    return model if isinstance(model, str) else callable_name(model)


def _unknown_model(name: str, known: list[str], what: str) -> ValueError:
    hint = did_you_mean(name, known)
    if not hint and "/" not in name and find_spec("timm") is not None:
        import timm  # slow to import, but the next question is whether timm has it

        hint = did_you_mean(f"timm/{name}", [f"timm/{known}" for known in timm.list_models()])
    where = WHERE_NAMES_COME_FROM.format(zoo=", ".join(f"zoo/{name}" for name in zoo_models()))
    return ValueError(f"model: {name!r} {what}.{hint} {where}")


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the generators of the host and of one device, and restore their states at the end."""
    if device.type in {"cpu", "meta"}:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
        return
    index = torch.get_device_module(device).current_device() if device.index is None else device.index
    with torch.random.fork_rng(devices=[index], device_type=device.type):
        torch.manual_seed(seed)
        yield
