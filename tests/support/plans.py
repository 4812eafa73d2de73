"""Plans of data, as a test asks for their batches: on the CPU, of one rank of several."""

from __future__ import annotations

from typing import Any

import torch

from pytest_accel.measure.ranks import Alone
from pytest_accel.workloads.data.sources import Batch
from pytest_accel.workloads.feeding import Destination
from pytest_accel.workloads.plan import Plan

CPU = torch.device("cpu")
_SETTLED: dict[str, Any] = {"device": CPU, "dtype": torch.float32, "memory_format": "contiguous", "seed": 0}


class Rank(Alone):
    """One of several, as a source sees them."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def made(plan: Plan, index: int = 0, **changes: Any) -> Batch:
    return plan.make(index, **_SETTLED | changes)


def going_to(rank: int = 0, world: int = 1, **changes: Any) -> Destination:
    return Destination(**_SETTLED | {"rotation": 3} | changes, ranks=Rank(rank, world))
