"""Ctrl-C, held back from where a contest has its times until they are written: nothing that was measured is lost to it."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

_came: list[bool] = []
_before: list[Any] = []  # who was told of it, while it is held back


def hold_back(*, came: bool) -> None:
    """From now on Ctrl-C is remembered, and so is one that came already."""
    if came:
        _came.append(True)
    if not _before:
        _before.append(signal.signal(signal.SIGINT, _remember))


def let_through() -> None:
    """From now on Ctrl-C is what it was; one that was held back comes now."""
    if _before:
        signal.signal(signal.SIGINT, _before.pop())
    if _came:
        _came.clear()
        raise KeyboardInterrupt


def _remember(_number: int, _frame: FrameType | None) -> None:
    _came.append(True)
