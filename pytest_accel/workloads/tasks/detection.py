"""Detection: COCO's images in buckets of a few sizes, or synthetic images with boxes of its statistics.

An image is resized with its aspect kept and padded, right and bottom, to the smallest bucket that holds it. A batch has
one bucket, the same on every rank. Boxes are (center x, center y, width, height) as shares of the image without its
padding, which is what DINO reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import prod
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pytest_accel.workloads.config import MEMORY_FORMATS, Configuration, Loss, StepConfig
from pytest_accel.workloads.data import files
from pytest_accel.workloads.data.loader import BatchRequest, TrainingOrder, mixed_seed, stream_seed
from pytest_accel.workloads.data.pixels import decode_on_host, resize_on_host, scale_and_shift
from pytest_accel.workloads.data.sources import Batch, LoaderSource
from pytest_accel.workloads.input_pipeline import InputPipeline, ModelInfo, Plan, Sizes, shape_name
from pytest_accel.workloads.models.detection import Predictions, Scenes, Targets, dino_loss

Bucket: TypeAlias = tuple[int, int]  # height, width in pixels

COCO_CLASSES = 80
COCO_PARTS = {"train": "train2017", "test": "val2017"}  # the boxes of the test images were never published
MAX_GT = 100  # boxes of an image, as many as COCO's evaluation counts; its fullest has 93


@dataclass(frozen=True, slots=True, kw_only=True)
class Resizing:
    """The sizes that images are resized to, and the buckets that hold them."""

    short_sides: tuple[int, ...]  # one of them at random: training over several scales
    longest: int  # pixels of a long side at most: the image is shrunk where it would be longer
    buckets: tuple[Bucket, ...]

    def resized(self, sizes: NDArray[Any], short_sides: NDArray[Any]) -> NDArray[np.int64]:
        short, long = sizes.min(axis=1), sizes.max(axis=1)
        scale = np.minimum(short_sides / short, self.longest / long)
        return np.maximum(1, np.rint(sizes * scale[:, None])).astype(np.int64)

    def bucket_of(self, resized: NDArray[Any]) -> NDArray[np.int64]:
        """Return the number of the smallest bucket that holds each resized image."""
        buckets = np.array(self.buckets)
        fits = (resized[:, None, :] <= buckets).all(axis=2)
        areas = np.where(fits, buckets.prod(axis=1), np.iinfo(np.int64).max)
        return areas.argmin(axis=1)


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
class DetectionRequest(BatchRequest):
    """Samples whose seed is that of their mirroring, and their bucket."""

    bucket: Bucket
    sizes: Sequence[tuple[int, int]]  # height and width that each is resized to


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BucketOrder:
    """One rank's endless share of a shuffled set whose images differ in size; every image once an epoch, for any world.

    Each epoch every image gets a short side, and by it a bucket. A bucket that holds enough images for all ranks is a
    step. What an epoch leaves in a bucket comes in the next one: no image is dropped or repeated within its epoch.
    """

    sizes: NDArray[Any]  # (N, 2): height, width of each image
    resizing: Resizing
    share: TrainingOrder

    def requests(self, *, augment: bool) -> Iterator[DetectionRequest]:
        share, resizing = self.share, self.resizing
        seed = stream_seed(share.seed, share.rank)
        waiting: list[list[tuple[int, tuple[int, int]]]] = [[] for _ in resizing.buckets]  # of all ranks
        short_sides = np.array(resizing.short_sides)
        for epoch in count():
            random = torch.Generator().manual_seed(mixed_seed(share.seed, epoch))
            shuffled = torch.randperm(len(self.sizes), generator=random).numpy()
            chosen = torch.randint(len(short_sides), (len(shuffled),), generator=random).numpy()
            resized = resizing.resized(self.sizes[shuffled], short_sides[chosen])
            buckets = resizing.bucket_of(resized).tolist()
            for index, size, bucket in zip(shuffled.tolist(), resized.tolist(), buckets, strict=True):
                waiting[bucket].append((index, tuple(size)))
                if len(waiting[bucket]) == share.world * share.batch_size:
                    taken = waiting[bucket][share.rank * share.batch_size :][: share.batch_size]
                    waiting[bucket] = []
                    indices, sizes = zip(*taken, strict=True)
                    yield DetectionRequest(
                        bucket=resizing.buckets[bucket],
                        indices=indices,
                        sizes=sizes,
                        seed=seed if augment else None,
                    )
                    seed += share.batch_size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CocoSet:
    """The images of one split, in the order of their ids, and their boxes. A loader's reader of their batches."""

    folder: str  # of the images
    names: NDArray[np.str_]
    sizes: NDArray[np.int32]  # (N, 2): height, width in pixels, as the annotations say
    boxes: NDArray[np.float32]  # (M, 4): as in Targets; by image
    labels: NDArray[np.int64]  # (M,): 0 to 79, categories in the order of their ids
    ends: NDArray[np.int64]  # (N,): where the boxes of each image end; it may have none

    def __len__(self) -> int:
        return len(self.names)

    def pixels(self, index: int) -> Tensor:
        path = str(Path(self.folder, self.names[index]))
        return decode_on_host(files.read_bytes(path), path)

    def __getitem__(self, wanted: DetectionRequest) -> Scenes:
        """Decode, resize, mirror and pad the images of a batch; they are bytes."""
        how_many = len(wanted.indices)
        images = torch.zeros(how_many, 3, *wanted.bucket, dtype=torch.uint8)
        targets = Targets(
            labels=torch.zeros(how_many, MAX_GT, dtype=torch.int64),
            boxes=torch.zeros(how_many, MAX_GT, 4),
            valid=torch.zeros(how_many, MAX_GT, dtype=torch.bool),
        )
        for place, (index, size) in enumerate(zip(wanted.indices, wanted.sizes, strict=True)):
            pixels = resize_on_host(self.pixels(index), size)
            part = slice(int(self.ends[index - 1]) if index else 0, int(self.ends[index]))
            boxes = torch.tensor(self.boxes[part])
            if wanted.seed is not None and Random(wanted.seed + place).random() < 0.5:  # noqa: S311 - no secret
                pixels = pixels.flip(-1)
                boxes[:, 0] = 1 - boxes[:, 0]
            images[place, :, : size[0], : size[1]] = pixels
            targets.boxes[place, : len(boxes)] = boxes
            targets.labels[place, : len(boxes)] = torch.tensor(self.labels[part])
            targets.valid[place, : len(boxes)] = True
        return Scenes(images, torch.tensor(wanted.sizes), targets)


def _without_outline(entry: dict[str, Any]) -> dict[str, Any]:
    """Drop outlines while parsing: they are most of the 448 MB of the training annotations."""
    entry.pop("segmentation", None)
    return entry


def open_coco(root: Path | None, split: files.Split) -> CocoSet:
    """Read one split under `root/coco` into arrays; DataMissing where it holds no annotations.

    Crowds and empty boxes are dropped, the others clipped to their images.
    """
    part = COCO_PARTS[split]
    folder = files.find_folder(root, "coco", "coco/annotations").parent
    path = folder / "annotations" / f"instances_{part}.json"
    content = files.read_json(path, object_hook=_without_outline)
    by_id = itemgetter("id")
    try:
        labels = {each["id"]: label for label, each in enumerate(sorted(content["categories"], key=by_id))}
        images = sorted(content["images"], key=by_id)
        places = {each["id"]: place for place, each in enumerate(images)}
        objects = [each for each in content["annotations"] if not each.get("iscrowd")]
        names = np.array([each["file_name"] for each in images], np.str_)
        sizes = np.array([(each["height"], each["width"]) for each in images], np.int32).reshape(-1, 2)
        image_of = np.array([places[each["image_id"]] for each in objects], np.int64)
        label_of = np.array([labels[each["category_id"]] for each in objects], np.int64)
        corners = np.array([each["bbox"] for each in objects], np.float64).reshape(-1, 4)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise files.unreadable(path, error, "Download the annotations again, or correct them.") from None
    corners[:, 2:] += corners[:, :2]
    with np.errstate(all="ignore"):  # a side of 0 pixels is refused below
        shares = np.clip(corners / np.tile(sizes[image_of][:, ::-1], 2), 0, 1)
    first, last = shares[:, :2], shares[:, 2:]
    kept = np.flatnonzero((last > first).all(axis=1))
    order = kept[np.argsort(image_of[kept], kind="stable")]
    counts = np.bincount(image_of[order], minlength=len(images))
    if not images or sizes.min() < 1 or counts.max() > MAX_GT:
        problem = f"lists no image, one with a side below 1 pixel, or one with more than {MAX_GT} boxes"
        raise files.unreadable(path, problem, "Download the annotations again, or correct them.")
    return CocoSet(
        folder=str(folder / part),
        names=names,
        sizes=sizes,
        boxes=np.hstack([(first + last) / 2, last - first])[order].astype(np.float32),
        labels=label_of[order],
        ends=np.cumsum(counts),
    )


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
    count: int, bucket: Bucket, *, generator: torch.Generator, classes: int = COCO_CLASSES
) -> Scenes:
    """Draw bytes of images that fill their bucket and have at most MAX_GT objects, on the generator's device."""
    device = generator.device

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=device)

    sizes = _box_sizes(uniform(count, MAX_GT), uniform(count, MAX_GT), uniform(count, MAX_GT))
    centers = sizes / 2 + uniform(count, MAX_GT, 2) * (1 - sizes)
    some = 1 + (COUNT_SCALE * (-torch.log1p(-uniform(count))) ** (1 / COUNT_SHAPE)).floor()
    numbers = torch.where(uniform(count) < EMPTY_SHARE, 0, some).to(torch.int64)
    valid = torch.arange(MAX_GT, device=device) < numbers[:, None]
    labels = torch.randint(classes, (count, MAX_GT), generator=generator, device=device)
    images = torch.randint(256, (count, 3, *bucket), dtype=torch.uint8, generator=generator, device=device)
    boxes = torch.cat([centers, sizes], dim=2) * valid[..., None]
    extents = torch.tensor(bucket, device=device).expand(count, 2).contiguous()
    return Scenes(images, extents, Targets(labels * valid, boxes, valid))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenePlan(Plan):
    """Images padded to a few shapes, each with its boxes padded to one number."""

    resizing: Resizing  # of photographs; its largest landscape bucket is the shape of synthetic images
    labels: int = COCO_CLASSES  # labels are in range(labels); a model may tell more apart
    sources: ClassVar[tuple[str, ...]] = ("auto", "synthetic", "loader")
    decoders: ClassVar[tuple[str, ...]] = ("auto", "host")

    @classmethod
    def fit(cls, name: str, batch_size: int, info: ModelInfo, given: Sizes) -> Self:
        resizing = resizing_of(info.name, info.image_size)
        labels = given.num_classes or COCO_CLASSES
        return cls(name=name, batch_size=batch_size, resizing=resizing, labels=labels)

    @property
    def bucket(self) -> Bucket:
        landscape = [bucket for bucket in self.resizing.buckets if bucket[0] <= bucket[1]]
        return max(landscape, key=prod)

    @property
    def described(self) -> Configuration:
        return {"bucket": shape_name(*self.bucket), "labels": self.labels, "max_gt": MAX_GT}

    def draw(self, random: torch.Generator, dtype: torch.dtype, memory_format: str) -> Batch:
        drawn = synthetic_detection(self.batch_size, self.bucket, generator=random, classes=self.labels)
        return as_scenes(random.device, dtype, memory_format)(drawn)

    def loss(self, label_smoothing: float) -> tuple[str, Loss]:
        self.no_smoothing(label_smoothing, "detection")
        return "detection", detection_loss

    find = staticmethod(open_coco)

    def read(self, config: StepConfig, data: CocoSet) -> InputPipeline:
        self.check_labels(self.labels, 0, int(data.labels.max(initial=0)))
        resizing = self.resizing
        if not config.training:  # as detectors are evaluated
            resizing = replace(resizing, short_sides=(max(resizing.short_sides),))
        order = self.order(config, length=len(data))
        buckets = BucketOrder(sizes=data.sizes, resizing=resizing, share=order)
        sampler = buckets.requests(augment=config.augment and config.training)
        arrive = as_scenes(config.device, config.dtype, config.memory_format)
        return InputPipeline(
            source=LoaderSource(self.host_batches(config, data, sampler), arrive, config.device),
            configuration=self.configuration(config, "files", images=len(data))
            | {
                "short_sides": f"{min(resizing.short_sides)} to {max(resizing.short_sides)}",
                "input_shape": " ".join(shape_name(3, *bucket) for bucket in resizing.buckets),
                "bucket": " ".join(shape_name(*bucket) for bucket in resizing.buckets),
            },
            order=order,
            varied=len(resizing.buckets) > 1,
        )


def resizing_of(model: str, image_size: int | None = None) -> Resizing:
    """Return DINO's own sizes, those of torchvision's detectors for all others, or squares of `image_size` pixels."""
    if image_size is not None:
        return Resizing(short_sides=(image_size,), longest=image_size, buckets=((image_size, image_size),))
    return MANY_SCALES if model.startswith("zoo/dino-") else ONE_SCALE


def detection_loss(output: Any, targets: Targets) -> torch.Tensor:
    """DINO's loss of Predictions; of a model that returns its losses by name, as torchvision's do in training, their sum."""
    if isinstance(output, Predictions):
        return dino_loss(output, targets)
    losses = list(output.values()) if isinstance(output, Mapping) else []
    if losses and all(isinstance(each, torch.Tensor) for each in losses):
        return torch.stack([each.float() for each in losses]).sum()
    raise TypeError(
        f"the model returned {type(output).__name__}, and detection needs a mapping of losses, each a scalar, or "
        "Predictions. Pass loss=, a callable of what it returned and the targets."
    )


def as_scenes(device: torch.device, dtype: torch.dtype, memory_format: str) -> Callable[[Scenes], Batch]:
    """Return a function that turns bytes on a device into what a detector and its loss read, without waiting."""
    scale, shift = scale_and_shift(files.IMAGENET_MEAN, files.IMAGENET_STD, device=device, dtype=dtype)

    def arrive(batch: Scenes) -> Batch:
        pixels, sizes, targets = batch
        assert targets is not None
        rows, columns = (torch.arange(extent, device=device) for extent in pixels.shape[-2:])
        inside = (rows < sizes[:, :1])[:, :, None] & (columns < sizes[:, 1:])[:, None, :]
        images = torch.addcmul(shift, pixels.to(dtype), scale) * inside[:, None]  # zeros in the padding
        scenes = batch._replace(images=images.contiguous(memory_format=MEMORY_FORMATS[memory_format]))
        # Copies for the loss: compiled code is guarded on whether two arguments are the same tensor.
        return scenes, Targets(*(each.clone() for each in targets))

    return arrive
