"""Checks of arguments, of `accel.measure` above all, and the errors of workloads.

Exception
├── ValueError     an argument that no workload can be built from: unknown_value() writes the text
└── RuntimeError
    └── StepError  a step that ran, or tried to, and is no benchmark
        └── OutOfMemory
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral

from pytest_accel.stats.gate import THROUGHPUT, Policy
from pytest_accel.stats.metric_gates import DESCRIPTIVE, MEASURED, OF_ANY_STEP, is_gateable, shown_name
from pytest_accel.stats.quantities import did_you_mean
from pytest_accel.stats.run import Scalar

RESERVED_METRICS = frozenset({THROUGHPUT, *OF_ANY_STEP})  # measured by `accel.measure` itself
_MAX_UNIT = 24  # characters: it is a column of a table
_MAX_NAME = 40  # characters: it stands in a line of the terminal


class ArgumentError(ValueError):
    """A wrong argument of `accel.measure`; the message names it and what is valid."""


def _require(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - a condition
    if not holds:
        raise ArgumentError(otherwise)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    work: float
    unit: str
    configuration: Mapping[str, Scalar]
    gates: Mapping[str, float | None]


def check_arguments(
    step: object,
    *,
    work: float,
    unit: str,
    configuration: Mapping[str, Scalar] | None,
    gates: Mapping[str, float | None] | None,
    demands: Mapping[str, object],
    counts: Mapping[str, tuple[object, int]],
) -> Workload:
    """Return the checked workload. `demands` are operations and bytes of a step, `counts` numbers of steps with their minimum."""
    _require(
        callable(step), f"step: {step!r} cannot be called. Pass a function: accel.measure(lambda: ..., ...)."
    )
    for name, demand in demands.items():
        _require(
            demand is None or 0 <= _float(demand) < math.inf,
            f"{name}: {demand!r} is not a positive, finite number. Count what one step takes.",
        )
    for name, (count, least) in counts.items():
        plain = _plain(count)
        _require(
            isinstance(plain, int) and not isinstance(plain, bool) and plain >= least,
            f"{name}: {count!r} is no number of steps. Write a whole number from {least} on.",
        )
    _require(
        0 < _float(work) < math.inf,
        f"work: {work!r} is not a positive, finite number. Count in {unit} what one step does.",
    )
    _require(
        isinstance(unit, str) and bool(unit.strip()) and unit.isprintable() and len(unit) <= _MAX_UNIT,
        f'unit: {unit!r} is not a short word. Write what is counted: "images", "tokens".',
    )
    checked = {
        key: _scalar(key, each) for key, each in _mapping("configuration", configuration or {}).items()
    }
    return Workload(work=_float(work), unit=unit, configuration=checked, gates=_gates(gates or {}))


def check_first_step(step: Callable[[], object]) -> Callable[[], object]:
    """Return the step for its first call: one that returns a coroutine, a generator or a function did nothing."""

    def first() -> object:
        result = step()
        if (
            callable(result)
            or inspect.isawaitable(result)
            or inspect.isgenerator(result)
            or inspect.isasyncgen(result)
        ):
            getattr(result, "close", lambda: None)()
            raise ArgumentError(
                f"step: it returns a {type(result).__name__}, which did not run. Pass a plain function that does the work when "
                "it is called: accel.measure(lambda: step(x), ...)."
            )
        return result

    return first


def check_metrics(metrics: object) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in _mapping("metrics", metrics).items():
        _check_name("metrics", name)
        _require(
            name not in RESERVED_METRICS,
            f"metrics: {name!r} is measured by pytest-accel. Choose another name.",
        )
        found[name] = _float(value)
        _require(math.isfinite(found[name]), f"metrics[{name!r}]: {value!r} is not a finite number.")
    return found


def check_gated(gates: Iterable[str], metrics: Mapping[str, float]) -> None:
    for name in gates:
        known = ", ".join(sorted(metrics))
        _require(
            name in metrics,
            f"gates: {name!r} was not measured. Return it from metrics=, or gate one of: {known}.",
        )
        _require(
            is_gateable(metrics[name]),
            f"gates: {name!r} is {metrics[name]:g}, and a gated metric is positive: a change is a share of it. "
            "Gate another figure, or check this one in the test itself.",
        )


def select_gates(
    of_session: Mapping[str, float | None],
    of_benchmark: Mapping[str, float | None],
    metrics: Mapping[str, float],
    *,
    tolerance: float | None,
    origin: str,
    reasons: Mapping[str, str],
) -> tuple[dict[str, float | None], list[str]]:
    """Return the gated metrics, and a sentence for each that should be gated and cannot be: it fails the test.

    `of_session` are those of `--accel-gate` (from `origin`), whose tolerances go before `of_benchmark` (`gates=`).
    `reasons` says by metric why it was not measured, where that is known. A metric that any step may have, such as energy,
    is missed wherever it is absent: a gate that judges nothing must not be green. One that only some benchmarks have,
    such as a latency, is missed only where the benchmark's own mark names it.
    """
    gates, missed = dict(of_benchmark), []
    for name, limit in of_session.items():
        if is_gateable(metrics.get(name, 0.0)):
            default = gates.get(name, tolerance or Policy().tolerance)
            gates[name] = default if limit is None else limit
        elif name in metrics or name in OF_ANY_STEP or origin.startswith("@"):
            what = f"is {metrics[name]:g}, which cannot be" if name in metrics else "was not measured"
            why = f": {reasons[name]}" if reasons.get(name) else ""
            missed.append(
                f"{shown_name(name)} is gated (from {origin}) and {what}{why}. Take it out of there, or leave this "
                'benchmark out of it: @pytest.mark.accel(gate="throughput").'
            )
    return gates, missed


def _gates(gates: Mapping[str, float | None]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name, value in _mapping("gates", gates).items():
        _check_name("gates", name)
        found[name] = tolerance = None if value is None else _float(value)
        _require(
            tolerance is None or 0 < tolerance < 1,
            f"gates[{name!r}]: {value!r} is not a fraction between 0 and 1. Write 0.05.",
        )
    _require(
        THROUGHPUT not in found,
        'gates: the throughput is gated always. Set its tolerance by @pytest.mark.accel(tolerance="5%").',
    )
    if wrong := sorted(DESCRIPTIVE & found.keys()):
        known = ", ".join(sorted(MEASURED.keys() - DESCRIPTIVE))
        raise ArgumentError(
            f"gates: {wrong[0]!r} says how it was measured, and neither more nor less of it is better. Gate a metric of "
            f"your own, or one of: {known}."
        )
    return found


def _mapping(argument: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ArgumentError(f"{argument}: {value!r} is not a mapping of names to values.")
    return value


def _check_name(argument: str, name: object) -> None:
    _require(
        isinstance(name, str) and name.isidentifier() and len(name) <= _MAX_NAME,
        f"{argument}: the name {name!r} is not an identifier of at most {_MAX_NAME} characters, such as 'accuracy'.",
    )


def _plain(value: object) -> object:
    """Return a NumPy or torch scalar as the Python number it holds; anything else as it is."""
    item = getattr(value, "item", None)
    try:
        return item() if callable(item) else value
    except (TypeError, ValueError, RuntimeError):  # an array of several
        return value


def _float(value: object) -> float:
    """Return a number, also of NumPy or torch; NaN for text, truth values and anything else."""
    plain = _plain(value)
    if isinstance(plain, str | bytes | bool):
        return math.nan
    try:
        return float(plain)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a tensor of several
        return math.nan


def _scalar(key: object, value: object) -> Scalar:
    _require(isinstance(key, str) and bool(key), f"configuration: the name {key!r} is not a text.")
    plain = _plain(value)
    if plain is None or isinstance(plain, str | bool | int):
        return plain
    if isinstance(plain, float) and math.isfinite(plain):
        return plain
    raise ArgumentError(
        f"configuration[{key!r}]: {value!r} cannot be stored. Write a text, a finite number, True, False or None."
    )


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


def says_out_of_memory(text: str) -> bool:
    return _OUT_OF_MEMORY.search(text) is not None


def unknown_value(argument: str, value: object, valid: Iterable[str], *, remedy: str = "") -> ValueError:
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
