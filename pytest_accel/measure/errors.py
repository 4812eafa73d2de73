"""Errors of workloads.

Exception
├── ValueError     an argument that no workload can be built from: unknown_value() writes the text
└── RuntimeError
    └── StepError  a step that ran, or tried to, and is no benchmark
        └── OutOfMemory
            └── CannotFit
"""

from __future__ import annotations

import re
from numbers import Integral
from typing import TYPE_CHECKING

from pytest_accel.stats.quantities import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable

# Messages of torch's allocators, Triton, NCCL, cuBLAS and cuDNN; not "out of resource" (shared memory), which a smaller
# batch would not help.
_OUT_OF_MEMORY = re.compile(
    r"\b(?i:cuda|hip|xpu|mps)[^\n]{0,20}\bout of memory|can't allocate memory|not enough memory|_STATUS_\w*ALLOC(ATION)?_FAILED"
    r"|(?i:out of memory on tile)|graph_memory_allocation_error"  # of Poplar
)


class StepError(RuntimeError):
    """A step whose figures mean nothing: a loss that is not finite, parameters that did not move."""


class OutOfMemory(StepError):  # noqa: N818 - reads as what happened
    """The batch did not fit; it is never made smaller silently."""


class CannotFit(OutOfMemory):
    """Known before anything is built, and on every rank alike."""


def says_out_of_memory(text: str) -> bool:
    """Return whether an error says that memory ran out, on a device or on its host."""
    return _OUT_OF_MEMORY.search(text) is not None


def unknown_value(argument: str, value: object, valid: Iterable[str], *, remedy: str = "") -> ValueError:
    """Return the error for an unknown name: near names, valid names, remedy."""
    names = sorted(valid)
    hint = did_you_mean(value, names) if isinstance(value, str) else ""
    text = f"{argument}: {value!r} is not known.{hint} Valid: {', '.join(names)}."
    return ValueError(f"{text} {remedy}".rstrip())


def check_whole(argument: str, value: object) -> None:
    """Refuse a size that is not a positive whole number; None is not checked."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{argument}: {value!r} is not a positive whole number.")
