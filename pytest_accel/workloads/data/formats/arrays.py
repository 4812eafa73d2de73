"""A data set that was read whole: pixels and labels, and the files that a fault is told with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrays:
    """Images as (N, channels, height, width); nobody has counted the labels yet, or looked into them."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    labels_file: str
