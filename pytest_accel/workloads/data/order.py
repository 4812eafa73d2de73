"""Sample order: every sample once an epoch, for any number of ranks, batch size and length.

Training reads one endless stream: permutations of all samples, one an epoch, end to end. Each step takes
`world * batch_size` samples of it, rank after rank. Batches cross the ends of epochs, so that no sample is dropped or
repeated within an epoch, and no rank ends before another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Any, TypeAlias

import torch

Tensor: TypeAlias = Any  # torch is untyped here


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """Samples of one rank for one step or several, and the seed of their crops."""

    indices: Sequence[int]
    seed: int | None = None  # of the first sample, the next one has the next; None: center crops


class TrainingOrder:
    """One rank's endless share of the stream.

    `groups` are lengths of contiguous runs of samples, such as shards. Groups are shuffled; inside a group samples keep
    their order. Without groups all samples are shuffled.
    """

    def __init__(
        self,
        *,
        length: int,
        batch_size: int,
        rank: int = 0,
        world: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        groups: Sequence[int] | None = None,
    ) -> None:
        self.length = length
        self.batch_size = batch_size
        self.rank = rank
        self.world = world
        self.seed = seed
        self.shuffle = shuffle
        self.groups = None if groups is None else tuple(groups)
        self._kept: dict[int, Tensor] = {}  # permutations of the latest two epochs: a batch may need both

    def indices(self, step: int) -> list[int]:
        """Return the samples of this rank's batch at any step."""
        position = (step * self.world + self.rank) * self.batch_size
        taken: list[int] = []
        while len(taken) < self.batch_size:
            epoch, start = divmod(position + len(taken), self.length)
            taken += self._permutation(epoch)[start : start + self.batch_size - len(taken)].tolist()
        return taken

    def requests(self, *, augment: bool, at_once: int = 1) -> Iterator[BatchRequest]:
        """Yield a loader's requests, each for `at_once` steps.

        Seeds follow a sample's position in its rank's stream: they do not depend on workers or `at_once`.
        """
        first_seed = stream_seed(self.seed, self.rank)
        for step in count(step=at_once):
            indices = [index for each in range(step, step + at_once) for index in self.indices(each)]
            seed = first_seed + step * self.batch_size if augment else None
            yield BatchRequest(indices=indices, seed=seed)

    def steps_for_epochs(self, epochs: int) -> int:
        """Return how many steps read every sample that many times; the last may reach into the next epoch."""
        return -(-epochs * self.length // (self.world * self.batch_size))

    def _permutation(self, epoch: int) -> Tensor:
        found = self._kept.get(epoch)
        if found is None:
            found = self._permute(epoch)
            previous = {each: kept for each, kept in self._kept.items() if each == epoch - 1}
            self._kept = previous | {epoch: found}
        return found

    def _permute(self, epoch: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(self.length)
        random = torch.Generator().manual_seed(mixed_seed(self.seed, epoch))
        if self.groups is None:
            return torch.randperm(self.length, generator=random)
        ends = list(accumulate(self.groups))
        shuffled = torch.randperm(len(ends), generator=random).tolist()
        return torch.cat([torch.arange(ends[each] - self.groups[each], ends[each]) for each in shuffled])


class EvaluationOrder:
    """One rank's share of all samples, each exactly once over the ranks; the last batch may be partial.

    Shares differ by one sample at most. With more ranks than samples some shares are empty.
    """

    def __init__(self, *, length: int, batch_size: int, rank: int = 0, world: int = 1) -> None:
        self.batch_size = batch_size
        self._share = range(rank, length, world)

    def requests(self) -> Iterator[BatchRequest]:
        """Yield a loader's requests, one a batch."""
        for start in range(0, len(self._share), self.batch_size):
            yield BatchRequest(indices=self._share[start : start + self.batch_size])


def stream_seed(seed: int, rank: int) -> int:
    """Return the seed of the first sample in a rank's stream; streams of ranks do not overlap."""
    return (seed << 64) + (rank << 40)


def mixed_seed(seed: int, epoch: int) -> int:
    """Return one seed of two, within 32 bits: a CPU generator ignores the rest of a seed."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=4).digest(), "big")
