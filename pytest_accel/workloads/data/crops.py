"""Which part of a photograph a model sees: a random one to train on, the middle one to judge by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

AREA = (0.08, 1.0)  # of the photograph, as ResNet and all that followed are trained
ASPECT = (3 / 4, 4 / 3)  # width over height
MIDDLE_SHARE = 0.875  # of the short side: 224 of 256 pixels
_TRIES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Crop:
    """A rectangle of whole pixels, and whether it is mirrored."""

    top: int
    left: int
    height: int
    width: int
    mirrored: bool = False


def random_crop(height: int, width: int, random: Random) -> Crop:
    """Draw a part of random area, aspect, place and side; the largest square where ten draws did not fit."""
    mirrored = random.random() < 0.5
    for _ in range(_TRIES):
        area = height * width * random.uniform(*AREA)
        aspect = math.exp(random.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            return Crop(
                top=random.randint(0, height - high),
                left=random.randint(0, width - wide),
                height=high,
                width=wide,
                mirrored=mirrored,
            )
    return _middle(height, width, min(height, width), mirrored=mirrored)


def middle_crop(height: int, width: int) -> Crop:
    """The square in the middle, as models are judged on it."""
    return _middle(height, width, max(1, round(min(height, width) * MIDDLE_SHARE)), mirrored=False)


def _middle(height: int, width: int, side: int, *, mirrored: bool) -> Crop:
    return Crop(
        top=(height - side) // 2, left=(width - side) // 2, height=side, width=side, mirrored=mirrored
    )
