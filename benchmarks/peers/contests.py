"""What is compared with what: a table of values. No torch here, so that `--list` is quick.

Ours is a row of bench_suites, with its choices by value; tests/benchmarks/test_peers.py holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """One model, precision and batch, trained or run in two ways."""

    name: str
    row: str  # of bench_suites, that ours is
    way: str  # the peer's: a name of ways.WAYS
    model: str
    batch_size: int
    task: str = "train"  # or infer
    precision: str = "bf16"
    choices: Mapping[str, Any] = field(default_factory=dict)  # of our step beside these, as the row has them
    peer_pixels: int | None = None  # the height of the peer's images, where it is meant to be another one
    goal: float | None = 1.0  # of the ratio, ours over the peer's: issue 8; None where it would mean nothing
    small: Mapping[str, Any] = field(
        default_factory=dict
    )  # what is other on a CPU; choices are added to these

    @property
    def unlike(self) -> str:
        """What is not the same on both sides, as the end of the peer's name."""
        return f", at {self.peer_pixels} pixels" if self.peer_pixels else ""

    def on(self, device_type: str) -> Contest:
        """Return it as it is played there: on a CPU small, to see that everything works."""
        if device_type != "cpu":
            return self
        changes = dict(self.small)
        choices = {**self.choices, **changes.pop("choices", {})}
        return replace(self, **changes, choices=choices, small={}, goal=None)


# --- how the suites train, by value -----------------------------------------------------------------

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

UNASKED = 288  # pixels: what timm's benchmark.py takes for a ResNet50 unless it is told

# --- what a CPU plays instead -----------------------------------------------------------------------

PIXELS = {"image_size": 64}
FP32 = "fp32"  # in bf16 the CPU at hand convolved more slowly, and no CPU does it in fp16
SMALL_RESNET = {"model": "resnet18", "precision": FP32, "batch_size": 2, "choices": {"image_size": 32}}
SMALL_SWIN = {"precision": FP32, "batch_size": 2, "choices": {**PIXELS, "millions": None}}
SMALL_GPT = {"model": "zoo/gpt-tiny", "batch_size": 2}
SMALL_DINO = {"model": "zoo/dino-tiny", "precision": FP32, "choices": {**PIXELS, "model_options": {}}}


def _segmentation(name: str, batch_size: int) -> Contest:
    segformer = name == "segformer"
    model, small = (
        ("segformer_b4", "zoo/segformer-b0") if segformer else ("deeplabv3plus_r101", "zoo/deeplabv3plus-r18")
    )
    return Contest(
        name=f"{name}-{batch_size}",
        row=f"test_segmentation.py::test_training[{model}-{batch_size}]",
        way="segmentation",
        model="zoo/" + model.replace("_", "-"),
        batch_size=batch_size,
        choices={"data": "cityscapes", **(SEGFORMER if segformer else DEEPLAB)},
        small={"model": small, "precision": FP32, "batch_size": 2, "choices": PIXELS},
    )


def _gpt(name: str, size: str, way: str, *, batch_size: int = 16) -> Contest:
    return Contest(
        name=name,
        row=f"test_gpt.py::test_gpt_training[{size}]",
        way=way,
        model=f"zoo/gpt-{size}",
        batch_size=batch_size,
        small=SMALL_GPT,
    )


def _unasked(contest: Contest) -> Contest:
    """Return it as people meet it: ours as the row is, beside timm's script without a size, which then takes larger images."""
    return replace(
        contest,
        name=f"{contest.name}-unasked",
        peer_pixels=UNASKED,
        goal=None,
        small={**contest.small, "peer_pixels": 48},
    )


RESNET50 = Contest(
    name="resnet50",
    row="test_cnn.py::test_cnn[resnet50]",
    way="timm",
    model="resnet50",
    batch_size=256,
    choices={"data": "imagenet", "image_size": 224},
    goal=1.6,
    small=SMALL_RESNET,
)
RESNET50_INFER = Contest(
    name="resnet50-infer",
    row="test_inference.py::test_inference[resnet50]",
    way="timm",
    model="resnet50",
    task="infer",
    batch_size=1024,
    choices={"data": "imagenet"},
    goal=1.8,
    small=SMALL_RESNET,
)
ALL = (
    RESNET50,
    _unasked(RESNET50),
    # That size on both sides.
    replace(RESNET50, name="resnet50-288", choices={"data": "imagenet", "image_size": UNASKED}),
    Contest(
        name="resnet50-torchvision",
        row="test_cnn.py::test_batch[resnet50-fp16-256]",
        way="torchvision",
        model="resnet50",
        batch_size=256,
        precision="fp16",  # what its --amp is
        choices={"data": "imagenet", "image_size": 224, "source": "synthetic"},
        small=SMALL_RESNET,
    ),
    Contest(
        name="swin_t",
        row="test_classification.py::test_training[swin_t-cifar100]",
        way="timm",
        model="swin_t",
        batch_size=256,
        choices={"data": "cifar100", "num_classes": 1000, "millions": 28.3},
        small=SMALL_SWIN,
    ),
    RESNET50_INFER,
    _unasked(RESNET50_INFER),
    Contest(
        name="swin_t-infer",
        row="test_inference.py::test_inference[swin_t]",
        way="timm",
        model="swin_t",
        task="infer",
        batch_size=1024,
        choices={"data": "imagenet"},
        small=SMALL_SWIN,
    ),
    # Without the row's loader: what is compared is the arithmetic, and the peer's batch lies on the device, too.
    Contest(
        name="wide_resnet",
        row="test_wide_resnet.py::test_single[optimised]",
        way="olivia",
        model="zoo/wide_resnet",
        batch_size=32,
        choices={"data": "cifar100", "millions": 17.2},
        goal=3.0,
        small={
            "model": "zoo/wide_resnet-tiny",
            "precision": FP32,
            "batch_size": 8,
            "choices": {"millions": None},
        },
    ),
    _gpt("gpt-117m", "117m", "gpt2"),
    _gpt("gpt-800m", "800m", "gpt2"),
    _gpt("gpt-800m-8", "800m", "gpt2", batch_size=8),  # half the row's batch: eager, 16 may not fit
    _gpt("gpt-117m-nanogpt", "117m", "nanogpt"),
    _gpt("gpt-800m-nanogpt", "800m", "nanogpt"),
    *(
        Contest(
            name=f"bert-{sequence}",
            row=f"test_bert.py::test_fine_tuning[{sequence}]",
            way="bert",
            model="zoo/bert-base",
            batch_size=32,
            choices={"sequence": sequence, "millions": 108.9, **BERT},
            small={
                "model": "zoo/bert-tiny",
                "batch_size": 4,
                "choices": {"sequence": 64, "millions": None},
            },
        )
        for sequence in (384, 128)
    ),
    *(
        _segmentation(name, batch)
        for name, batches in (("segformer", (1, 8)), ("deeplab", (2, 8)))
        for batch in batches
    ),
    Contest(
        name="fasterrcnn",
        row="test_detection.py::test_faster_rcnn",
        way="detector",
        model="fasterrcnn_resnet50_fpn",
        batch_size=2,
        choices={"data": "coco", **FASTER_RCNN},
        small={"model": "fasterrcnn_mobilenet_v3_large_320_fpn", "precision": FP32, "choices": PIXELS},
    ),
    *(
        Contest(
            name=f"dino-{scales}",
            row=f"test_detection.py::test_dino[{scales}]",
            way="dino",
            model=f"zoo/dino-swin-l-{scales}",
            batch_size=2,
            choices={"data": "coco", **DINO, "model_options": {"checkpoint": True}},
            small=SMALL_DINO,
        )
        for scales in ("4scale", "5scale")
    ),
)
CONTESTS = {contest.name: contest for contest in ALL}


class UnknownContestError(ValueError):
    """A name or a pattern that no contest has."""


def chosen(wanted: Sequence[str]) -> list[Contest]:
    """Return the contests of these names and globs, each once, in the order of the table; of none: all."""
    picked: set[str] = set()
    for pattern in wanted:
        fitting = [name for name in CONTESTS if fnmatchcase(name, pattern)]
        if not fitting:
            near = get_close_matches(pattern.lower(), CONTESTS, n=3)
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise UnknownContestError(
                f"{pattern!r} is no contest.{hint} Valid: {', '.join(CONTESTS)}; and globs, as 'gpt-*'."
            )
        picked.update(fitting)
    return [contest for contest in ALL if not wanted or contest.name in picked]
