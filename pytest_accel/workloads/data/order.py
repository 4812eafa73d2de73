"""Which sample a rank takes at which step: every sample once an epoch, whatever the world, the batch, the length.

Training has no epochs to stop at. Its stream is the concatenation of permutations of all samples, one an epoch, and
it is dealt in batches of one size: step after step, and within a step rank after rank. Batches straddle the ends of
epochs, so that no sample is dropped, none comes twice in an epoch, and no rank runs dry before another.
"""

from __future__ import annotations

import hashlib
from itertools import accumulate, count
from math import ceil
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Tensor: TypeAlias = Any  # torch is untyped here


class TrainingOrder:
    """One rank's endless share of the stream; a DataLoader takes it as `sampler=` with `batch_size=None`.

    `groups` are the lengths of runs of samples that lie together on disk, such as shards. They are shuffled as wholes
    and read in order inside; without groups every sample is shuffled on its own.
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
        check_share(length=length, batch_size=batch_size, rank=rank, world=world)
        if groups is not None and (sum(groups) != length or min(groups) < 1):
            raise ValueError(
                f"groups: {len(groups)} groups of {sum(groups)} samples are not the {length} samples of the set. "
                "Valid: positive lengths that add up to it."
            )
        self.length = length
        self.batch_size = batch_size
        self.rank = rank
        self.world = world
        self.seed = seed
        self.shuffle = shuffle
        self.groups = None if groups is None else tuple(groups)
        self._kept: dict[
            int, Tensor
        ] = {}  # permutations of the latest two epochs, which a batch may straddle

    def indices(self, step: int) -> list[int]:
        """Return the samples of this rank's batch at a step, from any step: nothing has to come before it."""
        if step < 0:
            raise ValueError(f"step: {step} is negative. Steps count from 0.")
        position = (step * self.world + self.rank) * self.batch_size
        taken: list[int] = []
        while len(taken) < self.batch_size:
            epoch, start = divmod(position + len(taken), self.length)
            taken += self._permutation(epoch)[start : start + self.batch_size - len(taken)].tolist()
        return taken

    def __iter__(self) -> Iterator[list[int]]:
        return map(self.indices, count())

    def steps_for_epochs(self, epochs: int) -> int:
        """Return how many steps take every sample that many times; the last may reach into the next epoch."""
        return -(-epochs * self.length // (self.world * self.batch_size))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": {}}  # made again in no time; not worth sending to a worker

    def _permutation(self, epoch: int) -> Tensor:
        found = self._kept.get(epoch)
        if found is None:
            found = self._permute(epoch)
            self._kept = {each: kept for each, kept in self._kept.items() if each == epoch - 1} | {
                epoch: found
            }
        return found

    def _permute(self, epoch: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(self.length)
        random = torch.Generator().manual_seed(mixed_seed(self.seed, epoch))
        if self.groups is None:
            return torch.randperm(self.length, generator=random)
        ends = list(accumulate(self.groups))
        turns = torch.randperm(len(ends), generator=random).tolist()
        return torch.cat([torch.arange(ends[each] - self.groups[each], ends[each]) for each in turns])


class EvaluationOrder:
    """One rank's share of all samples, each exactly once over the ranks; the last batch may be partial.

    Shares differ by a sample at most. With more ranks than samples some shares are empty.
    """

    def __init__(self, *, length: int, batch_size: int, rank: int = 0, world: int = 1) -> None:
        check_share(length=length, batch_size=batch_size, rank=rank, world=world)
        self.length = length
        self.batch_size = batch_size
        self.rank = rank
        self.world = world

    @property
    def share(self) -> range:
        return range(self.rank, self.length, self.world)

    def __len__(self) -> int:
        return ceil(len(self.share) / self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, len(self.share), self.batch_size):
            yield list(self.share[start : start + self.batch_size])


def mixed_seed(seed: int, epoch: int) -> int:
    """Return one seed of two. Within 32 bits: a CPU's generator forgets the rest of a seed."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=4).digest(), "big")


def check_share(*, length: int, batch_size: int, rank: int, world: int) -> None:
    for name, value in (("length", length), ("batch_size", batch_size), ("world", world)):
        if value < 1:
            raise ValueError(f"{name}: {value} is not a positive number.")
    if not 0 <= rank < world:
        raise ValueError(f"rank: {rank} is not in a world of {world}. Valid: 0 to {world - 1}.")
