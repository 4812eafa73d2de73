"""ImageNet as folders: `imagenet/{train,val}/<class>/*.JPEG`, classes numbered in the order of their names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from pytest_accel.workloads.data.errors import reading, unreadable
from pytest_accel.workloads.data.formats.files import Files
from pytest_accel.workloads.data.formats.names import PackedNames, concatenate, pack

if TYPE_CHECKING:
    from pathlib import Path

JPEG = (".jpeg", ".jpg")
OTHER_IMAGES = (
    ".bmp",
    ".gif",
    ".png",
    ".tif",
    ".tiff",
    ".webp",
)  # to leave them out would lose samples unseen


def read_folders(folder: Path, split_folder: Path) -> Files:
    """Index the images of one split; labels are numbers of the train split's classes where that is there."""
    classes = _class_folders(split_folder)
    if not classes:
        raise unreadable(
            split_folder,
            "holds neither folders of classes nor *.tar shards",
            "Valid: <class>/*.JPEG, or shards with a .jpg and a .cls for each image.",
        )
    numbers = {name: number for number, name in enumerate(_class_folders(folder / "train") or classes)}
    found: list[PackedNames] = []
    for name in classes:
        if name not in numbers:
            raise unreadable(
                split_folder / name,
                f"a class that {folder / 'train'} does not have",
                "Add its folder there, or remove it here: classes are numbered by the training folders.",
            )
        found.append(_jpegs(split_folder / name))
    counts = [len(names) for names in found]
    folder_of = np.repeat(np.arange(len(classes), dtype=np.int32), counts)
    return Files(
        root=str(split_folder),
        folders=tuple(classes),
        folder_of=folder_of,
        names=concatenate(found),
        labels=np.array([numbers[name] for name in classes], np.int64)[folder_of],
    )


def _class_folders(split_folder: Path) -> list[str]:
    if not split_folder.is_dir():
        return []
    with reading(split_folder), os.scandir(split_folder) as entries:
        return sorted(each.name for each in entries if not each.name.startswith(".") and each.is_dir())


def _jpegs(class_folder: Path) -> PackedNames:
    with reading(class_folder), os.scandir(class_folder) as entries:
        names = sorted(each.name for each in entries if not each.name.startswith("."))
    for name in names:
        if name.lower().endswith(OTHER_IMAGES):
            raise unreadable(class_folder / name, "not a JPEG", "Convert it to JPEG, or move it away.")
    jpegs = pack(name for name in names if name.lower().endswith(JPEG))
    if not len(jpegs):
        raise unreadable(
            class_folder, "a class without a JPEG", "Extract its images, or remove the empty folder."
        )
    return jpegs
