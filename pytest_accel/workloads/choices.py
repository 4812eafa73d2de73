"""The arguments that both kinds of step take, as one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from pytest_accel.measure.errors import check_whole, unknown_value
from pytest_accel.measure.ranks import Alone, Ranks
from pytest_accel.workloads.feeding import DataChoices

Model = str | Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The arguments that both kinds of step take; "auto" and None are settled in `assemble`."""

    model: Model  # a name (torchvision's, `timm/NAME`, `zoo/NAME`), or any callable that returns a module
    batch_size: int  # of one rank
    global_batch_size: int | None = None  # of all ranks together, instead of batch_size: strong scaling
    data: str | None = None  # a name of DATA_NAMES; None: the first that fits the model's task
    device: torch.device | str = "cpu"
    precision: str = "fp32"  # fp32, tf32, bf16, fp16
    image_size: int | None = None  # pixels; None: the model's own, else the data's
    num_classes: int | None = None  # None: the data's
    sequence: int | None = None  # tokens; None: the model's own
    vocabulary: int | None = None  # of a language model; None: the model's own
    memory_format: str = "auto"  # auto, contiguous, channels_last
    compile: str | None = "auto"  # auto, None (eager), or a name of COMPILE_MODES
    replay: bool | None = None  # record a step and replay it as one launch (CUDA); None: where it is short
    cudnn_benchmark: bool = True  # let cuDNN try its algorithms on first use of a shape
    seed: int = 0  # of weights, batches and dropout
    model_options: Mapping[str, Any] = field(default_factory=dict)  # for the model's own builder
    millions: float | None = None  # of parameters that the model must have, as a study gives them: 25.6
    feeding: DataChoices = field(default_factory=DataChoices)  # given as arguments of their own
    ranks: Ranks = field(default_factory=Alone)  # those that take the step together, each with its own data

    @classmethod
    def of(cls, model: Model, arguments: Mapping[str, Any]) -> Choices:
        """Make them of keyword arguments; one that is unknown gets a did-you-mean, not a traceback of ours."""
        of_data = [entry.name for entry in fields(DataChoices)]
        known = [entry.name for entry in fields(cls) if entry.name != "feeding"] + of_data
        for name in arguments:
            if name not in known:
                remedy = "Arguments of the model's own builder go into model_options={...}."
                raise unknown_value("argument", name, known, remedy=remedy)
        feeding = DataChoices(**{name: arguments[name] for name in of_data if name in arguments})
        own = {name: value for name, value in arguments.items() if name not in of_data}
        ranks = own.get("ranks") or Alone()
        whole = own.get("global_batch_size")
        if whole is not None:
            own["batch_size"] = share_of(whole, own, ranks.size)
        elif own.get("batch_size") is None:
            raise ValueError(
                "batch_size: missing. Write batch_size=N (or global_batch_size=N, for all devices together): "
                "no size is guessed, and none made smaller."
            )
        return cls(model=model, feeding=feeding, **own)


def share_of(whole: int, arguments: Mapping[str, Any], size: int) -> int:
    """Return one rank's part of a global batch; a remainder would give ranks different work."""
    if arguments.get("batch_size") is not None:
        raise ValueError(
            "batch_size and global_batch_size: give one. The first is of one device and the second of all together."
        )
    check_whole("global_batch_size", whole)
    if whole % size:
        raise ValueError(
            f"global_batch_size: {whole} does not divide among {size} ranks. Choose a multiple of {size}."
        )
    return whole // size
