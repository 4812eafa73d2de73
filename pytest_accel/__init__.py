"""Accelerator benchmarks as tests.

Every platform is a mark that can be imported by its name::

    from pytest_accel import a100x4, gh200

    @gh200
    @a100x4
    def test_resnet50_training(train):
        train("resnet50", data="imagenet", batch_size=256, precision="bf16")

`@on("gh200 a100x4")` is the same in one line. A benchmark that runs wherever it fits says what it needs::

    @on(accelerators(memory_gb=40, dtype="bf16"))
    def test_resnet50_training(train): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from pytest_accel.markers import Marks
    from pytest_accel.platforms.catalogue import Accelerators

__version__ = "0.1.0"

__all__ = ["__version__", "accelerators", "on"]


def on(*platforms: str | Accelerators) -> Marks:
    """Mark a test with platforms: `@on("gh200 a100x4")`, `@on(accelerators(memory_gb=40, dtype="bf16"))`, or both.

    One value of a parameter is marked by `pytest.param(value, marks=on(...))`. A misspelt name is an error that names
    the right one.
    """
    from pytest_accel.markers import Marks, platform_marks

    return Marks(platform_marks(platforms))


def accelerators(
    *,
    memory_gb: float = 0.0,
    dtype: str | tuple[str, ...] = (),
    devices: int | tuple[int, ...] = 1,
    nodes: int = 1,
    vendor: str = "",
) -> Accelerators:
    """Return what a benchmark needs; `on` expands it to every registered platform that has it.

    `memory_gb` is that of each device, `dtype` one precision or several that are all needed, `devices` their
    number on all `nodes` together, one count or several that will do. `dtype="half"` is met by bf16 and by fp16,
    `dtype="single"` by TF32 and by fp32.
    """
    from pytest_accel.platforms.catalogue import Accelerators

    return Accelerators(
        memory_gb=memory_gb,
        dtypes=(dtype,) if isinstance(dtype, str) else dtype,
        devices=(devices,) if isinstance(devices, int) else devices,
        nodes=nodes,
        vendor=vendor,
    )


def __getattr__(name: str) -> pytest.MarkDecorator:
    """Return the mark of a platform; a misspelt platform is an ImportError that names the right one.

    `from pytest_accel import gh20` would hide the text of an AttributeError.
    """
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytest_accel.markers import known_names, platform_mark
    from pytest_accel.stats.quantities import did_you_mean

    try:
        return platform_mark(name)
    except ValueError as error:
        if did_you_mean(name, known_names()):
            raise ImportError(str(error), name=name) from None
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}. {error}") from None


def __dir__() -> list[str]:
    from pytest_accel.markers import known_names

    return sorted([*globals(), *known_names()])
