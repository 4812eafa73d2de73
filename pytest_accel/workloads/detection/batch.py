"""What a detector is given, in shapes that do not change from batch to batch.

Named tuples, because they are tuples: compilers, DDP and `torch.utils._pytree` look into them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Targets(NamedTuple):
    """The objects of a batch of images, padded to one count of boxes; the real ones come first.

    What stands in the padding does not matter: every reader goes through `harmless`.
    """

    labels: Tensor  # (images, boxes), integers
    boxes: (
        Tensor  # (images, boxes, 4): centre x and y, width, height; shares of the image without its padding
    )
    valid: Tensor  # (images, boxes), booleans: a real box, not padding

    def harmless(self) -> Targets:
        """Return the same with padding that can neither be out of range nor turn a sum into NaN."""
        return Targets(
            labels=torch.where(self.valid, self.labels, 0),
            boxes=torch.where(self.valid[..., None], self.boxes, 0.5),
            valid=self.valid,
        )


class Scenes(NamedTuple):
    """Images of a batch in one padded size, each in the upper left corner, with their targets in training."""

    images: Tensor  # (images, 3, height, width), normalised; the padding may hold anything
    sizes: Tensor  # (images, 2), whole pixels: height and width of each image without its padding
    targets: Targets | None = None
