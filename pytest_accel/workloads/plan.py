"""What a step reads and what it is asked for: the one thing that tasks differ in, as steps see it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from math import gcd
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

import torch

from pytest_accel.workloads.data.order import TrainingOrder
from pytest_accel.workloads.data.sources import Batch, RotatingSource
from pytest_accel.workloads.feeding import DataChoices, Destination, Facts, Feed, Task

# What a model is for.
ModelTask: TypeAlias = Literal[
    "classification", "reconstruction", "language", "detection", "segmentation", "answering"
]
Loss: TypeAlias = Callable[[Any, Any], Any]  # what the model returned, targets -> a scalar

# Distinct batches that a step rotates through: one single batch would sit in a CPU's cache, and a
# model learns it by heart within ten steps. Four are enough; fewer where they would crowd the device.
ROTATION = 4
ROTATION_BYTES = 2 * 1024**3
# Ranks draw from seeds this far apart. Within 32 bits: a CPU's generator forgets the rest of a seed.
RANK_STRIDE = 1_000_003


class NamedLoss(NamedTuple):
    """A loss, and what a configuration calls it."""

    name: str
    function: Loss


class Plan(ABC):
    """What the batches of a benchmark look like, and what is made of them. Frozen: counts are kept under it."""

    __slots__ = ()

    name: str  # of the data
    batch_size: int  # of one rank
    unit: ClassVar[str]  # of the work of a step
    reconstructs: bool = False  # the target of an input is the input
    classifies: bool = False  # outputs are held against labels by their largest: there is an accuracy
    classes: int | None = None  # that a model must tell apart at the least; None: its output does not say

    @property
    @abstractmethod
    def work(self) -> int:
        """Units in one batch."""

    @property
    @abstractmethod
    def input_shape(self) -> str:
        """Of one sample, for a configuration: 3x224x224."""

    @property
    @abstractmethod
    def described(self) -> Facts:
        """What else defines the batches, for a configuration."""

    @abstractmethod
    def draw(self, random: torch.Generator, dtype: torch.dtype, memory_format: str) -> Batch:
        """Return one made-up batch, on the device of what it is drawn from."""

    @abstractmethod
    def on_meta(self) -> Batch:
        """Return a batch that has shapes and no contents, in fp32."""

    @abstractmethod
    def batch_bytes(self, dtype: torch.dtype) -> int:
        """Return what a made-up batch takes on the device."""

    @abstractmethod
    def loss(self, label_smoothing: float) -> NamedLoss:
        """Return what a step minimises unasked."""

    @abstractmethod
    def feed(self, choices: DataChoices, to: Destination, *, task: Task) -> Feed:
        """Open the source of its batches; DataError where real data is asked for and cannot be read."""

    def of_batch(self, batch_size: int) -> Self:
        """Return the same for another batch."""
        return replace(self, batch_size=batch_size)  # type: ignore[type-var] # all of them are dataclasses

    def rotation(self, dtype: torch.dtype, taken_at_once: int = 1) -> int:
        """Return how many distinct batches to keep: ROTATION, or at least two within ROTATION_BYTES.

        Of micro-batches, a number that shares no factor with those of a step: one step would else see what the last one saw.
        """
        fewest = max(2, min(ROTATION, ROTATION_BYTES // self.batch_bytes(dtype)))
        return next(number for number in count(fewest) if gcd(number, taken_at_once) == 1)

    def make(
        self,
        index: int,
        *,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        memory_format: str,
        rank: int = 0,
    ) -> Batch:
        """Return one made-up batch. The same seed, index and rank give the same batch."""
        random = torch.Generator(device).manual_seed(seed_of(rank, seed * ROTATION + index))
        return self.draw(random, dtype, memory_format)

    def synthetic(self, to: Destination) -> Feed:
        """Feed a step from a few batches that are made on the device once."""
        batches = [
            self.make(
                index,
                seed=to.seed,
                rank=to.ranks.rank,
                device=to.device,
                dtype=to.dtype,
                memory_format=to.memory_format,
            )
            for index in range(to.rotation)
        ]
        facts: Facts = {"data_source": "synthetic", "distinct_batches": to.rotation}
        return Feed(source=RotatingSource(batches), configuration=facts)

    def order(
        self,
        to: Destination,
        *,
        length: int,
        shuffle: bool = True,
        groups: tuple[int, ...] | None = None,
    ) -> TrainingOrder:
        """Return which samples of a set this rank takes, step after step."""
        return TrainingOrder(
            length=length,
            batch_size=self.batch_size,
            rank=to.ranks.rank,
            world=to.ranks.size,
            seed=to.seed,
            shuffle=shuffle,
            groups=groups,
        )


def seed_of(rank: int, seed: int) -> int:
    """Return the seed of a rank: every rank draws its own numbers, and rank 0 those of a single device."""
    return seed + rank * RANK_STRIDE


def no_smoothing(label_smoothing: float, task: str) -> None:
    """Refuse what only a cross entropy over classes has."""
    if label_smoothing:
        raise ValueError(f"label_smoothing: {task} has none. Leave it out.")
