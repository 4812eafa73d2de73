"""Table of comparisons: a row of bench_suites, and the implementation of another library or guide beside it.

No torch here, so that `--list` works without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One model, precision and batch size in two implementations."""

    name: str
    row: str  # of bench_suites, with the same step
    peer: str  # a name of implementations.PEERS
    model: str
    batch_size: int
    task: str = "train"  # or infer
    precision: str = "bf16"
    options: Mapping[str, Any] = field(default_factory=dict)  # further keywords of our step, those of the row
    peer_pixels: int | None = None  # image size of the peer, where it differs on purpose
    goal: float | None = 1.0  # ratio of our rate to the peer's; None where a goal makes no sense
    small: Mapping[str, Any] = field(default_factory=dict)  # changes on a CPU

    @property
    def unlike(self) -> str:
        """What differs between the two sides, as a suffix of the title."""
        return f", at {self.peer_pixels} pixels" if self.peer_pixels else ""

    def on(self, device_type: str) -> Comparison:
        """Return the comparison for a device; on a CPU it is small, as a check that everything works."""
        if device_type != "cpu":
            return self
        changes = dict(self.small)
        options = {**self.options, **changes.pop("options", {})}
        return replace(self, **changes, options=options, small={}, goal=None)


# --- options of the suites -----------------------------------------------------------------

SEGFORMER = {
    "optimizer": "adamw",
    "lr": 6e-5,
    "weight_decay": 0.01,
    "lr_scale": {"decoder": 10, "segmentation_head": 10},
}
DEEPLAB = {"optimizer": "sgd", "lr": 0.01, "weight_decay": 5e-4}
FASTER_RCNN = {"optimizer": "sgd", "lr": 0.02, "weight_decay": 1e-4, "clip": 1.0}
DINO = {
    "optimizer": "adamw",
    "lr": 1e-4,
    "weight_decay": 1e-4,
    "lr_scale": {"neck.backbone.": 0.1},
    "clip": 0.1,
}
BERT = {"optimizer": "adamw", "lr": 3e-5, "clip": 1.0}

TIMM_DEFAULT_PIXELS = 288  # of timm's benchmark.py for a ResNet50 without --img-size

# --- small models for a CPU -----------------------------------------------------------------------

PIXELS = {"image_size": 64}
FP32 = "fp32"  # bf16 is slower on CPUs, and fp16 is not supported
SMALL_RESNET = {"model": "resnet18", "precision": FP32, "batch_size": 2, "options": {"image_size": 32}}
SMALL_SWIN = {"precision": FP32, "batch_size": 2, "options": {**PIXELS, "millions": None}}
SMALL_GPT = {"model": "zoo/gpt-tiny", "batch_size": 2}
SMALL_DINO = {"model": "zoo/dino-tiny", "precision": FP32, "options": {**PIXELS, "model_options": {}}}


def _segmentation(name: str, batch_size: int) -> Comparison:
    segformer = name == "segformer"
    model, small = (
        ("segformer_b4", "zoo/segformer-b0") if segformer else ("deeplabv3plus_r101", "zoo/deeplabv3plus-r18")
    )
    return Comparison(
        name=f"{name}-{batch_size}",
        row=f"test_segmentation.py::test_training[{model}-{batch_size}]",
        peer="segmentation",
        model="zoo/" + model.replace("_", "-"),
        batch_size=batch_size,
        options={"data": "cityscapes", **(SEGFORMER if segformer else DEEPLAB)},
        small={"model": small, "precision": FP32, "batch_size": 2, "options": PIXELS},
    )


def _gpt(name: str, size: str, peer: str, *, batch_size: int = 16) -> Comparison:
    return Comparison(
        name=name,
        row=f"test_gpt.py::test_gpt_training[{size}]",
        peer=peer,
        model=f"zoo/gpt-{size}",
        batch_size=batch_size,
        small=SMALL_GPT,
    )


def _default_size(comparison: Comparison) -> Comparison:
    """Return the comparison with timm's script without an image size, which then takes larger images."""
    return replace(
        comparison,
        name=f"{comparison.name}-default-size",
        peer_pixels=TIMM_DEFAULT_PIXELS,
        goal=None,
        small={**comparison.small, "peer_pixels": 48},
    )


def _tuned(comparison: Comparison, row: str) -> Comparison:
    """Return the comparison with custom kernels on our side; without them on a CPU, where there are none."""
    small = {**comparison.small, "options": {**comparison.small["options"], "tuned": False}}
    options = {**comparison.options, "tuned": True}
    return replace(comparison, name=f"{comparison.name}-tuned", row=row, options=options, small=small)


RESNET50 = Comparison(
    name="resnet50",
    row="test_cnn.py::test_cnn[resnet50]",
    peer="timm",
    model="resnet50",
    batch_size=256,
    options={"data": "imagenet", "image_size": 224},
    small=SMALL_RESNET,
)
RESNET50_INFER = Comparison(
    name="resnet50-infer",
    row="test_inference.py::test_inference[resnet50]",
    peer="timm",
    model="resnet50",
    task="infer",
    batch_size=1024,
    options={"data": "imagenet"},
    small=SMALL_RESNET,
)
ALL = (
    RESNET50,
    _tuned(RESNET50, "test_cnn.py::test_cnn_tuned[resnet50]"),
    _default_size(RESNET50),
    # The same size on both sides.
    replace(RESNET50, name="resnet50-288", options={"data": "imagenet", "image_size": TIMM_DEFAULT_PIXELS}),
    Comparison(
        name="resnet50-torchvision",
        row="test_cnn.py::test_batch[resnet50-fp16-256]",
        peer="torchvision",
        model="resnet50",
        batch_size=256,
        precision="fp16",  # of its --amp
        options={"data": "imagenet", "image_size": 224, "source": "synthetic"},
        small=SMALL_RESNET,
    ),
    Comparison(
        name="swin_t",
        row="test_classification.py::test_training[swin_t-cifar100]",
        peer="timm",
        model="swin_t",
        batch_size=256,
        options={"data": "cifar100", "num_classes": 1000, "millions": 28.3},
        small=SMALL_SWIN,
    ),
    RESNET50_INFER,
    _tuned(RESNET50_INFER, "test_inference.py::test_inference_tuned[resnet50]"),
    _default_size(RESNET50_INFER),
    Comparison(
        name="swin_t-infer",
        row="test_inference.py::test_inference[swin_t]",
        peer="timm",
        model="swin_t",
        task="infer",
        batch_size=1024,
        options={"data": "imagenet"},
        small=SMALL_SWIN,
    ),
    # Without the loader of the row: both batches are on the device.
    Comparison(
        name="wide_resnet",
        row="test_wide_resnet.py::test_single[optimised]",
        peer="olivia",
        model="zoo/wide_resnet",
        batch_size=32,
        options={"data": "cifar100", "millions": 17.2},
        small={
            "model": "zoo/wide_resnet-tiny",
            "precision": FP32,
            "batch_size": 8,
            "options": {"millions": None},
        },
    ),
    _gpt("gpt-117m", "117m", "gpt2"),
    _gpt("gpt-800m", "800m", "gpt2"),
    _gpt("gpt-800m-8", "800m", "gpt2", batch_size=8),  # half of the row's batch: 16 may not fit in eager mode
    _gpt("gpt-117m-nanogpt", "117m", "nanogpt"),
    _gpt("gpt-800m-nanogpt", "800m", "nanogpt"),
    *(
        Comparison(
            name=f"bert-{sequence}",
            row=f"test_bert.py::test_fine_tuning[{sequence}]",
            peer="bert",
            model="zoo/bert-base",
            batch_size=32,
            options={"sequence": sequence, "millions": 108.9, **BERT},
            small={"model": "zoo/bert-tiny", "batch_size": 4, "options": {"sequence": 64, "millions": None}},
        )
        for sequence in (384, 128)
    ),
    *(
        _segmentation(name, batch)
        for name, batches in (("segformer", (1, 8)), ("deeplab", (2, 8)))
        for batch in batches
    ),
    Comparison(
        name="fasterrcnn",
        row="test_detection.py::test_faster_rcnn",
        peer="detector",
        model="fasterrcnn_resnet50_fpn",
        batch_size=2,
        options={"data": "coco", **FASTER_RCNN},
        small={"model": "fasterrcnn_mobilenet_v3_large_320_fpn", "precision": FP32, "options": PIXELS},
    ),
    *(
        Comparison(
            name=f"dino-{scales}",
            row=f"test_detection.py::test_dino[{scales}]",
            peer="dino",
            model=f"zoo/dino-swin-l-{scales}",
            batch_size=2,
            options={"data": "coco", **DINO, "model_options": {"checkpoint": True}},
            small=SMALL_DINO,
        )
        for scales in ("4scale", "5scale")
    ),
)
COMPARISONS = {comparison.name: comparison for comparison in ALL}


class UnknownComparisonError(ValueError):
    """A name or a glob that matches no comparison."""


def select(wanted: Sequence[str]) -> list[Comparison]:
    """Return the comparisons that match names or globs, in the order of the table; all without names."""
    picked: set[str] = set()
    for pattern in wanted:
        fitting = [name for name in COMPARISONS if fnmatchcase(name, pattern)]
        if not fitting:
            near = get_close_matches(pattern.lower(), COMPARISONS, n=3)
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise UnknownComparisonError(
                f"{pattern!r} is no comparison.{hint} Valid: {', '.join(COMPARISONS)}; and globs, as 'gpt-*'."
            )
        picked.update(fitting)
    return [comparison for comparison in ALL if not wanted or comparison.name in picked]
