"""Training for epochs: how long each takes, what the model has learnt by then, when it reached a target."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from pytest_accel.measure.errors import StepError
from pytest_accel.measure.ranks import Ranks
from pytest_accel.workloads.steps import TrainStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Convergence:
    """What so many epochs came to."""

    epochs_s: tuple[float, ...]  # of training, without the judging between them; the first one compiles
    epoch_steps: int  # of the first
    accuracies: tuple[float, ...] = ()  # after each epoch; none where the data has no test set
    target: float | None = None

    @property
    def time_to_target_s(self) -> float | None:
        """The time of training until the end of the first epoch after which the target was met."""
        for epoch, accuracy in enumerate(self.accuracies, start=1):
            if self.target is not None and accuracy >= self.target:
                return sum(self.epochs_s[:epoch])
        return None

    def metrics(self) -> dict[str, float]:
        """As a run keeps them: an epoch is the typical one after the first."""
        figures = {"first_epoch_s": self.epochs_s[0]}
        if len(self.epochs_s) > 1:
            figures["epoch_s"] = median(self.epochs_s[1:])
        if self.accuracies:
            figures["accuracy"] = self.accuracies[-1]
        reached = self.time_to_target_s
        return figures if reached is None else {**figures, "time_to_target_s": reached}


def check_training(ranks: Ranks, *, epochs: object, epoch_size: object, ddp: bool) -> None:
    """Refuse what no epochs can be made of, before a model is built for it; StepError."""
    for name, value in (("epochs", epochs), ("epoch_size", epoch_size)):
        if value is not None and not (isinstance(value, int) and value > 0):
            raise StepError(f"{name}: {value!r} is not a positive whole number.")
    if not ddp and ranks.size > 1:
        raise StepError(
            "ddp=False, sharding: converge judges one model that every rank has whole. Leave them out."
        )


def train_epochs(
    step: TrainStep,
    *,
    epochs: int,
    epoch_size: int | None,
    target: float | None,
    synchronize: Callable[[], None],
    say: Callable[[str], None],
) -> Convergence:
    """Train from the first step on, and judge after every epoch; StepError where the target is not met."""
    judge = step.judge
    assert judge is not None  # the step is not closed
    if target is not None and not judge.has_test_set:  # said before hours of training, not after
        raise StepError(_not_judged(step, target))
    times_s: list[float] = []
    accuracies: list[float] = []
    taken = 0
    for epoch in range(1, epochs + 1):
        say(_progress(epoch, epochs, accuracies))
        until = judge.steps_for_epochs(epoch, epoch_size)
        begin = time.perf_counter()
        for _ in range(until - taken):
            step()
        synchronize()
        times_s.append(time.perf_counter() - begin)
        taken = until
        if judge.has_test_set:
            accuracies.append(judge.accuracy())
    found = Convergence(
        epochs_s=tuple(times_s),
        epoch_steps=judge.steps_for_epochs(1, epoch_size),
        accuracies=tuple(accuracies),
        target=target,
    )
    if target is not None and found.time_to_target_s is None:
        raise StepError(_missed(step, found, target))
    return found


def _progress(epoch: int, epochs: int, accuracies: list[float]) -> str:
    reached = f", accuracy {accuracies[-1]:.1%}" if accuracies else ""
    return f"epoch {epoch} of {epochs}{reached}"


def _not_judged(step: TrainStep, target: float) -> str:
    return (
        f"{step.info.name}: target={target:g} needs labelled images to judge by, and {step.configuration['data']} "
        f"is {step.configuration['data_source']} here or is not classified. "
        "Give real data with --accel-data, or leave the target out."
    )


def _missed(step: TrainStep, found: Convergence, target: float) -> str:
    name, epochs = step.info.name, len(found.epochs_s)
    return (
        f"{name}: an accuracy of {max(found.accuracies):.2%} in {epochs} epochs does not reach the target of {target:.2%}. "
        "Did numerics change, or is the learning rate wrong for this batch?"
    )
