"""What a trained model is worth: its accuracy on the test set, and how many steps make an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from pytest_accel.measure.errors import StepError
from pytest_accel.measure.ranks import Ranks
from pytest_accel.workloads.feeding import DataChoices, Destination, Feed
from pytest_accel.workloads.plan import Plan
from pytest_accel.workloads.precision import Precision
from pytest_accel.workloads.tasks.images import evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Knows the data that a step trains on, and the model that it trains."""

    model: Any
    feed: Feed
    feeding: DataChoices
    plan: Plan
    destination: Destination
    precision: Precision
    ranks: Ranks
    micro_batches: int = 1  # of a step; the plan and the order are those of one

    @property
    def has_test_set(self) -> bool:
        """Only real, labelled data has one."""
        return self.feed.order is not None and self.plan.classifies

    def steps_for_epochs(self, epochs: int, epoch_size: int | None) -> int:
        """Return how many steps take all samples so many times; synthetic ones have no end, and need a size."""
        if self.feed.order is not None:
            return -(-self.feed.order.steps_for_epochs(epochs) // self.micro_batches)
        if epoch_size is None:
            raise StepError(
                f"epoch_size: data={self.plan.name!r} is synthetic here and has no epochs. "
                "Say how many images count as one, or give real data with --accel-data."
            )
        return -(-epochs * epoch_size // (self.plan.work * self.micro_batches * self.ranks.size))

    def accuracy(self) -> float:
        """Return the share of the test set that the model, as trained so far, labels right. Waits for the device.

        Eager, whatever the step does: it is not timed, and another mode would be compiled again.
        """
        self._share_statistics()
        right, seen = torch.zeros((), device=self.destination.device, dtype=torch.long), 0
        self.model.eval()
        try:
            with torch.inference_mode(), self.precision.autocast(self.destination.device):
                for inputs, labels in evaluation(self.feeding, self.plan, self.destination):
                    right += (self.model(inputs).argmax(-1) == labels).sum()
                    seen += len(labels)
        finally:
            self.model.train()
        told = self.ranks.gather([int(right), seen])
        return sum(part[0] for part in told) / sum(part[1] for part in told)

    def _share_statistics(self) -> None:
        """Give all ranks the running statistics of rank 0: DDP does so only at the start of its next step."""
        if self.ranks.size > 1 and torch.distributed.is_initialized():
            for buffer in self.model.buffers():
                torch.distributed.broadcast(buffer, 0)
