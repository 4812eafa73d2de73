"""Data plans and step configurations for tests: on the CPU, of one rank of several."""

from typing import Any

import torch

from pytest_accel.measure.rounds import Alone
from pytest_accel.workloads.build import DATA_OF, make_plan
from pytest_accel.workloads.config import StepConfig
from pytest_accel.workloads.data.sources import Batch
from pytest_accel.workloads.demand import count
from pytest_accel.workloads.input_pipeline import ModelInfo, Plan
from pytest_accel.workloads.tasks.detection import ScenePlan, resizing_of


class Rank(Alone):
    """One of several ranks."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def made(plan: Plan, index: int = 0, **changes: Any) -> Batch:
    return plan.make(index, **{"seed": 0, "device": torch.device("cpu")} | changes)


def step_config(task: str = "train", *, rank: int = 0, world: int = 1, **options: Any) -> StepConfig:
    """Return a configuration with any model."""
    defaults = {"model": "resnet18", "batch_size": 4, "memory_format": "contiguous"}
    return StepConfig(task=task, ranks=Rank(rank, world), **defaults | options)


def plan_data(data: str | None, info: ModelInfo, **sizes: Any) -> Plan:
    """Return the plan of a data set for a built model."""
    return make_plan(data or DATA_OF[info.task][0], info, **sizes)


def scene_plan(
    model: str = "zoo/dino-tiny", *, image_size: int | None = 64, batch_size: int = 2, **changes: Any
) -> ScenePlan:
    return ScenePlan(name="coco", batch_size=batch_size, resizing=resizing_of(model, image_size), **changes)


def counted_flops(model: torch.nn.Module, plan: Plan, *, loss: Any = None) -> int | None:
    return count(model, plan, loss=loss).flops
