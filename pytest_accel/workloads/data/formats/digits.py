"""The 8 x 8 digits that scikit-learn carries: real images for a machine that holds no data set.

The file lies beside the installed package; the package itself is not imported, which would take a second.
"""

from __future__ import annotations

import gzip
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pytest_accel.workloads.data.errors import missing, reading, unreadable
from pytest_accel.workloads.data.formats.arrays import Arrays
from pytest_accel.workloads.data.sets import IMAGE_SETS

if TYPE_CHECKING:
    from pytest_accel.workloads.data.formats.places import Split

MOST = 16  # a value counts the inked pixels of a 4 x 4 block
REMEDY = "Run: pip install --force-reinstall scikit-learn"


def read_digits(split: Split) -> Arrays:
    """Return the first rows as train, the last as test: the writers of the two differ."""
    path = _file()
    known = IMAGE_SETS["digits"]
    rows = known.train_images + known.test_images
    try:
        with reading(path), gzip.open(path, "rt", encoding="ascii") as file:
            lines = file.read().split()
        table = np.loadtxt(lines, np.int64, delimiter=",") if len(lines) == rows else np.empty(0, np.int64)
    except (EOFError, ValueError, zlib.error) as error:
        raise unreadable(path, f"damaged: {error}", REMEDY) from None
    if table.shape != (rows, 65) or table[:, :-1].min() < 0 or table[:, :-1].max() > MOST:
        raise unreadable(path, f"not {rows} rows of 64 values from 0 to {MOST} and a label", REMEDY)
    part = table[: known.train_images] if split == "train" else table[known.train_images :]
    images = (part[:, :-1] * 255 // MOST).astype(np.uint8)
    return Arrays(
        images=images.reshape(-1, 1, 8, 8),
        labels=part[:, -1].copy(),
        labels_file=str(path),
    )


def _file() -> Path:
    spec = find_spec("sklearn")
    looked = [
        Path(each, "datasets/data/digits.csv.gz") for each in (spec and spec.submodule_search_locations) or ()
    ]
    for path in looked:
        if path.is_file():
            return path
    raise missing("digits", looked or ["scikit-learn, which carries it"], "Run: pip install scikit-learn")
