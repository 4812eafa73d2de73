"""Models, data, precision and optimizers, built into one step.

`TrainStep` and `InferStep` are plain callables that a benchmark times. The names below load on first
use: importing this package does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_accel.measure.errors import StepError
    from pytest_accel.workloads.models.build import ModelInfo, build_model
    from pytest_accel.workloads.precision import Precision
    from pytest_accel.workloads.step import InferStep, TrainStep

__all__ = ["InferStep", "ModelInfo", "Precision", "StepError", "TrainStep", "build_model"]

_MODULES = {
    "InferStep": "workloads.step",
    "ModelInfo": "workloads.models.build",
    "Precision": "workloads.precision",
    "StepError": "measure.errors",
    "TrainStep": "workloads.step",
    "build_model": "workloads.models.build",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"pytest_accel.{_MODULES[name]}"), name)
