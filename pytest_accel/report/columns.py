"""Columns of a table of results, each with the text of a result's cell; terminal, page and documentation read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pytest_accel.report.terminal import Cell, change
from pytest_accel.report.verdicts import VERDICTS, shown_status
from pytest_accel.stats import energy
from pytest_accel.stats.quantities import ASSUMED, gibibytes, noise_percent, percent, seconds, si
from pytest_accel.stats.results import Ending, Result
from pytest_accel.stats.run import SOURCE, is_real

SYNTHETIC = "synthetic"
_ENERGY = "energy_per_step_j"


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of measured benchmarks; a cell is empty where a result has nothing to show."""

    title: str
    cell: Callable[[Result], str]
    meaning: str
    metrics: tuple[str, ...] = ()  # that it shows: gated metrics of no column get a note
    right: bool = True
    always: bool = False  # also of what was not measured


def columns_and_rows(results: Sequence[Result]) -> tuple[list[str], list[list[Cell]]]:
    hidden = {"data"} if all_synthetic(results) else set()  # a line below the table says it once
    shown = [column for column in COLUMNS if column.title not in hidden]
    titles = ["benchmark", "verdict", *(f"{each.title}>" if each.right else each.title for each in shown)]
    rows = [
        [
            Cell(text=result.name),
            _verdict_cell(result),
            *(Cell(text=column.cell(result) if result.runs or column.always else "") for column in shown),
        ]
        for result in results
    ]
    return titles, rows


def all_synthetic(results: Sequence[Result]) -> bool:
    """Whether some benchmarks took batches from a source, and all of them synthetic ones."""
    return {result.configuration.get(SOURCE) for result in results} - {None} == {SYNTHETIC}


def _verdict_cell(result: Result) -> Cell:
    """Return the status of a result, and by how much the deciding metrics changed."""
    row = VERDICTS[shown_status(result)]
    changed = change(result) if shown_status(result) is not Ending.FAILED else ""
    text = result.text if result.status is Ending.RECORDED else f"{row.word} {changed}".rstrip()
    return Cell(text=text, markup=row.markup)


def _data(result: Result) -> str:
    configuration = result.configuration
    source = configuration.get(SOURCE, "")
    return str(configuration.get("data", source) if is_real(configuration) else source)


def _latency(result: Result) -> str:
    p50_s, p99_s = result.metrics.get("latency_p50_s"), result.metrics.get("latency_p99_s")
    if p50_s is None or p99_s is None:
        return ""
    return f"{seconds(p50_s)} / {seconds(p99_s)}"


def _bound_by(result: Result) -> str:
    loader_s, compute_s = result.metrics.get("loader_step_s"), result.metrics.get("compute_step_s")
    if loader_s is None or compute_s is None:
        return ""
    # Slower than either alone by a tenth: both compete for a core, Python's lock or the device's memory.
    efficiency = result.metrics.get("loader_efficiency")
    if efficiency and compute_s / efficiency > 1.1 * max(loader_s, compute_s):
        return "both"
    return "loader" if loader_s > compute_s else "compute"


def _energy_of_epoch(result: Result) -> str:
    step_j, epoch_size = result.metrics.get(_ENERGY), result.metrics.get("epoch_size")
    if step_j is None or epoch_size is None:
        return ""
    return si(energy.wh_per_epoch(step_j, epoch_size, result.work_per_step))


def _work_per_energy(result: Result) -> str:
    step_j = result.metrics.get(_ENERGY)
    is_gated = any(line.of == _ENERGY for line in result.lines)
    wanted = is_gated or "epoch_size" in result.metrics  # else it only widens the table
    return si(energy.units_per_wh(step_j, result.work_per_step)) if step_j and wanted else ""


def _metric(title: str, name: str, show: Callable[[float], str], meaning: str) -> ResultColumn:
    return ResultColumn(
        title, lambda result: show(result.metrics[name]) if name in result.metrics else "", meaning, (name,)
    )


def _of_run(title: str, name: str, show: Callable[[float], str], meaning: str) -> ResultColumn:
    return ResultColumn(
        title, lambda result: show(value) if (value := getattr(result.runs[-1], name)) else "", meaning
    )


def _rate(title: str, name: str, meaning: str) -> ResultColumn:
    """Return the column of the work of a step over a measured time, in the unit of the throughput."""
    return ResultColumn(
        title,
        lambda result: si(result.work_per_step / step_s) if (step_s := result.metrics.get(name)) else "",
        meaning,
        (name,),
    )


# The most important first: a narrow terminal leaves out the last ones. A column in which no row has anything is left out.
COLUMNS = (
    ResultColumn(
        "throughput",
        lambda result: si(result.throughput or 0),
        "Work a second over all runs of the session; in a process group, of all ranks over the time of the slowest.",
    ),
    ResultColumn("unit", lambda result: f"{result.unit}/s", "Of the throughput.", right=False),
    ResultColumn(
        "±",
        lambda result: noise_percent(result.plus_minus, len(result.runs)),
        f"95 % interval of run-to-run noise; {ASSUMED} where a single run was measured, which shows none: it is assumed.",
    ),
    ResultColumn("step", lambda result: seconds(result.step.point_s), "The time of a step."),
    _metric("MFU", "mfu", percent, "The step's arithmetic over the device's dense peak at this precision."),
    _of_run("memory", "peak_memory_bytes", gibibytes, "Of the device at its peak; of ranks, of the fullest."),
    ResultColumn("platform", lambda result: result.platform, "What it ran as.", right=False, always=True),
    ResultColumn("data", _data, "Synthetic, or the name of the data set that was read.", right=False),
    ResultColumn(
        "scaling",
        lambda result: percent(result.scaling.efficiency) if result.scaling else "",
        "Throughput per device against the baseline of the same benchmark on fewer devices.",
        ("scaling_efficiency",),
    ),
    ResultColumn(
        "latency p50 / p99",
        _latency,
        "Of single steps, each waited for: half of them, and 99 of 100, are quicker.",
        ("latency_p50_s", "latency_p99_s"),
    ),
    ResultColumn(
        "bound by", _bound_by, "The slower of the two; both where they disturb each other.", right=False
    ),
    _metric(
        "loader eff.", "loader_efficiency", percent, "The device's own rate that is left with its loader."
    ),
    _rate("loader", "loader_step_s", "The rate of the loader alone."),
    _rate("compute", "compute_step_s", "The rate of the device alone."),
    _metric("accuracy", "accuracy", partial(percent, digits=2), "On the test set, after the last epoch."),
    _metric("to target", "time_to_target_s", seconds, "The time of training until the wanted accuracy."),
    _metric("epoch", "epoch_s", seconds, "The time of a later epoch, or of `epoch_size` units of work."),
    _metric("first epoch", "first_epoch_s", seconds, "The time of the first epoch, which compiles."),
    ResultColumn("Wh/epoch", _energy_of_epoch, "Energy of an epoch, by the devices' counters.", (_ENERGY,)),
    ResultColumn("units/Wh", _work_per_energy, "Units of work per watt-hour.", (_ENERGY,)),
    _of_run("first step", "first_step_s", seconds, "Of the first step, which compiles and allocates."),
    _of_run("warm-up", "warmup_s", seconds, "The time until steps were steady."),
)
METRICS_IN_COLUMNS = frozenset(name for column in COLUMNS for name in column.metrics)
