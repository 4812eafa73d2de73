"""Accelerator benchmarks as tests.

Every platform is a mark that can be imported by its name::

    from pytest_accel import a100x4, gh200

    @gh200
    @a100x4
    def test_resnet50_training(train):
        train("resnet50", data="imagenet", batch_size=256, precision="bf16")

`@on("gh200 a100x4")` is the same in one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_accel._version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    import pytest

    Test = TypeVar("Test", bound=Callable[..., object])

__all__ = ["__version__", "on"]


def on(names: str) -> Callable[[Test], Test]:
    """Mark a test with several platforms: `@on("gh200 a100x4")`; a misspelt one is an error that names the right one."""
    from pytest_accel.markers import platform_mark

    marks = [platform_mark(name) for name in names.split()]

    def marked(test: Test) -> Test:
        for mark in marks:
            test = mark(test)
        return test

    return marked


def __getattr__(name: str) -> pytest.MarkDecorator:
    """The mark of a platform; a misspelt platform is an ImportError that names the right one.

    `from pytest_accel import gh20` would swallow the text of an AttributeError.
    """
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytest_accel.markers import platform_mark, resembles_platform

    try:
        return platform_mark(name)
    except ValueError as error:
        if resembles_platform(name):
            raise ImportError(str(error), name=name) from None
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}. {error}") from None


def __dir__() -> list[str]:
    from pytest_accel.markers import known_names

    return sorted([*globals(), *known_names()])
