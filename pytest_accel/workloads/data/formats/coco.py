"""COCO as published: `annotations/instances_{train,val}2017.json` beside `{train,val}2017/*.jpg`, as a few arrays.

The training annotations are 860,001 objects in 448 MB of JSON. What stays in memory is a box and a label each, end to
end, and where each image's boxes end: forked workers share it.
"""

from __future__ import annotations

import gc
import json
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_accel.workloads.data import checksums
from pytest_accel.workloads.data.errors import BoxesChangedWarning, missing, reading, unreadable
from pytest_accel.workloads.data.formats.files import read_whole
from pytest_accel.workloads.data.formats.names import PackedNames, pack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pytest_accel.workloads.data.formats.places import Split

CLASSES = 80
PARTS = {"train": "train2017", "test": "val2017"}  # the boxes of the test images were never published
REMEDY = "Download the annotations again, or mend the entry."
ROUNDING_PX = 0.01  # boxes are published with two decimals: sticking out by less is no mistake


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CocoSet:
    """The images of one split, in the order of their ids, and their boxes."""

    folder: str  # of the images
    names: PackedNames
    sizes: NDArray[np.int32]  # (N, 2): height, width in pixels, as the annotations say
    boxes: NDArray[
        np.float32
    ]  # (M, 4): left, top, right, bottom in pixels, inside their image; image after image
    labels: NDArray[np.int64]  # (M,): 0 to 79, categories in the order of their ids
    ends: NDArray[np.int64]  # (N,): where the boxes of each image end
    categories: tuple[str, ...]  # names by label
    crowds: int  # annotations of crowds, which are left out
    clipped: int  # boxes that stuck out of their images
    dropped: int  # boxes of which nothing was left

    def __len__(self) -> int:
        return len(self.names)

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many boxes each image has; 0 is a valid number."""
        return np.diff(self.ends, prepend=0)

    def name(self, index: int) -> str:
        return str(Path(self.folder, self.names[index]))

    def read(self, index: int) -> NDArray[np.uint8]:
        """Return the bytes of an image's file."""
        data = read_whole(self.name(index))
        if not len(data):
            raise unreadable(self.name(index), "empty", "Download or extract it again.")
        return data

    def objects(self, index: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the boxes of an image, (n, 4), and their labels."""
        start = int(self.ends[index - 1]) if index else 0
        part = slice(start, int(self.ends[index]))
        return self.boxes[part], self.labels[part]


def open_coco(root: Path, split: Split) -> CocoSet:
    """Read one split under `root/coco`, or under the root itself; DataMissing where neither holds annotations."""
    for folder in (root / "coco", root):
        if (folder / "annotations").is_dir():
            return read_coco(folder, split)
    looked = [root / "coco/annotations", root / "annotations"]
    raise missing("coco", looked, "Extract COCO's 2017 images and annotations there, or name another root.")


def read_coco(folder: Path, split: Split) -> CocoSet:
    part = PARTS[split]
    path = folder / "annotations" / f"instances_{part}.json"
    checksums.verify(path, folder=folder)
    with _uncollected():
        return _as_set(_parsed(path), path, folder / part)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the collector from going through millions of new objects again and again: it would find none to free."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _as_set(content: dict[str, Any], path: Path, images_folder: Path) -> CocoSet:
    numbers, categories = _categories(content["categories"], path)
    ids, names, sizes = _images(content["images"], path)
    _check_files(names, images_folder)
    found = _annotations(content["annotations"], path, ids, numbers)
    kept, clipped = _inside(found.boxes, sizes[found.image_of])
    dropped = int((~kept).sum())
    if clipped or dropped:
        warnings.warn(
            f"{path}: {clipped} boxes stuck out of their images and were clipped, {dropped} were empty or outside "
            "and were left out.",
            BoxesChangedWarning,
            stacklevel=4,
        )
    order = np.flatnonzero(kept)
    order = order[np.argsort(found.image_of[order], kind="stable")]
    return CocoSet(
        folder=str(images_folder),
        names=pack(names),
        sizes=sizes,
        boxes=found.boxes[order].astype(np.float32),
        labels=found.labels[order],
        ends=np.cumsum(np.bincount(found.image_of[order], minlength=len(names))),
        categories=categories,
        crowds=found.crowds,
        clipped=clipped,
        dropped=dropped,
    )


def _parsed(path: Path) -> dict[str, Any]:
    try:
        with reading(path):
            content = json.loads(path.read_bytes(), object_hook=_without_outline)
    except (ValueError, RecursionError) as error:  # also: a byte that is no UTF-8, a number of 5,000 digits
        raise unreadable(path, f"not JSON: {error}", "Download the annotations again.") from None
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise unreadable(path, f"has no list {key!r}", "Valid: the layout of COCO's instances_*.json.")
    return content


def _without_outline(entry: dict[str, Any]) -> dict[str, Any]:
    """Outlines are most of the file: each is forgotten as soon as it is read."""
    entry.pop("segmentation", None)
    return entry


def _categories(entries: list[Any], path: Path) -> tuple[dict[int, int], tuple[str, ...]]:
    """Return the label of each category's id, and the names by label."""
    names: dict[int, str] = {}
    for place, entry in enumerate(entries):
        where = f"{path}: categories[{place}]"
        number = _whole(entry, "id", where)
        if number in names:
            raise unreadable(where, f"the id {number} is another category's already", REMEDY)
        names[number] = str(_value(entry, "name", where))
    if not 1 <= len(names) <= CLASSES:
        raise unreadable(path, f"{len(names)} categories", f"Valid: 1 to {CLASSES}, as COCO has them.")
    ids = sorted(names)
    return {number: label for label, number in enumerate(ids)}, tuple(names[number] for number in ids)


def _images(entries: list[Any], path: Path) -> tuple[dict[int, int], list[str], NDArray[np.int32]]:
    """Return the index of each image's id, the names and the sizes, in the order of the ids."""
    found: dict[int, tuple[str, int, int]] = {}
    for place, entry in enumerate(entries):
        where = f"{path}: images[{place}]"
        number = _whole(entry, "id", where)
        if number in found:
            raise unreadable(where, f"the id {number} is another image's already", REMEDY)
        name = _value(entry, "file_name", where)
        if not isinstance(name, str) or name in {"", ".", ".."} or "/" in name or "\0" in name:
            raise unreadable(where, f"file_name {name!r} is not the name of a file beside the others", REMEDY)
        height, width = _whole(entry, "height", where), _whole(entry, "width", where)
        if not (0 < height < 2**31 and 0 < width < 2**31):
            raise unreadable(where, f"{height} x {width} is not the size of an image", REMEDY)
        found[number] = name, height, width
    if not found:
        raise unreadable(path, "lists no image", REMEDY)
    ids = sorted(found)
    sizes = np.array([found[number][1:] for number in ids], np.int32)
    return {number: index for index, number in enumerate(ids)}, [found[number][0] for number in ids], sizes


def _check_files(names: list[str], folder: Path) -> None:
    """One listing finds what is missing: to ask for each of 118,287 files takes a file system minutes."""
    with reading(folder), os.scandir(folder) as entries:
        there = {entry.name for entry in entries}
    absent = [name for name in names if name not in there]
    if absent:
        more = f", and so are {len(absent) - 1} more" if len(absent) > 1 else ""
        raise unreadable(
            folder / absent[0], f"missing{more}", "Extract the images of this split there, all of them."
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Found:
    boxes: NDArray[np.float64]  # (M, 4): left, top, width, height as they stand in the file
    labels: NDArray[np.int64]
    image_of: NDArray[np.int64]
    crowds: int


def _annotations(entries: list[Any], path: Path, ids: dict[int, int], numbers: dict[int, int]) -> _Found:
    boxes, labels, image_of = [], [], []
    seen: set[int] = set()
    crowds = 0
    for place, entry in enumerate(entries):
        number = _whole(entry, "id", f"{path}: annotations[{place}]")
        where = f"{path}: annotation {number}"
        if number in seen:
            raise unreadable(where, "the id is another annotation's already", REMEDY)
        seen.add(number)
        image, category = _whole(entry, "image_id", where), _whole(entry, "category_id", where)
        if image not in ids:
            raise unreadable(where, f"the image {image} is not listed", REMEDY)
        if category not in numbers:
            raise unreadable(where, f"the category {category} is not listed", REMEDY)
        if _is_crowd(entry, where):
            crowds += 1
            continue
        boxes.append(_box(entry, where))
        labels.append(numbers[category])
        image_of.append(ids[image])
    return _Found(
        boxes=np.array(boxes, np.float64).reshape(-1, 4),
        labels=np.array(labels, np.int64),
        image_of=np.array(image_of, np.int64),
        crowds=crowds,
    )


def _is_crowd(entry: dict[str, Any], where: str) -> bool:
    value = entry.get("iscrowd", 0)
    if value not in (0, 1):
        raise unreadable(where, f"iscrowd {value!r} is neither 0 nor 1", REMEDY)
    return bool(value)


def _box(entry: dict[str, Any], where: str) -> list[float]:
    box = _value(entry, "bbox", where)
    if not isinstance(box, list) or len(box) != 4 or not all(type(each) in (int, float) for each in box):
        raise unreadable(where, f"the box {box!r} is not four numbers: left, top, width, height", REMEDY)
    if not all(abs(each) < 1e9 for each in box):  # nor is NaN
        raise unreadable(where, f"the box {box!r} is not of finite numbers of pixels", REMEDY)
    return box


def _inside(boxes: NDArray[np.float64], sizes: NDArray[np.int32]) -> tuple[NDArray[np.bool_], int]:
    """Turn widths into right sides, clip in place; return which boxes are left and how many of them were clipped."""
    boxes[:, 2:] += boxes[:, :2]
    whole = boxes.copy()
    limits = sizes[:, ::-1].astype(np.float64)
    np.clip(boxes[:, :2], 0, limits, out=boxes[:, :2])
    np.clip(boxes[:, 2:], 0, limits, out=boxes[:, 2:])
    # As they will be stored: a sliver that rounding closes is empty too.
    kept = _open(boxes.astype(np.float32))
    return kept, int((kept & (np.abs(whole - boxes) > ROUNDING_PX).any(axis=1)).sum())


def _open(boxes: NDArray[Any]) -> NDArray[np.bool_]:
    return (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])


def _value(entry: object, key: str, where: str) -> Any:  # noqa: ANN401 - whatever JSON holds
    if not isinstance(entry, dict):
        raise unreadable(where, "not an object", REMEDY)
    if key not in entry:
        raise unreadable(where, f"has no {key!r}", REMEDY)
    return entry[key]


def _whole(entry: object, key: str, where: str) -> int:
    """Return a whole number; some tools write 640.0."""
    value = _value(entry, key, where)
    if type(value) is float and math.isfinite(value) and value == int(value):
        value = int(value)
    if type(value) is not int:
        raise unreadable(where, f"{key} {value!r} is not a whole number", REMEDY)
    return value
