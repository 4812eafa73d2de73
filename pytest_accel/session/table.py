"""The table of the terminal summary: its columns, each with the text of a case's cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_accel.report.terminal import Cell, Column, changed
from pytest_accel.report.verdicts import VERDICTS, is_settled
from pytest_accel.session.case import Case
from pytest_accel.session.reports import failures
from pytest_accel.stats.energy import units_per_wh, wh_per_epoch
from pytest_accel.stats.gate import interval
from pytest_accel.stats.metric_gates import shown_name
from pytest_accel.stats.quantities import gibibytes, percent, seconds, si
from pytest_accel.stats.results import Ending
from pytest_accel.stats.run import SOURCE, is_real
from pytest_accel.stats.verdict import Outcome

SYNTHETIC = "synthetic"
_ENERGY = "energy_per_step_j"
_SECONDS_IN = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of measured benchmarks; a cell is empty where a case has nothing to show."""

    title: str
    cell: Callable[[Case], str]
    meaning: str
    metrics: tuple[str, ...] = ()  # that it shows: gated metrics of no column get a line below the table
    right: bool = True


def columns_and_rows(cases: Sequence[Case]) -> tuple[list[Column], list[list[Cell]]]:
    """Return the columns of the table and a row for each case."""
    hidden = {"data"} if all_synthetic(cases) else set()  # a line below the table says it once
    shown = [column for column in COLUMNS if column.title not in hidden]
    titles = [Column(title="benchmark"), Column(title="platform")]
    titles += [Column(title=column.title, right=column.right) for column in shown]
    rows = [
        [
            Cell(text=case.item.name),
            Cell(text=str(case.platform)),
            *(Cell(text=column.cell(case) if case.measurements else "") for column in shown),
            verdict_cell(case),
        ]
        for case in cases
    ]
    return [*titles, Column(title="verdict")], rows


def all_synthetic(cases: Sequence[Case]) -> bool:
    """Whether some benchmarks took batches from a source, and all of them synthetic ones."""
    sources = {case.latest.configuration.get(SOURCE) for case in cases if case.measurements} - {None}
    return sources == {SYNTHETIC}


def gated_without_column(case: Case) -> dict[str, float]:
    if not case.measurements:
        return {}
    metrics = case.latest.run.metrics
    return {name: metrics[name] for name in case.latest.gates if name not in METRICS_IN_COLUMNS}


def verdict_cell(case: Case) -> Cell:
    """Return the outcome of a case, and by how much the deciding metrics changed."""
    if case.recorded:
        return Cell(text=case.recorded, markup={"green": True})
    if case.problem or (case.shortfalls and not failures(case)):
        failed = VERDICTS[Ending.FAILED]
        return Cell(text=failed.word, markup=failed.markup)
    outcome = case.outcome
    if outcome is None:
        return Cell(text="not recorded", markup={"yellow": True})
    deciding = [verdict for verdict in case.verdicts if verdict.outcome is outcome]
    if is_settled(outcome) or outcome is Outcome.IMPROVED:
        deciding = deciding[:1]  # the throughput
    changes = [
        changed(verdict.slowdown.point, verdict.of)
        if verdict is case.verdict
        else f"{shown_name(verdict.of)} {changed(verdict.slowdown.point, verdict.of)}"
        for verdict in deciding
        if verdict.slowdown
    ]
    if case.unfit and outcome is Outcome.REGRESSED:
        changes = ["does not fit"]
    if case.platform_loss and changes:
        changes[0] += " than the platform"
    row = VERDICTS[outcome]
    return Cell(text=" ".join([row.word, ", ".join(changes)]).rstrip(), markup=row.markup)


def _metric(name: str, show: Callable[[float], str]) -> Callable[[Case], str]:
    """Return the text of a metric, or nothing where it was not measured."""

    def text(case: Case) -> str:
        value = case.latest.run.metrics.get(name)
        return "" if value is None else show(value)

    return text


def _rate(name: str) -> Callable[[Case], str]:
    """Return the work of a step over a measured time, in the unit of the throughput."""

    def text(case: Case) -> str:
        step_s = case.latest.run.metrics.get(name)
        return si(case.latest.work_per_step / step_s) if step_s else ""

    return text


def _data(case: Case) -> str:
    configuration = case.latest.configuration
    source = configuration.get(SOURCE)
    shown = configuration.get("data", source) if is_real(configuration) else source
    return str(shown) if shown is not None else ""


def _noise(case: Case) -> str:
    return percent(interval(case.runs, case.policy).relative_high)


def _first_step(case: Case) -> str:
    first_step_s = case.latest.run.first_step_s
    return seconds(first_step_s) if first_step_s else ""


def _warmup(case: Case) -> str:
    warmup_s = case.latest.run.warmup_s
    return seconds(warmup_s) if warmup_s else ""


def _memory(case: Case) -> str:
    peak = case.latest.run.peak_memory_bytes
    return gibibytes(peak) if peak else ""


def _latency(case: Case) -> str:
    metrics = case.latest.run.metrics
    p50_s, p99_s = metrics.get("latency_p50_s"), metrics.get("latency_p99_s")
    if p50_s is None or p99_s is None:
        return ""
    number, unit = seconds(p99_s).split()  # both in the unit of the longer one
    return f"{p50_s / _SECONDS_IN[unit]:.3g} / {number} {unit}"


def _bound_by(case: Case) -> str:
    metrics = case.latest.run.metrics
    loader_s, compute_s = metrics.get("loader_step_s"), metrics.get("compute_step_s")
    if loader_s is None or compute_s is None:
        return ""
    # Slower than either alone by a tenth: both compete for a core, Python's lock or the device's memory.
    efficiency = metrics.get("loader_efficiency")
    if efficiency and compute_s / efficiency > 1.1 * max(loader_s, compute_s):
        return "both"
    return "loader" if loader_s > compute_s else "compute"


def _energy_of_epoch(case: Case) -> str:
    metrics = case.latest.run.metrics
    step_j, epoch_size = metrics.get(_ENERGY), metrics.get("epoch_size")
    if step_j is None or epoch_size is None:
        return ""
    return si(wh_per_epoch(step_j, epoch_size, case.latest.work_per_step))


def _work_per_energy(case: Case) -> str:
    metrics = case.latest.run.metrics
    step_j = metrics.get(_ENERGY)
    wanted = _ENERGY in case.latest.gates or "epoch_size" in metrics  # else it only widens the table
    return si(units_per_wh(step_j, case.latest.work_per_step)) if step_j and wanted else ""


def _scaling(case: Case) -> str:
    return percent(case.scaling[1].efficiency) if case.scaling else ""


# In the order of the table, which leaves out columns in which no row has anything.
COLUMNS = (
    TableColumn("data", _data, "Synthetic, or the name of the data set that was read.", right=False),
    TableColumn(
        "throughput",
        lambda case: si(case.throughput),
        "Work a second over all runs of the session; in a process group, of all ranks over the time of the slowest.",
    ),
    TableColumn("unit", lambda case: f"{case.latest.unit}/s", "Of the throughput.", right=False),
    TableColumn("±", _noise, "The 95 % interval of run-to-run noise, on its wider side."),
    TableColumn("step", lambda case: seconds(case.step_time_s), "The time of a step."),
    TableColumn(
        "latency p50 / p99",
        _latency,
        "Of single steps, each waited for: half of them, and 99 of 100, are quicker.",
        ("latency_p50_s", "latency_p99_s"),
    ),
    TableColumn("first step", _first_step, "The time of the first step, which compiles and allocates."),
    TableColumn("warm-up", _warmup, "The time until steps were steady."),
    TableColumn("loader", _rate("loader_step_s"), "The rate of the loader alone.", ("loader_step_s",)),
    TableColumn("compute", _rate("compute_step_s"), "The rate of the device alone.", ("compute_step_s",)),
    TableColumn(
        "bound by",
        _bound_by,
        "The slower of the two, or both where together they are slower than either.",
        right=False,
    ),
    TableColumn(
        "loader eff.",
        _metric("loader_efficiency", percent),
        "The part of the device's own rate that is left with its loader.",
        ("loader_efficiency",),
    ),
    TableColumn(
        "first epoch",
        _metric("first_epoch_s", seconds),
        "The time of the first epoch, which compiles.",
        ("first_epoch_s",),
    ),
    TableColumn(
        "epoch",
        _metric("epoch_s", seconds),
        "The time of a typical epoch after the first, or of `epoch_size` units of work.",
        ("epoch_s",),
    ),
    TableColumn(
        "accuracy",
        _metric("accuracy", lambda value: percent(value, 2)),
        "On the test set, after the last epoch.",
        ("accuracy",),
    ),
    TableColumn(
        "to target",
        _metric("time_to_target_s", seconds),
        "The time of training until the wanted accuracy.",
        ("time_to_target_s",),
    ),
    TableColumn(
        "memory", _memory, "The most device memory in use; of a process group, on its fullest device."
    ),
    TableColumn(
        "MFU",
        _metric("mfu", percent),
        "The share of the device's dense peak at this precision that the step's arithmetic reaches.",
        ("mfu",),
    ),
    TableColumn(
        "Wh/epoch", _energy_of_epoch, "Energy of an epoch, by the devices' own counters.", (_ENERGY,)
    ),
    TableColumn("units/Wh", _work_per_energy, "Units of work per watt-hour.", (_ENERGY,)),
    TableColumn(
        "scaling",
        _scaling,
        "Throughput per device against the baseline of the same benchmark on fewer devices.",
        ("scaling_efficiency",),
    ),
)
METRICS_IN_COLUMNS = frozenset(name for column in COLUMNS for name in column.metrics)
