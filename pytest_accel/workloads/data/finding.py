"""Whether a data set of any task is there, without reading more of it than that takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_accel.workloads.data.errors import existing_root
from pytest_accel.workloads.data.formats.bpe import find_bpe
from pytest_accel.workloads.data.formats.cityscapes import open_cityscapes
from pytest_accel.workloads.data.formats.coco import open_coco
from pytest_accel.workloads.data.formats.jsonl import find_texts
from pytest_accel.workloads.data.formats.squad import find_squad
from pytest_accel.workloads.data.formats.wordpiece import find_wordpiece
from pytest_accel.workloads.data.images import open_images
from pytest_accel.workloads.data.sets import IMAGE_SETS

if TYPE_CHECKING:
    from pathlib import Path


def find_set(root: Path | None, name: str) -> None:
    """Raise DataMissing where the set is not under the root, DataError where it is and cannot be read."""
    match name:
        case "coco":
            open_coco(existing_root(root, name), "test")
        case "cityscapes":
            open_cityscapes(existing_root(root, name), "test")
        case "squad":
            find_squad(existing_root(root, name), "test")
            find_wordpiece(existing_root(root, name))
        case "oscar":
            find_texts(existing_root(root, name))
            find_bpe(existing_root(root, name))
        case _ if name in IMAGE_SETS:
            open_images(root, name, "test")
        case _:
            valid = ", ".join(sorted((*IMAGE_SETS, "coco", "cityscapes", "squad", "oscar")))
            raise ValueError(f"data: {name!r} is not known. Valid: {valid}.")
