"""The columns of the table after the run: one function a column, each from a case to a cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

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
# Metrics that have a column; a gated one without is written below the table.
_IN_COLUMNS = frozenset(
    {
        "mfu",
        "scaling_efficiency",
        "loader_step_s",
        "compute_step_s",
        "loader_efficiency",
        "accuracy",
        "first_epoch_s",
        "time_to_target_s",
        "epoch_s",
        "latency_p50_s",
        "latency_p99_s",
        "energy_per_step_j",
    }
)
_ENERGY = "energy_per_step_j"
_SECONDS_IN = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
Text: TypeAlias = Callable[[Case], str]


def columns_and_rows(cases: Sequence[Case]) -> tuple[list[Column], list[list[Cell]]]:
    """Return all columns of the table and a row for each case."""
    hidden = {"data"} if all_synthetic(cases) else set()  # a line below the table says it once
    shown = [(column, text) for column, text in COLUMNS if column.title not in hidden]
    rows = [[*(Cell(text=text(case)) for _, text in shown), verdict_cell(case)] for case in cases]
    return [*(column for column, _ in shown), Column(title="verdict")], rows


def all_synthetic(cases: Sequence[Case]) -> bool:
    """Whether some benchmarks took batches from somewhere, and all of them took synthetic ones."""
    sources = {case.latest.configuration.get(SOURCE) for case in cases if case.measurements} - {None}
    return sources == {SYNTHETIC}


def gated_without_column(case: Case) -> dict[str, float]:
    if not case.measurements:
        return {}
    metrics = case.latest.run.metrics
    return {name: metrics[name] for name in case.latest.gates if name not in _IN_COLUMNS}


def verdict_cell(case: Case) -> Cell:
    """What became of it, and by how much what decided that changed."""
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
    if case.common and changes:
        changes[0] += " than the platform"
    row = VERDICTS[outcome]
    return Cell(text=" ".join([row.word, ", ".join(changes)]).rstrip(), markup=row.markup)


# --- one function a column: its text, empty where a case has nothing to say -----------------------------


def name(case: Case) -> str:
    """The test and its parameters."""
    return case.item.name


def platform(case: Case) -> str:
    """The platform that it ran as."""
    return str(case.platform)


def data(case: Case) -> str:
    """Synthetic, or the name of the data set that was read."""
    if not case.measurements:
        return ""
    configuration = case.latest.configuration
    source = configuration.get(SOURCE)
    shown = configuration.get("data", source) if is_real(configuration) else source
    return str(shown) if shown is not None else ""


def throughput(case: Case) -> str:
    """Work a second over all runs of the session; in a gang, of all ranks over the time of the slowest."""
    return (
        si(case.latest.work_per_step / interval(case.runs, case.policy).point_s) if case.measurements else ""
    )


def unit(case: Case) -> str:
    """Of the throughput."""
    return f"{case.latest.unit}/s" if case.measurements else ""


def noise(case: Case) -> str:
    """The 95 % interval of run-to-run noise, on its wider side."""
    return percent(interval(case.runs, case.policy).relative_high) if case.measurements else ""


def step(case: Case) -> str:
    """The time of a step."""
    return seconds(interval(case.runs, case.policy).point_s) if case.measurements else ""


def first_step(case: Case) -> str:
    """The time of the first step, which compiles and allocates."""
    first_step_s = case.latest.run.first_step_s if case.measurements else None
    return seconds(first_step_s) if first_step_s else ""


def warmup(case: Case) -> str:
    """The time until steps were steady."""
    warmup_s = case.latest.run.warmup_s if case.measurements else None
    return seconds(warmup_s) if warmup_s else ""


def memory(case: Case) -> str:
    """The most device memory in use; of a gang, on its fullest device."""
    peak = case.latest.run.peak_memory_bytes if case.measurements else None
    return gibibytes(peak) if peak else ""


def loader(case: Case) -> str:
    """What the loader alone reaches."""
    return _rate(case, "loader_step_s")


def compute(case: Case) -> str:
    """What the device alone reaches."""
    return _rate(case, "compute_step_s")


def bound_by(case: Case) -> str:
    """The slower of the two, or both where together they are slower than either."""
    loader_s, compute_s = _metric(case, "loader_step_s"), _metric(case, "compute_step_s")
    share = _metric(case, "loader_efficiency")
    if loader_s is None or compute_s is None:
        return ""
    # Slower than either alone by a tenth: they take turns, at a core, at Python's lock, at the device's memory.
    if share and compute_s / share > 1.1 * max(loader_s, compute_s):
        return "both"
    return "loader" if loader_s > compute_s else "compute"


def loader_efficiency(case: Case) -> str:
    """How much of what the device alone reaches is left with its loader."""
    share = _metric(case, "loader_efficiency")
    return "" if share is None else percent(share)


def first_epoch(case: Case) -> str:
    """The time of the first epoch, which compiles."""
    first_epoch_s = _metric(case, "first_epoch_s")
    return "" if first_epoch_s is None else seconds(first_epoch_s)


def to_target(case: Case) -> str:
    """The time of training until the accuracy that was asked for."""
    target_s = _metric(case, "time_to_target_s")
    return "" if target_s is None else seconds(target_s)


def accuracy(case: Case) -> str:
    """On the test set, after the last epoch."""
    found = _metric(case, "accuracy")
    return "" if found is None else percent(found, 2)


def epoch(case: Case) -> str:
    """The time of a typical epoch after the first, or of `epoch_size` units of work."""
    epoch_s = _metric(case, "epoch_s")
    return "" if epoch_s is None else seconds(epoch_s)


def latency(case: Case) -> str:
    """Of single steps, each waited for: half of them, and all but one in a hundred, are quicker."""
    p50_s, p99_s = _metric(case, "latency_p50_s"), _metric(case, "latency_p99_s")
    if p50_s is None or p99_s is None:
        return ""
    number, unit_shown = seconds(p99_s).split()  # both in the unit of the longer one
    return f"{p50_s / _SECONDS_IN[unit_shown]:.3g} / {number} {unit_shown}"


def energy_of_epoch(case: Case) -> str:
    """What the devices' own counters say of an epoch."""
    step_j = _metric(case, _ENERGY)
    epoch_units = _metric(case, "epoch_size")
    if step_j is None or epoch_units is None:
        return ""
    return si(wh_per_epoch(step_j, epoch_units, case.latest.work_per_step))


def work_per_energy(case: Case) -> str:
    """Units of work per watt-hour; only beside the energy of an epoch or where it is gated, to save width."""
    step_j = _metric(case, _ENERGY)
    gated = case.measurements and _ENERGY in case.latest.gates
    shown = step_j and (gated or _metric(case, "epoch_size") is not None)
    return si(units_per_wh(step_j, case.latest.work_per_step)) if shown and step_j else ""


def mfu(case: Case) -> str:
    """The share of the device's dense peak at this precision that the step's arithmetic reaches."""
    found = _metric(case, "mfu")
    return "" if found is None else percent(found)


def scaling(case: Case) -> str:
    """Throughput per device against the baseline of the same benchmark on fewer devices."""
    return percent(case.scaling[1].efficiency) if case.scaling else ""


def _right(title: str) -> Column:
    return Column(title=title, right=True)


# In the order of the table, which leaves out those in which no row has anything.
COLUMNS: tuple[tuple[Column, Text], ...] = (
    (Column(title="benchmark"), name),
    (Column(title="platform"), platform),
    (Column(title="data"), data),
    (_right("throughput"), throughput),
    (Column(title="unit"), unit),
    (_right("±"), noise),
    (_right("step"), step),
    (_right("latency p50 / p99"), latency),
    (_right("first step"), first_step),
    (_right("warm-up"), warmup),
    (_right("loader"), loader),
    (_right("compute"), compute),
    (Column(title="bound by"), bound_by),
    (_right("loader eff."), loader_efficiency),
    (_right("first epoch"), first_epoch),
    (_right("epoch"), epoch),
    (_right("accuracy"), accuracy),
    (_right("to target"), to_target),
    (_right("memory"), memory),
    (_right("MFU"), mfu),
    (_right("Wh/epoch"), energy_of_epoch),
    (_right("units/Wh"), work_per_energy),
    (_right("scaling"), scaling),
)


def _metric(case: Case, metric: str) -> float | None:
    return case.latest.run.metrics.get(metric) if case.measurements else None


def _rate(case: Case, metric: str) -> str:
    """The work of a step over its time, in the unit of the throughput."""
    step_s = _metric(case, metric)
    return si(case.latest.work_per_step / step_s) if step_s else ""
