"""Until something is so, which takes the kernel or another process a moment."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def eventually(condition: Callable[[], Found], within_s: float) -> Found:
    """What the condition says once it holds; what it says last, where that takes longer."""
    deadline_s = time.monotonic() + within_s
    while not (found := condition()) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return found
