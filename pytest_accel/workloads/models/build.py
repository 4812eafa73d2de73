"""Models by name or by callable: random weights from a fixed seed, and never a download."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from pytest_accel.measure.errors import did_you_mean
from pytest_accel.workloads.detection.torchvision import build_detector
from pytest_accel.workloads.models.catalogue import zoo_model, zoo_models
from pytest_accel.workloads.optimizers import callable_name
from pytest_accel.workloads.plan import ModelTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WHERE_NAMES_COME_FROM = (
    "Names come from torchvision ('resnet50'; torchvision.models.list_models()), timm ('timm/NAME'; "
    "timm.list_models()) and the zoo of pytest-accel ('zoo/NAME': {zoo}). "
    "Or pass any callable that returns an nn.Module."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What a step must know of a model to feed it."""

    name: str
    task: ModelTask
    parameters: int
    kind: Literal["image", "tokens"]
    convolutional: bool  # channels last pays
    image_size: int | None = None  # pixels, height and width; None: the model takes any, the data decides
    crop: tuple[int, int] | None = None  # where it takes any size: height and width that it is trained at
    channels: int | None = None
    vocabulary: int | None = None
    sequence: int | None = None
    own: bool = False  # the user's callable: nothing about it was looked up


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """One way to a model: what builds it, and what is known before it is built."""

    build: Callable[[], nn.Module]
    task: ModelTask = "classification"
    image_size: int | None = None
    crop: tuple[int, int] | None = None
    channels: int | None = None
    own: bool = False


def build_model(
    model: str | Callable[..., nn.Module],
    *,
    seed: int = 0,
    num_classes: int | None = None,
    image_size: int | None = None,
    device: torch.device | str = "cpu",
    **options: Any,  # noqa: ANN401 - whatever the model's own builder takes
) -> tuple[nn.Module, ModelInfo]:
    """Build a model on a device with random weights.

    `image_size` is for models whose weights depend on it (ViT) and a note to the data for the others.
    `options` go to the model's own builder. `num_classes` is not passed to a callable: it knows its own.
    The random state of the process is left as it was; a model of one seed differs between kinds of
    device, because it is built there (an 800 M model takes seconds on a GPU, a minute on a CPU core).
    """
    device = torch.device(device)
    source = _find(model, num_classes=num_classes, image_size=image_size, options=options)
    try:
        with _seeded(seed, device), device:
            module = source.build()
    except TypeError as error:
        if not options or "unexpected keyword argument" not in str(error):
            raise
        named = ", ".join(sorted(options))
        raise ValueError(
            f"model_options: {_name(model)} does not take all of {named}: {error}. Leave out what it does not know."
        ) from error
    if not isinstance(module, nn.Module):
        raise TypeError(f"model: {callable_name(model)} returned {type(module).__name__}, not an nn.Module.")
    module = module.to(device)
    return module, _describe(model, module, source)


def task_of(model: str | Callable[..., nn.Module]) -> ModelTask | None:
    """Return what a named model is for, without building it; None of the user's own, and of an unknown name."""
    if not isinstance(model, str):
        return None
    if (known := zoo_model(model)) is not None:
        return known.task
    library, _, name = model.rpartition("/")
    if library == "zoo":
        return None
    return _torchvision_task(name) if library == "" else "classification"


def _find(
    model: str | Callable[..., nn.Module],
    *,
    num_classes: int | None,
    image_size: int | None,
    options: dict[str, Any],
) -> _Source:
    """Say where a model comes from, without building it."""
    if not isinstance(model, str):
        return _Source(build=lambda: model(**options), image_size=image_size, own=True)
    if "img_size" in options:
        raise ValueError("img_size: write image_size=, which every model and its data understand.")
    classes = {} if num_classes is None else {"num_classes": num_classes}
    library, _, name = model.rpartition("/")
    match library:
        case "":
            return _from_torchvision(name, image_size=image_size, options=classes | options)
        case "timm":
            return _from_timm(name, image_size=image_size, options=classes | options)
        case "zoo":
            return _from_zoo(name, image_size=image_size, options=classes | options)
        case _:
            raise _unknown_model(model, [], "has an unknown prefix")


def _from_torchvision(name: str, *, image_size: int | None, options: dict[str, Any]) -> _Source:
    if find_spec("torchvision") is None:
        raise ValueError(f"model: {name!r} needs torchvision. pip install 'pytest-accel[suites]'")
    from torchvision import models

    task = _torchvision_task(name)
    if task is None:
        if name in models.list_models():  # of videos, of flow, of integers in place of floats
            raise ValueError(
                f"model: {name!r} of torchvision is for another task than those of a step. Choose a model for classes, boxes "
                "or masks, or pass a callable that returns it."
            )
        raise _unknown_model(name, list(_names_of_torchvision()), "is not a model of torchvision")
    if task == "detection":
        build = partial(build_detector, name, **options)
        return _Source(build=build, task=task, image_size=image_size, channels=3)
    if task != "classification":
        # Without the second, "no weights" still downloads a pretrained backbone.
        options = {"weights_backbone": None} | options
        return _Source(
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
        options = {"init_weights": True} | options  # what they do anyway, without their warning
    return _Source(build=lambda: models.get_model(name, weights=None, **options), image_size=size, channels=3)


def _torchvision_task(name: str) -> ModelTask | None:
    if find_spec("torchvision") is None:
        return None
    return _names_of_torchvision().get(name)


def _names_of_torchvision() -> dict[str, ModelTask]:
    """Return the names of its models that we can feed, each with its task."""
    from torchvision import models

    homes: dict[ModelTask, Any] = {
        "classification": models,
        "detection": models.detection,
        "segmentation": models.segmentation,
    }
    return {name: task for task, home in homes.items() for name in models.list_models(module=home)}


def _from_timm(name: str, *, image_size: int | None, options: dict[str, Any]) -> _Source:
    if find_spec("timm") is None:
        raise ValueError(f"model: 'timm/{name}' needs timm. pip install 'pytest-accel[suites]'")
    import timm

    if not timm.is_model(name):
        raise _unknown_model(
            f"timm/{name}", [f"timm/{known}" for known in timm.list_models()], "is not a model of timm"
        )
    pretrained = timm.get_pretrained_cfg(name)
    channels, own_size, _ = pretrained.input_size
    if image_size and pretrained.fixed_input_size:
        options = {"img_size": image_size} | options
    return _Source(
        build=lambda: timm.create_model(name, pretrained=False, **options),
        image_size=image_size or own_size,
        channels=options.get("in_chans", channels),
    )


def _from_zoo(name: str, *, image_size: int | None, options: dict[str, Any]) -> _Source:
    zoo = zoo_models()
    if name not in zoo:
        raise _unknown_model(f"zoo/{name}", [f"zoo/{known}" for known in zoo], "is not in the zoo")
    model = zoo[name]
    if model.task == "language" and "num_classes" in options:
        raise ValueError(f"num_classes: zoo/{name} predicts tokens. Set vocabulary= instead.")
    if model.task == "answering" and "num_classes" in options:
        raise ValueError(f"num_classes: zoo/{name} points at tokens, and has no classes. Leave it out.")
    if model.task == "reconstruction":
        options = {key: value for key, value in options.items() if key != "num_classes"}  # it has no classes
    return _Source(
        build=lambda: model.build(**options),
        task=model.task,
        image_size=image_size,
        crop=model.crop,
        channels=options.get("channels"),
    )


def _describe(model: str | Callable[..., nn.Module], module: nn.Module, source: _Source) -> ModelInfo:
    shape = getattr(module, "shape", None)  # a GptShape, ours or of a user's own token model
    vocabulary, sequence = getattr(shape, "vocabulary", None), getattr(shape, "sequence", None)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    convolutions = sum(isinstance(layer, nn.Conv2d) for layer in module.modules())
    linears = sum(isinstance(layer, nn.Linear) for layer in module.modules())
    return ModelInfo(
        name=_name(model),
        task="language" if vocabulary and source.own else source.task,  # of a named model it is known
        parameters=parameters,
        kind="tokens" if vocabulary else "image",
        # Counted in layers, because the few linear ones of VGG hold most of its parameters. A ViT or Swin has
        # one convolution, which cuts the patches; a ConvNeXt has one for two linear layers.
        convolutional=4 * convolutions >= convolutions + linears > 0,
        image_size=source.image_size,
        crop=source.crop,
        channels=source.channels,
        vocabulary=vocabulary,
        sequence=sequence,
        own=source.own,
    )


def _name(model: str | Callable[..., nn.Module]) -> str:
    return model if isinstance(model, str) else callable_name(model)


def _unknown_model(name: str, known: list[str], what: str) -> ValueError:
    hint = did_you_mean(name, known)
    if not hint and "/" not in name and find_spec("timm") is not None:
        import timm  # slow to import, but the user's next question is whether timm has it

        hint = did_you_mean(f"timm/{name}", [f"timm/{known}" for known in timm.list_models()])
    where = WHERE_NAMES_COME_FROM.format(zoo=", ".join(f"zoo/{name}" for name in zoo_models()))
    return ValueError(f"model: {name!r} {what}.{hint} {where}")


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the generators of the host and of one device, and put their states back at the end."""
    if device.type in {"cpu", "meta"}:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
        return
    index = torch.get_device_module(device).current_device() if device.index is None else device.index
    with torch.random.fork_rng(devices=[index], device_type=device.type):
        torch.manual_seed(seed)
        yield
