"""Models that no library has."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def zoo_models() -> dict[str, Callable[..., Any]]:
    """Return each name of the zoo with what builds it."""
    from pytest_accel.workloads.zoo.gpt import GPT_SHAPES, build_gpt

    return {name: partial(build_gpt, name) for name in GPT_SHAPES}
