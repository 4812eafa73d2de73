"""Which file of baselines holds a benchmark, and under which key: real and made-up data never share one."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Scalar: TypeAlias = str | int | float | bool | None  # what a configuration holds

SOURCE = "data_source"  # of a configuration: where its batches come from
MADE_UP = frozenset({"synthetic", "host-synthetic"})
SUITES = "bench_suites"  # of a checkout; the wheel's have the same names, so that both share their baselines
WHEEL_SUITES = "pytest_accel.suites"  # where `pytest --pyargs` finds those
_REAL = " (data)"  # no node id ends so: it has blanks in the brackets of its parameters alone


def suite_of(path: str) -> str:
    """The file of a module's baselines: its name without what pytest needs of it."""
    return PurePosixPath(path).stem.removeprefix("test_").removesuffix("_test")


def is_real(configuration: Mapping[str, object]) -> bool:
    """Whether real data fed a benchmark; a step of the user's own may name no source."""
    return configuration.get(SOURCE) is not None and configuration[SOURCE] not in MADE_UP


def baseline_key(node_id: str, configuration: Mapping[str, object]) -> str:
    return node_id + _REAL if is_real(configuration) else node_id


def both_keys(node_id: str) -> tuple[str, str]:
    """With made-up data, and with real data."""
    return node_id, node_id + _REAL


def in_wheel(node_id: str) -> str:
    """A suite's benchmark as `pytest --pyargs` takes it: only a checkout has the path that its id begins with."""
    path, separator, name = node_id.partition("::")
    module = PurePosixPath(path)
    if module.parent != PurePosixPath(SUITES):
        return node_id
    return f"{WHEEL_SUITES}.{module.stem}{separator}{name}"


def node_id_of(key: str) -> str:
    return key.removesuffix(_REAL)
