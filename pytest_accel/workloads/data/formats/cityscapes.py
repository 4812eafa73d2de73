"""Cityscapes as its archives extract: `leftImg8bit/<split>/<city>/*.png` and a mask of label ids for each in `gtFine`.

Of the 34 ids of its label definitions 19 are trained and judged, numbered anew; the others are ignored.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from pytest_accel.workloads.data.errors import missing, reading, unreadable
from pytest_accel.workloads.data.formats.files import read_whole
from pytest_accel.workloads.data.formats.names import PackedNames, pack
from pytest_accel.workloads.data.jpeg import decode_on_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_accel.workloads.data.formats.places import Split

Tensor: TypeAlias = Any  # torch is untyped here

PARTS = {"train": "train", "test": "val"}  # the masks of the test images were never published
IMAGES, MASKS = "leftImg8bit", "gtFine"
IMAGE_END, MASK_END = "_leftImg8bit.png", "_gtFine_labelIds.png"
IGNORE = 255
LABEL_IDS = 34  # 0 to 33; the licence plates' -1 is never drawn
# Label id by class: the 19 that the benchmark trains and judges, in its order.
TRAINED = {
    "road": 7,
    "sidewalk": 8,
    "building": 11,
    "wall": 12,
    "fence": 13,
    "pole": 17,
    "traffic light": 19,
    "traffic sign": 20,
    "vegetation": 21,
    "terrain": 22,
    "sky": 23,
    "person": 24,
    "rider": 25,
    "car": 26,
    "truck": 27,
    "bus": 28,
    "train": 31,
    "motorcycle": 32,
    "bicycle": 33,
}
CLASSES = tuple(TRAINED)
REMEDY = "Extract leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip again, both into one folder."


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CityscapesSet:
    """The images of one split and their masks, in the order of their names."""

    folder: str
    part: str
    names: PackedNames  # "<city>/<city>_<sequence>_<frame>": what an image and its mask have in common

    def __len__(self) -> int:
        return len(self.names)

    def image_name(self, index: int) -> str:
        return str(Path(self.folder, IMAGES, self.part, self.names[index] + IMAGE_END))

    def mask_name(self, index: int) -> str:
        return str(Path(self.folder, MASKS, self.part, self.names[index] + MASK_END))

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        """Return an image, uint8 (3, height, width), and its classes, uint8 (height, width): 0 to 18, or 255."""
        image_name, mask_name = self.image_name(index), self.mask_name(index)
        image = decode_on_host(_encoded(image_name), image_name)
        ids = _decoded_ids(_encoded(mask_name), mask_name)
        if image.shape[1:] != ids.shape:
            raise unreadable(
                mask_name,
                f"{ids.shape[0]} x {ids.shape[1]} pixels for an image of {image.shape[1]} x {image.shape[2]}",
                REMEDY,
            )
        return image, _classes(ids, mask_name)


def open_cityscapes(root: Path, split: Split) -> CityscapesSet:
    """Index one split under `root/cityscapes`, or under the root itself; DataMissing where neither holds images."""
    for folder in (root / "cityscapes", root):
        if (folder / IMAGES).is_dir():
            return read_cityscapes(folder, split)
    looked = [root / "cityscapes" / IMAGES, root / IMAGES]
    raise missing("cityscapes", looked, "Extract its archives there, or name another root.")


def read_cityscapes(folder: Path, split: Split) -> CityscapesSet:
    """Index the images of one split; each must have its mask, and each mask its image."""
    part = PARTS[split]
    images = set(_found(folder / IMAGES / part, IMAGE_END))
    masks = set(_found(folder / MASKS / part, MASK_END))
    if not images:
        raise unreadable(folder / IMAGES / part, f"holds no <city>/*{IMAGE_END}", REMEDY)
    for alone, here, there, end in (
        (images - masks, f"the image {IMAGES}", MASKS, MASK_END),
        (masks - images, f"the mask {MASKS}", IMAGES, IMAGE_END),
    ):
        if alone:
            first = min(alone)
            more = f", and so are {len(alone) - 1} more" if len(alone) > 1 else ""
            path = folder / there / part / (first + end)
            raise unreadable(path, f"missing{more}; {here}/{part}/{first}* is there", REMEDY)
    return CityscapesSet(folder=str(folder), part=part, names=pack(sorted(images)))


def _found(folder: Path, end: str) -> Iterator[str]:
    """Yield "<city>/<name without its end>" of every file with this end."""
    with reading(folder), os.scandir(folder) as entries:
        cities = sorted(entry.name for entry in entries if entry.is_dir())
    for city in cities:
        with reading(folder / city), os.scandir(folder / city) as entries:
            names = [entry.name for entry in entries]
        yield from (f"{city}/{name.removesuffix(end)}" for name in names if name.endswith(end))


def _encoded(name: str) -> Tensor:
    data = read_whole(name)
    if not len(data):
        raise unreadable(name, "empty", REMEDY)
    return torch.from_numpy(data)


def _decoded_ids(encoded: Tensor, name: str) -> Tensor:
    """Decode a mask as it is: one channel, whose bytes are ids and no colours."""
    from torchvision.io import ImageReadMode, decode_image

    try:
        ids = decode_image(encoded, mode=ImageReadMode.UNCHANGED)
    except RuntimeError as error:
        problem = next(iter(str(error).splitlines()), "no reason given")
        raise unreadable(name, f"does not decode: {problem}", REMEDY) from None
    if ids.dim() != 3 or ids.shape[0] != 1 or ids.dtype != torch.uint8:
        raise unreadable(name, "not a PNG with one channel of 8 bits", "Valid: the *_labelIds.png of gtFine.")
    return ids[0]


def _class_of_id() -> Tensor:
    table = torch.full((LABEL_IDS,), IGNORE, dtype=torch.uint8)
    for number, label_id in enumerate(TRAINED.values()):
        table[label_id] = number
    return table


CLASS_OF_ID = _class_of_id()


def _classes(ids: Tensor, name: str) -> Tensor:
    highest = int(ids.max())
    if highest >= LABEL_IDS:
        remedy = (
            f"Valid: 0 to {LABEL_IDS - 1}, the ids of Cityscapes. *_labelTrainIds.png is another numbering."
        )
        raise unreadable(name, f"the label id {highest} is not known", remedy)
    return CLASS_OF_ID[ids.to(torch.int64)]
