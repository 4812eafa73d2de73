"""Photographs of any size in batches of a few sizes: a step that is compiled once for each, and little padding.

An image is resized as detectors are trained, keeping its shape, and lies at the top left of the smallest bucket that
holds it. A batch comes from one bucket, and so does that of every other rank at that step: no rank waits for another
that has larger images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from pytest_accel.workloads.data.order import check_share, mixed_seed

if TYPE_CHECKING:
    from numpy.typing import NDArray

Bucket: TypeAlias = tuple[int, int]  # height, width in pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class Resizing:
    """To which sizes images are brought, and the buckets that hold them."""

    short_sides: tuple[int, ...]  # one of them by chance: training over several scales
    longest: int  # pixels that a long side may have: the image is made smaller where it would be longer
    buckets: tuple[Bucket, ...]

    def __post_init__(self) -> None:
        if not self.short_sides or min(self.short_sides) < 1 or max(self.short_sides) > self.longest:
            raise ValueError(
                f"short_sides: {self.short_sides} with a longest side of {self.longest}. "
                "Valid: positive numbers of pixels, none above the longest side."
            )
        for corner in ((max(self.short_sides), self.longest), (self.longest, max(self.short_sides))):
            if not any(corner[0] <= height and corner[1] <= width for height, width in self.buckets):
                raise ValueError(
                    f"buckets: none of {self.buckets} holds an image of {corner[0]} x {corner[1]} pixels. "
                    "Valid: one at least for the largest upright and the largest lying image."
                )

    def resized(self, sizes: NDArray[Any], short_sides: NDArray[Any]) -> NDArray[np.int64]:
        """Return the heights and widths, (N, 2), of images of these sizes when they have these short sides."""
        short, long = sizes.min(axis=1), sizes.max(axis=1)
        scale = np.minimum(short_sides / short, self.longest / long)
        resized: NDArray[np.int64] = np.maximum(1, np.rint(sizes * scale[:, None])).astype(np.int64)
        return resized

    def bucket_of(self, resized: NDArray[Any]) -> NDArray[np.int64]:
        """Return the number of the smallest bucket that holds each of the resized images."""
        buckets = np.array(self.buckets)
        fits = (resized[:, None, :] <= buckets).all(axis=2)
        areas = np.where(fits, buckets.prod(axis=1), np.iinfo(np.int64).max)
        smallest: NDArray[np.int64] = areas.argmin(axis=1)
        return smallest

    def padded_share(self, sizes: NDArray[Any]) -> float:
        """Return how much of what a model computes on is padding, over these images at every short side."""
        images = np.concatenate([self.resized(sizes, np.full(len(sizes), each)) for each in self.short_sides])
        buckets = np.array(self.buckets)[self.bucket_of(images)]
        return 1 - float(images.prod(axis=1).sum() / buckets.prod(axis=1).sum())


# Padding was measured on the sizes of COCO's 5,000 validation images of 2017, `Resizing.padded_share`. Sides are multiples
# of 32, the stride of the backbones' last stage.

# Short side 800, long side to 1333, as Faster R-CNN's 1x schedule: 8.4 %. With one bucket for each direction it is 16.9 %.
ONE_SCALE = Resizing(
    short_sides=(800,), longest=1333, buckets=((800, 1088), (800, 1344), (1088, 800), (1344, 800))
)
# Short side 480 to 800, as DINO is trained: 17.4 %. With the two largest alone it is 45 %, with ten buckets 15.2 %; a
# greedy search over multiples of 32 chose them.
MANY_SCALES = Resizing(
    short_sides=tuple(range(480, 801, 32)),
    longest=1333,
    buckets=(
        (576, 768),
        (640, 928),
        (736, 1024),
        (800, 1120),
        (800, 1344),
        (864, 640),
        (1024, 768),
        (1344, 800),
    ),
)


class Share(NamedTuple):
    """One rank's samples of a step, all for one bucket."""

    bucket: Bucket
    indices: list[int]
    sizes: list[tuple[int, int]]  # height and width to which each is resized


class BucketOrder:
    """One rank's endless share of a set whose images differ in size; every image once an epoch, whatever the world.

    Each epoch every image is given a short side, and by it a bucket. What an epoch leaves over in a bucket, too little
    for a step of all ranks, is filled up with that bucket's images of the epochs after: a step straddles the end of an
    epoch, no image is dropped, and none comes twice in its epoch.
    """

    def __init__(
        self,
        *,
        sizes: NDArray[Any],  # (N, 2): height, width of each image
        resizing: Resizing,
        batch_size: int,
        rank: int = 0,
        world: int = 1,
        seed: int = 0,
    ) -> None:
        check_share(length=len(sizes), batch_size=batch_size, rank=rank, world=world)
        self.sizes = sizes
        self.resizing = resizing
        self.batch_size = batch_size
        self.rank = rank
        self.world = world
        self.seed = seed

    def __iter__(self) -> Iterator[Share]:
        for epoch in self.epochs():
            yield from epoch

    def epochs(self) -> Iterator[Iterator[Share]]:
        """Yield the steps of one epoch after another: when they are taken, every image of the epoch has been."""
        waiting = _Waiting(self)
        for epoch in count():
            yield self._steps(epoch, waiting)

    def _steps(self, epoch: int, waiting: _Waiting) -> Iterator[Share]:
        together = self.world * self.batch_size
        turns = np.repeat(np.arange(len(self.resizing.buckets)), -(-waiting.owed(epoch) // together))
        random = torch.Generator().manual_seed(mixed_seed(self.seed, -1 - epoch))  # not what drew the images
        for bucket in turns[torch.randperm(len(turns), generator=random).numpy()].tolist():
            taken = waiting.take(bucket, together)[self.rank * self.batch_size :][: self.batch_size]
            yield Share(
                self.resizing.buckets[bucket],
                taken[:, 1].tolist(),
                [(height, width) for height, width in taken[:, 2:].tolist()],
            )


class _Waiting:
    """What was drawn and not taken, bucket by bucket: rows of epoch, index, height, width."""

    def __init__(self, order: BucketOrder) -> None:
        self._order = order
        self._rows = [np.empty((0, 4), np.int64) for _ in order.resizing.buckets]
        self._drawn = 0  # epochs

    def owed(self, epoch: int) -> NDArray[np.int64]:
        """Return how many images of each bucket are still to be taken until this epoch is over."""
        while self._drawn <= epoch:
            self._draw()
        return np.array([int((rows[:, 0] <= epoch).sum()) for rows in self._rows])

    def take(self, bucket: int, how_many: int) -> NDArray[np.int64]:
        while len(self._rows[bucket]) < how_many:
            self._draw()
        taken, self._rows[bucket] = np.split(self._rows[bucket], [how_many])
        return taken

    def _draw(self) -> None:
        order, epoch = self._order, self._drawn
        random = torch.Generator().manual_seed(mixed_seed(order.seed, epoch))
        turn = torch.randperm(len(order.sizes), generator=random).numpy()
        choices = np.array(order.resizing.short_sides)
        chosen = torch.randint(len(choices), (len(turn),), generator=random).numpy()
        resized = order.resizing.resized(order.sizes[turn], choices[chosen])
        rows = np.column_stack([np.full(len(turn), epoch), turn, resized])
        buckets = order.resizing.bucket_of(resized)
        for bucket, waiting in enumerate(self._rows):
            self._rows[bucket] = np.concatenate([waiting, rows[buckets == bucket]])
        self._drawn += 1
