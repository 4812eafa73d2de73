"""Food-101 as its archive extracts: `images/<class>/<id>.jpg`, with `meta/classes.txt` and a list for each split."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import numpy as np

from pytest_accel.workloads.data import checksums
from pytest_accel.workloads.data.errors import reading, unreadable
from pytest_accel.workloads.data.formats.files import Files
from pytest_accel.workloads.data.formats.names import pack

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_accel.workloads.data.formats.places import Split

REMEDY = "Extract food-101.tar.gz again."


def read_food101(folder: Path, split: Split) -> Files:
    """Index the images of one split in the order of its list; that the files are there shows when they are read."""
    classes = _classes(folder / "meta/classes.txt", folder)
    path = folder / "meta" / f"{split}.json"
    listed = _listed(path, folder)
    numbers = {name: number for number, name in enumerate(classes)}
    labels: list[int] = []
    names: list[str] = []
    for name, images in listed.items():
        if name not in numbers:
            raise unreadable(path, f"the class {name!r} is not in meta/classes.txt", REMEDY)
        labels += [numbers[name]] * len(images)
        names += [_file_name(path, name, image) for image in images]
    return Files(
        root=str(folder / "images"),
        folders=tuple(classes),
        folder_of=np.array(labels, np.int32),
        names=pack(names),
        labels=np.array(labels, np.int64),
    )


def _classes(path: Path, folder: Path) -> list[str]:
    lines = _text(path, folder).split()
    if not lines or len(set(lines)) != len(lines):
        raise unreadable(path, "empty, or a class stands twice in it", REMEDY)
    return sorted(lines)


def _listed(path: Path, folder: Path) -> dict[str, list[str]]:
    try:
        listed = json.loads(_text(path, folder))
    except (json.JSONDecodeError, RecursionError) as error:
        raise unreadable(path, f"not JSON: {error}", REMEDY) from None
    if not isinstance(listed, dict) or not all(isinstance(images, list) for images in listed.values()):
        raise unreadable(path, "not an object with a list of images for each class", REMEDY)
    if not any(listed.values()):
        raise unreadable(path, "lists no image", REMEDY)
    return listed


def _file_name(path: Path, name: str, image: object) -> str:
    """Return the file of an entry like "pizza/1001116", which must lie in the folder of its class."""
    parts = PurePosixPath(image).parts if isinstance(image, str) else ()
    if len(parts) != 2 or parts[0] != name or parts[1] == "..":
        raise unreadable(path, f"{image!r} is not an image of the class {name!r}", REMEDY)
    return f"{parts[1]}.jpg"


def _text(path: Path, folder: Path) -> str:
    checksums.verify(path, folder=folder)
    with reading(path):
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise unreadable(path, f"not UTF-8: {error}", REMEDY) from None
