"""Data plans and step configurations for tests: on the CPU, of one rank of several."""

from __future__ import annotations

from typing import Any

import torch

from pytest_accel.measure.ranks import Alone
from pytest_accel.workloads.build import make_plan
from pytest_accel.workloads.config import StepConfig
from pytest_accel.workloads.data.sources import Batch
from pytest_accel.workloads.flops import count
from pytest_accel.workloads.input_pipeline import Destination, Plan
from pytest_accel.workloads.models.build import ModelInfo
from pytest_accel.workloads.tasks import DATA_OF, task_of_data

CPU = torch.device("cpu")
_DEFAULTS: dict[str, Any] = {"device": CPU, "dtype": torch.float32, "memory_format": "contiguous", "seed": 0}


class Rank(Alone):
    """One of several ranks."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def made(plan: Plan, index: int = 0, **changes: Any) -> Batch:
    return plan.make(index, **_DEFAULTS | changes)


def going_to(rank: int = 0, world: int = 1, **changes: Any) -> Destination:
    return Destination(**_DEFAULTS | {"rotation": 3} | changes, ranks=Rank(rank, world))


def step_config(task: str = "train", **options: Any) -> StepConfig:
    """Return a configuration with any model."""
    return StepConfig(**{"model": "resnet18", "task": task, "batch_size": 4, **options})


def plan_data(data: str | None, info: ModelInfo, **sizes: Any) -> Plan:
    """Return the plan of a data set for a built model."""
    name = data or DATA_OF[info.task][0]
    task = info.task if name in DATA_OF[info.task] else task_of_data(name) or info.task
    return make_plan(name, task, info, **sizes)


def counted_flops(model: torch.nn.Module, plan: Plan, *, loss: Any = None) -> int | None:
    found = count(model, plan, loss=loss)
    return found.flops if found else None
