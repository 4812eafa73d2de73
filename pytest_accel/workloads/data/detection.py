"""Detection data: COCO's annotations, images in buckets of a few sizes, batches of static shape, synthetic boxes.

An image is resized with its aspect kept and padded, right and bottom, to the smallest bucket that holds it. A batch has
one bucket, the same on every rank. Boxes are (center x, center y, width, height) as shares of the image without its
padding, which is what DINO reads.
"""

from __future__ import annotations

import gc
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.nn import functional as F

from pytest_accel.workloads.data.encoded import PackedNames, pack, read_whole
from pytest_accel.workloads.data.errors import (
    BoxesChangedWarning,
    DataError,
    Split,
    missing,
    read_json,
    reading,
    unreadable,
)
from pytest_accel.workloads.data.loader import ReadProblem
from pytest_accel.workloads.data.order import mixed_seed, stream_seed
from pytest_accel.workloads.data.pixels import decode_on_host, scale_and_shift
from pytest_accel.workloads.data.sets import IMAGENET_MEAN, IMAGENET_STD

if TYPE_CHECKING:
    from numpy.typing import NDArray

Tensor: TypeAlias = Any  # torch is untyped here
Bucket: TypeAlias = tuple[int, int]  # height, width in pixels

COCO_CLASSES = 80
COCO_PARTS = {"train": "train2017", "test": "val2017"}  # the boxes of the test images were never published
COCO_REMEDY = "Download the annotations again, or correct the entry."
ROUNDING_PX = 0.01  # boxes are published with two decimals: sticking out by less is no mistake
MAX_GT = 100  # boxes of an image, as many as COCO's evaluation counts
MAX_GT_STEP = 20  # boxes: sets that differ by a few have one shape


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CocoSet:
    """The images of one split, in the order of their ids, and their boxes."""

    folder: str  # of the images
    names: PackedNames
    sizes: NDArray[np.int32]  # (N, 2): height, width in pixels, as the annotations say
    boxes: NDArray[np.float32]  # (M, 4): left, top, right, bottom in pixels, inside their image; by image
    labels: NDArray[np.int64]  # (M,): 0 to 79, categories in the order of their ids
    ends: NDArray[np.int64]  # (N,): where the boxes of each image end

    def __len__(self) -> int:
        return len(self.names)

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many boxes each image has; 0 is valid."""
        return np.diff(self.ends, prepend=0)

    def name(self, index: int) -> str:
        return str(Path(self.folder, self.names[index]))

    def read(self, index: int) -> Tensor:
        """Return the bytes of an image's file."""
        return read_whole(self.name(index))

    def objects(self, index: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the boxes of an image, (n, 4), and their labels."""
        start = int(self.ends[index - 1]) if index else 0
        part = slice(start, int(self.ends[index]))
        return self.boxes[part], self.labels[part]


def open_coco(root: Path, split: Split) -> CocoSet:
    """Read one split under `root/coco`, or under the root itself; DataMissing where neither holds annotations."""
    part = COCO_PARTS[split]
    for folder in (root / "coco", root):
        if (folder / "annotations").is_dir():
            path = folder / "annotations" / f"instances_{part}.json"
            with _gc_off():
                content = read_json(path, COCO_REMEDY, object_hook=_without_outline)
                return _coco_set(content, path, folder / part)
    searched = [root / "coco/annotations", root / "annotations"]
    raise missing("coco", searched, "Extract COCO's 2017 images and annotations there, or name another root.")


def _without_outline(entry: dict[str, Any]) -> dict[str, Any]:
    """Drop outlines while parsing: they are most of the 448 MB of the training annotations."""
    entry.pop("segmentation", None)
    return entry


@contextmanager
def _gc_off() -> Iterator[None]:
    """Keep the garbage collector from scanning millions of new objects again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _coco_set(content: Any, path: Path, images_folder: Path) -> CocoSet:
    categories = _entries(content, "categories", path, lambda entry: entry["name"])
    if not 0 < len(categories) <= COCO_CLASSES:
        raise unreadable(path, f"{len(categories)} categories, not 1 to {COCO_CLASSES}", COCO_REMEDY)
    labels = {number: label for label, number in enumerate(sorted(categories))}
    images = _entries(content, "images", path, _image)
    if not images:
        raise unreadable(path, "lists no image", COCO_REMEDY)
    ids = sorted(images)
    names = [images[number][0] for number in ids]
    _check_files(names, images_folder)
    place_of = {number: place for place, number in enumerate(ids)}

    def annotation(entry: Any) -> tuple[int, int, list[float]] | None:
        place, label = place_of[_whole(entry["image_id"])], labels[_whole(entry["category_id"])]
        if entry.get("iscrowd", 0) not in (0, 1):
            raise ValueError(f"iscrowd {entry['iscrowd']!r} is neither 0 nor 1")
        return None if entry.get("iscrowd", 0) else (place, label, _box(entry["bbox"]))

    found = _entries(content, "annotations", path, annotation)
    objects = [each for each in found.values() if each is not None]  # without crowds
    image_of = np.array([each[0] for each in objects], np.int64)
    boxes = np.array([each[2] for each in objects], np.float64).reshape(-1, 4)
    sizes = np.array([images[number][1:] for number in ids], np.int32)
    kept = _clip(boxes, sizes[image_of], path)
    order = np.flatnonzero(kept)
    order = order[np.argsort(image_of[order], kind="stable")]
    return CocoSet(
        folder=str(images_folder),
        names=pack(names),
        sizes=sizes,
        boxes=boxes[order].astype(np.float32),
        labels=np.array([each[1] for each in objects], np.int64)[order],
        ends=np.cumsum(np.bincount(image_of[order], minlength=len(ids))),
    )


def _entries(content: Any, key: str, path: Path, parse: Callable[[Any], Any]) -> dict[int, Any]:
    """Parse the entries of a list by id; DataError with the entry that cannot be read."""
    entries = content.get(key) if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise unreadable(path, f"has no list {key!r}", "Valid: the layout of COCO's instances_*.json.")
    found: dict[int, Any] = {}
    for place, entry in enumerate(entries):
        where = f"{path}: {key}[{place}]"
        try:
            number = _whole(entry["id"])
            where += f" (id {number})"
            parsed = parse(entry)
        except KeyError as error:
            problem = f"has no {error}" if isinstance(error.args[0], str) else f"{error} is not listed"
            raise unreadable(where, problem, COCO_REMEDY) from None
        except (TypeError, ValueError, AttributeError) as error:
            raise unreadable(where, str(error), COCO_REMEDY) from None
        if number in found:
            raise unreadable(where, f"the id {number} is another entry's already", COCO_REMEDY)
        found[number] = parsed
    return found


def _image(entry: Any) -> tuple[str, int, int]:
    name, height, width = entry["file_name"], _whole(entry["height"]), _whole(entry["width"])
    if not isinstance(name, str) or name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise ValueError(f"file_name {name!r} is not the name of a file beside the others")
    if not (0 < height < 2**31 and 0 < width < 2**31):
        raise ValueError(f"{height} x {width} is not the size of an image")
    return name, height, width


def _whole(value: Any) -> int:
    """Return a whole number; some tools write 640.0."""
    if type(value) is float and math.isfinite(value) and value == int(value):
        value = int(value)
    if type(value) is not int:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _box(box: Any) -> list[float]:
    numbers = isinstance(box, list) and len(box) == 4 and all(type(each) in (int, float) for each in box)
    if not numbers or not all(abs(each) < 1e9 for each in box):  # nor is NaN
        raise ValueError(f"the box {box!r} is not four finite numbers: left, top, width, height")
    return box


def _check_files(names: list[str], folder: Path) -> None:
    """Find missing files with one listing: 118,287 single checks take a file system minutes."""
    with reading(folder), os.scandir(folder) as entries:
        there = {entry.name for entry in entries}
    absent = [name for name in names if name not in there]
    if absent:
        more = f", and so are {len(absent) - 1} more" if len(absent) > 1 else ""
        remedy = "Extract the images of this split there, all of them."
        raise unreadable(folder / absent[0], f"missing{more}", remedy)


def _clip(boxes: NDArray[np.float64], sizes: NDArray[np.int32], path: Path) -> NDArray[np.bool_]:
    """Turn widths into right sides and clip in place; return which boxes are left, with a warning if any changed."""
    boxes[:, 2:] += boxes[:, :2]
    before = boxes.copy()
    limits = sizes[:, ::-1].astype(np.float64)
    np.clip(boxes[:, :2], 0, limits, out=boxes[:, :2])
    np.clip(boxes[:, 2:], 0, limits, out=boxes[:, 2:])
    stored = boxes.astype(np.float32)  # rounding may close a narrow box
    kept = (stored[:, 2] > stored[:, 0]) & (stored[:, 3] > stored[:, 1])
    clipped = int((kept & (np.abs(before - boxes) > ROUNDING_PX).any(axis=1)).sum())
    dropped = int((~kept).sum())
    if clipped or dropped:
        said = (
            f"{clipped} boxes were clipped to their images, {dropped} were empty or outside and were dropped"
        )
        warnings.warn(f"{path}: {said}.", BoxesChangedWarning, stacklevel=4)
    result: NDArray[np.bool_] = kept
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Resizing:
    """The sizes that images are resized to, and the buckets that hold them."""

    short_sides: tuple[int, ...]  # one of them at random: training over several scales
    longest: int  # pixels of a long side at most: the image is shrunk where it would be longer
    buckets: tuple[Bucket, ...]

    def resized(self, sizes: NDArray[Any], short_sides: NDArray[Any]) -> NDArray[np.int64]:
        """Return the heights and widths, (N, 2), of images of these sizes with these short sides."""
        short, long = sizes.min(axis=1), sizes.max(axis=1)
        scale = np.minimum(short_sides / short, self.longest / long)
        resized: NDArray[np.int64] = np.maximum(1, np.rint(sizes * scale[:, None])).astype(np.int64)
        return resized

    def bucket_of(self, resized: NDArray[Any]) -> NDArray[np.int64]:
        """Return the number of the smallest bucket that holds each resized image."""
        buckets = np.array(self.buckets)
        fits = (resized[:, None, :] <= buckets).all(axis=2)
        areas = np.where(fits, buckets.prod(axis=1), np.iinfo(np.int64).max)
        smallest: NDArray[np.int64] = areas.argmin(axis=1)
        return smallest


# Padding as a share of all pixels, on the sizes of COCO's 5,000 validation images of 2017. Sides are multiples of 32,
# the stride of the backbones' last stage.

# Short side 800, long side to 1333, as Faster R-CNN's 1x schedule: 8.4 % (16.9 % with one bucket a direction).
ONE_SCALE = Resizing(
    short_sides=(800,), longest=1333, buckets=((800, 1088), (800, 1344), (1088, 800), (1344, 800))
)
# Short side 480 to 800, as DINO is trained: 17.4 % (45 % with the two largest alone, 15.2 % with ten buckets).
MANY_SCALES = Resizing(
    short_sides=tuple(range(480, 801, 32)),
    longest=1333,
    buckets=(
        *((576, 768), (640, 928), (736, 1024), (800, 1120), (800, 1344)),
        *((864, 640), (1024, 768), (1344, 800)),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionRequest:
    """Samples of one rank and one step, their bucket, and the seed of their mirroring."""

    bucket: Bucket
    indices: Sequence[int]
    sizes: Sequence[tuple[int, int]]  # height and width that each is resized to
    seed: int | None = None  # of the first, the next one has the next; None: no image is mirrored


class BucketOrder:
    """One rank's endless share of a set whose images differ in size; every image once an epoch, for any world.

    Each epoch every image gets a short side, and by it a bucket. What an epoch leaves in a bucket, too little for a step
    of all ranks, is filled up with that bucket's images of the following epochs: a step may cross the end of an
    epoch, no image is dropped or repeated within its epoch.
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
        self.sizes = sizes
        self.resizing = resizing
        self.batch_size = batch_size
        self.rank = rank
        self.world = world
        self.seed = seed

    def requests(self, *, augment: bool) -> Iterator[DetectionRequest]:
        """Yield this rank's share of every step."""
        first_seed = stream_seed(self.seed, self.rank)
        for step, (bucket, taken) in enumerate(self._steps()):
            yield DetectionRequest(
                bucket=self.resizing.buckets[bucket],
                indices=taken[:, 1].tolist(),
                sizes=[(height, width) for height, width in taken[:, 2:].tolist()],
                seed=first_seed + step * self.batch_size if augment else None,
            )

    def _steps(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield the bucket and the rows (epoch, index, height, width) of every step."""
        waiting = [np.empty((0, 4), np.int64) for _ in self.resizing.buckets]
        drawn = 0  # epochs
        together = self.world * self.batch_size
        for epoch in count():
            if drawn <= epoch:
                drawn = self._draw(drawn, waiting)
            owed = np.array([int((rows[:, 0] <= epoch).sum()) for rows in waiting])
            turns = np.repeat(np.arange(len(waiting)), -(-owed // together))
            random = torch.Generator().manual_seed(
                mixed_seed(self.seed, -1 - epoch)
            )  # not that of the images
            for bucket in turns[torch.randperm(len(turns), generator=random).numpy()].tolist():
                while len(waiting[bucket]) < together:
                    drawn = self._draw(drawn, waiting)
                taken, waiting[bucket] = np.split(waiting[bucket], [together])
                yield bucket, taken[self.rank * self.batch_size :][: self.batch_size]

    def _draw(self, epoch: int, waiting: list[NDArray[np.int64]]) -> int:
        """Append the shuffled images of an epoch to their buckets, and return the next epoch."""
        random = torch.Generator().manual_seed(mixed_seed(self.seed, epoch))
        shuffled = torch.randperm(len(self.sizes), generator=random).numpy()
        short_sides = np.array(self.resizing.short_sides)
        chosen = torch.randint(len(short_sides), (len(shuffled),), generator=random).numpy()
        resized = self.resizing.resized(self.sizes[shuffled], short_sides[chosen])
        rows = np.column_stack([np.full(len(shuffled), epoch), shuffled, resized])
        buckets = self.resizing.bucket_of(resized)
        for bucket, already in enumerate(waiting):
            waiting[bucket] = np.concatenate([already, rows[buckets == bucket]])
        return epoch + 1


class DetectionBatch(NamedTuple):
    """A batch: bytes as a worker makes it; images on the device as a model reads it."""

    pixels: Tensor  # uint8, or normalized, (batch, 3, height, width); zeros where the padding is
    sizes: Tensor  # int64 (batch, 2): height and width of the image inside
    boxes: Tensor  # float32 (batch, max_gt, 4); zeros where there is none
    labels: Tensor  # int64 (batch, max_gt)
    valid: Tensor  # bool (batch, max_gt): which boxes are real; they come first


class DetectionReader:
    """Reads one batch in a loader's worker: decodes, resizes, mirrors, pads; errors name the sample."""

    def __init__(self, images: CocoSet, *, max_gt: int = MAX_GT) -> None:
        fullest = int(images.counts.argmax())
        if images.counts[fullest] > max_gt:
            raise ValueError(
                f"max_gt: {max_gt} are too few for {images.name(fullest)}, which has {images.counts[fullest]} boxes: "
                "missing ones would be taught as background. Use max_gt_of(images)."
            )
        self._images = images
        self._max_gt = max_gt

    def __getitem__(self, wanted: DetectionRequest) -> DetectionBatch | ReadProblem:
        how_many, max_gt = len(wanted.indices), self._max_gt
        batch = DetectionBatch(
            pixels=torch.zeros(how_many, 3, *wanted.bucket, dtype=torch.uint8),
            sizes=torch.tensor(wanted.sizes),
            boxes=torch.zeros(how_many, max_gt, 4),
            labels=torch.zeros(how_many, max_gt, dtype=torch.int64),
            valid=torch.zeros(how_many, max_gt, dtype=torch.bool),
        )
        try:
            for place, (index, size) in enumerate(zip(wanted.indices, wanted.sizes, strict=True)):
                pixels, (boxes, labels) = self._pixels(index, size), self._objects(index)
                if wanted.seed is not None and Random(wanted.seed + place).random() < 0.5:  # noqa: S311 - no secret
                    pixels = pixels.flip(-1)
                    boxes = torch.cat([1 - boxes[:, :1], boxes[:, 1:]], dim=1)
                batch.pixels[place, :, : size[0], : size[1]] = pixels
                batch.boxes[place, : len(boxes)] = boxes
                batch.labels[place, : len(boxes)] = labels
                batch.valid[place, : len(boxes)] = True
        except DataError as error:
            return ReadProblem(str(error))
        return batch

    def _pixels(self, index: int, size: tuple[int, int]) -> Tensor:
        images, name = self._images, self._images.name(index)
        pixels = decode_on_host(images.read(index), name)
        if tuple(pixels.shape[1:]) != tuple(images.sizes[index]):
            raise unreadable(
                name,
                f"{pixels.shape[1]} x {pixels.shape[2]} pixels, and its boxes are for "
                f"{images.sizes[index][0]} x {images.sizes[index][1]}",
                "Extract the image again: the annotations are for another one.",
            )
        return F.interpolate(pixels[None], size=size, mode="bilinear", align_corners=False, antialias=True)[0]

    def _objects(self, index: int) -> tuple[Tensor, Tensor]:
        corners, labels = self._images.objects(index)
        height, width = self._images.sizes[index].tolist()
        shares = torch.tensor(corners) / torch.tensor((width, height, width, height))
        centers, extents = (shares[:, :2] + shares[:, 2:]) / 2, shares[:, 2:] - shares[:, :2]
        return torch.cat([centers, extents], dim=1), torch.tensor(labels)


def max_gt_of(images: CocoSet) -> int:
    """Return the number of boxes an image of a batch has room for: MAX_GT, or more where the fullest needs it."""
    most = int(images.counts.max(initial=0))
    return max(MAX_GT, -(-most // MAX_GT_STEP) * MAX_GT_STEP)


def corners_px(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Turn shares (batch, n, 4) of images of these sizes (batch, 2) into (left, top, right, bottom) in pixels."""
    center, half = boxes[..., :2], boxes[..., 2:] / 2
    extent = sizes.flip(-1).to(boxes.dtype)[:, None].repeat(1, 1, 2)
    return torch.cat([center - half, center + half], dim=-1) * extent


def image_mask(sizes: Tensor, height: int, width: int) -> Tensor:
    """Return where the images are: bool (batch, height, width), on the device of the sizes, without waiting."""
    rows = torch.arange(height, device=sizes.device) < sizes[:, :1]
    columns = torch.arange(width, device=sizes.device) < sizes[:, 1:]
    return rows[:, :, None] & columns[:, None, :]


class DetectionTransform:
    """Convert a host batch to a model's inputs on the device, without waiting; shapes depend on the bucket alone."""

    def __init__(
        self,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self._device = device
        self._memory_format = memory_format
        self._scale, self._shift = scale_and_shift(IMAGENET_MEAN, IMAGENET_STD, device=device, dtype=dtype)

    def __call__(self, batch: DetectionBatch) -> DetectionBatch:
        pixels, sizes, boxes, labels, valid = (tensor.to(self._device, non_blocking=True) for tensor in batch)
        mask = image_mask(sizes, *pixels.shape[-2:])
        images = torch.addcmul(self._shift, pixels.to(self._scale.dtype), self._scale)
        images = (images * mask[:, None]).contiguous(memory_format=self._memory_format)
        return DetectionBatch(images, sizes, boxes, labels, valid)


# Statistics of COCO that synthetic boxes follow, because the cost of a step depends on its targets:
# - 118,287 training images of 2017 hold 849,949 objects without crowds (github.com/cocodataset/cocoapi, issue 117),
#   1,021 images none (issue 76);
# - half of the images have at most 4 objects, 99 % between 1 and 33 (2014; notes of github.com/Lextal/SotA-CV);
# - 41 % of the objects are small (below 32 x 32 pixels), 34 % medium, 24 % large (from 96 x 96), by outline area
#   (cocodataset.org, detection evaluation); here by box area.
# Not published: log-uniform sides within a class, log-uniform aspects from 1:2 to 2:1, uniform places and labels.
EMPTY_SHARE = 1_021 / 118_287
# 1 + floor(Weibull): mean 7.27 (published: 7.25 of non-empty images), median 4, 99 % at most 39.
COUNT_SHAPE, COUNT_SCALE = 0.83, 6.1
SMALL_SHARE, MEDIUM_SHARE = 0.41, 0.34
SIDES_PX = (4.0, 32.0, 96.0, 480.0)  # bounds of the size classes, in a photograph of 480 x 640
PHOTOGRAPH_PX = (480, 640)
WIDEST = 2.0  # width over height, or height over width


def synthetic_targets(
    count: int, *, max_gt: int = MAX_GT, generator: torch.Generator, classes: int = COCO_CLASSES
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw boxes, labels and validity of `count` images, as in a DetectionBatch, on the generator's device.

    Images have at most max_gt objects.
    """

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=generator.device)

    sizes = _box_sizes(uniform(count, max_gt), uniform(count, max_gt), uniform(count, max_gt))
    centers = sizes / 2 + uniform(count, max_gt, 2) * (1 - sizes)
    some = 1 + (COUNT_SCALE * (-torch.log1p(-uniform(count))) ** (1 / COUNT_SHAPE)).floor()
    numbers = torch.where(uniform(count) < EMPTY_SHARE, 0, some).to(torch.int64)
    valid = torch.arange(max_gt, device=generator.device) < numbers[:, None]
    labels = torch.randint(classes, (count, max_gt), generator=generator, device=generator.device)
    boxes = torch.cat([centers, sizes], dim=2) * valid[..., None]
    return boxes, labels * valid, valid


def _box_sizes(kind: Tensor, size: Tensor, aspect: Tensor) -> Tensor:
    """Return widths and heights as shares of a photograph's, in a last dimension, for uniform draws."""
    logs = [math.log(side) for side in SIDES_PX]
    small, medium = kind < SMALL_SHARE, kind < SMALL_SHARE + MEDIUM_SHARE
    lower = torch.where(small, logs[0], torch.where(medium, logs[1], logs[2]))
    upper = torch.where(small, logs[1], torch.where(medium, logs[2], logs[3]))
    side = torch.exp(lower + size * (upper - lower))
    stretch = torch.exp((aspect - 0.5) * math.log(WIDEST))  # of one side; the other shrinks by as much
    height, width = PHOTOGRAPH_PX
    return torch.stack([side * stretch / width, side / stretch / height], dim=-1).clamp(max=1)


def synthetic_detection(
    count: int,
    bucket: Bucket,
    *,
    max_gt: int = MAX_GT,
    generator: torch.Generator,
    classes: int = COCO_CLASSES,
) -> DetectionBatch:
    """Draw a batch whose images fill their bucket, on the generator's device."""
    device = generator.device
    targets = synthetic_targets(count, max_gt=max_gt, generator=generator, classes=classes)
    shape = (count, 3, *bucket)
    pixels = torch.randint(256, shape, dtype=torch.uint8, generator=generator, device=device)
    sizes = torch.tensor(bucket, device=device).expand(count, 2).contiguous()
    return DetectionBatch(pixels, sizes, *targets)
