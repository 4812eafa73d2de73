"""Models by name or by callable: random weights from a fixed seed, never a download."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, TypeAlias

import torch
from torch import nn

from pytest_accel.stats.quantities import did_you_mean
from pytest_accel.workloads.config import Model, StepConfig, callable_name
from pytest_accel.workloads.input_pipeline import ModelInfo, ModelTask
from pytest_accel.workloads.models import dino, gpt, zoo
from pytest_accel.workloads.models.detection import build_detector

# Arguments that every model is built with: a second value for one of them would be a TypeError.
BUILD_ARGUMENTS = ("device", "image_size", "model", "num_classes", "seed")


# A builder, and what is known before it is called
Recipe: TypeAlias = tuple[Callable[[], nn.Module], ModelInfo]


def _shaped(kind: Callable[[Any], nn.Module], shape: Any, **changes: Any) -> nn.Module:
    return kind(replace(shape, **changes))


# Shapes by name, what is built of them, the task and the package that it needs
_BUILDERS: tuple[tuple[Mapping[str, Any], Callable[..., nn.Module], ModelTask, str], ...] = (
    (zoo.SEGFORMERS, zoo.build_segformer, "segmentation", "segmentation_models_pytorch"),
    (zoo.DEEPLABS, zoo.DeepLabV3Plus, "segmentation", "segmentation_models_pytorch"),
    (dino.DINO_SHAPES, partial(_shaped, dino.Dino), "detection", "timm"),
    (gpt.GPT_SHAPES, partial(_shaped, gpt.GPT), "language", "torch"),
    (zoo.WIDE_RESNET_WIDTHS, zoo.WideResNet, "classification", "torch"),
    (zoo.AUTOENCODER_WIDTHS, zoo.Autoencoder, "reconstruction", "torch"),
    (zoo.BERT_SHAPES, partial(_shaped, zoo.Bert), "answering", "transformers"),
)
ZOO = {
    name: (partial(build, shape), task, package)
    for shapes, build, task, package in _BUILDERS
    for name, shape in shapes.items()
}


def task_of(model: Model) -> ModelTask | None:
    """Return the task of a named model, without building it; None for a user's own and for an unknown name."""
    if not isinstance(model, str):
        return None
    library, _, name = model.rpartition("/")
    if library == "zoo":
        return ZOO[name][1] if name in ZOO else None
    return _torchvision_tasks().get(name) if library == "" else "classification"


def check_model_options(config: StepConfig) -> None:
    if taken := [name for name in config.model_options if name in BUILD_ARGUMENTS]:
        raise ValueError(
            f"model_options: {', '.join(taken)} is an argument of every step. Write it beside model_options, or bind it to a "
            "callable of your own: functools.partial(model, ...)."
        )


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
    if isinstance(model, str):
        library, _, name = model.rpartition("/")
        if library not in LIBRARIES:
            raise _unknown_model(model, [])
        arguments = options if num_classes is None else {"num_classes": num_classes, **options}
        build, info = LIBRARIES[library](name, image_size, arguments)
    else:
        build = partial(model, **options)
        info = ModelInfo(name=callable_name(model), image_size=image_size, own=True)
    # The generators of the host and of an accelerator get their state back.
    own = [] if device.type in {"cpu", "meta"} else [device]
    try:
        with torch.random.fork_rng(own, device_type=device.type if own else "cpu"), device:
            torch.manual_seed(seed)
            module = build()
    except TypeError as error:
        if not options or "unexpected keyword argument" not in str(error):
            raise
        raise ValueError(
            f"model_options: {info.name} does not take all of {', '.join(sorted(options))}: {error}. "
            "Leave out what it does not know."
        ) from error
    if not isinstance(module, nn.Module):
        raise TypeError(f"model: {info.name} returned {type(module).__name__}, not an nn.Module.")
    return module.to(device), _described(module, info)


def _from_torchvision(name: str, image_size: int | None, options: dict[str, Any]) -> Recipe:
    task = _torchvision_tasks().get(name)
    if task is None:
        raise _unknown_model(name, list(_torchvision_tasks()))
    from torchvision import models

    build = partial(models.get_model, name, weights=None)
    if task == "detection":
        build = partial(build_detector, name)
    elif task == "segmentation":
        # Without weights_backbone, weights=None still downloads a pretrained backbone.
        options = {"weights_backbone": None} | options
    else:
        # The size that the library's best weights were trained at (vit_h_14: 518, efficientnet_b4: 380).
        image_size = image_size or models.get_model_weights(name).DEFAULT.transforms().crop_size[0]
    if name.startswith("vit_"):
        options = {"image_size": image_size} | options
    elif name.startswith("maxvit_"):
        options = {"input_size": (image_size, image_size)} | options
    info = ModelInfo(name=name, task=task, image_size=image_size, channels=3)
    return partial(build, **options), info


@cache
def _torchvision_tasks() -> dict[str, ModelTask]:
    _need("torchvision", "resnet50")
    from torchvision import models

    known: dict[ModelTask, list[str]] = {
        "classification": models.list_models(module=models),
        "detection": models.list_models(include="fasterrcnn_*"),
        "segmentation": models.list_models(module=models.segmentation),
    }
    return {name: task for task, names in known.items() for name in names}


def _from_timm(name: str, image_size: int | None, options: dict[str, Any]) -> Recipe:
    _need("timm", f"timm/{name}")
    import timm

    if not timm.is_model(name):
        raise _unknown_model(f"timm/{name}", [f"timm/{known}" for known in timm.list_models()])
    pretrained = timm.get_pretrained_cfg(name)
    channels, own_size, _ = pretrained.input_size
    if image_size and pretrained.fixed_input_size:
        options = {"img_size": image_size} | options
    channels = options.get("in_chans", channels)
    info = ModelInfo(name=f"timm/{name}", image_size=image_size or own_size, channels=channels)
    return partial(timm.create_model, name, pretrained=False, **options), info


def _from_zoo(name: str, image_size: int | None, options: dict[str, Any]) -> Recipe:
    if name not in ZOO:
        raise _unknown_model(f"zoo/{name}", [f"zoo/{known}" for known in ZOO])
    build, task, package = ZOO[name]
    _need(package, f"zoo/{name}")
    if task in {"language", "answering"} and "num_classes" in options:
        raise ValueError(f"num_classes: zoo/{name} reads tokens, and has no classes. Leave it out.")
    if task == "reconstruction":
        options.pop("num_classes", None)  # it has no classes
    info = ModelInfo(
        name=f"zoo/{name}",
        task=task,
        image_size=image_size,
        crop=zoo.CROPS.get(name),
        channels=options.get("channels"),
    )
    return partial(build, **options), info


def _need(package: str, model: str) -> None:
    if find_spec(package) is None:
        raise ValueError(f"model: {model!r} needs {package}: pip install {package.replace('_', '-')}")


LIBRARIES = {"": _from_torchvision, "timm": _from_timm, "zoo": _from_zoo}


def _described(module: nn.Module, info: ModelInfo) -> ModelInfo:
    shape = getattr(module, "shape", None)  # a GptShape, ours or of a user's own token model
    vocabulary, sequence = getattr(shape, "vocabulary", None), getattr(shape, "sequence", None)
    convolutions = sum(isinstance(layer, nn.Conv2d) for layer in module.modules())
    linears = sum(isinstance(layer, nn.Linear) for layer in module.modules())
    return replace(
        info,
        task="language" if vocabulary and info.own else info.task,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        # Counted in layers: the few linear layers of VGG hold most of its parameters. A ViT or Swin has one
        # convolution, for the patches; a ConvNeXt has one for two linear layers.
        convolutional=4 * convolutions >= convolutions + linears > 0,
        vocabulary=vocabulary,
        sequence=sequence,
    )


def _unknown_model(name: str, known: list[str]) -> ValueError:
    ours = ", ".join(f"zoo/{name}" for name in ZOO)
    return ValueError(
        f"model: {name!r} is not known.{did_you_mean(name, known)} Names come from torchvision (classifiers, Faster R-CNN and "
        "segmentation models of torchvision.models.list_models()), timm ('timm/NAME'; timm.list_models()) and the zoo of "
        f"pytest-accel ('zoo/NAME': {ours}). Or pass any callable that returns an nn.Module."
    )
