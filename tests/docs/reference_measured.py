"""The page of what was measured, made of the baselines that are committed."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from pytest_accel.report.baselines import Stored, environment_words
from pytest_accel.stats.quantities import counted, gibibytes, percent, seconds, si
from pytest_accel.storage.sources import find_source
from tests.docs.reference import code, table

FOLDER = Path(__file__).parents[2] / "baselines"
PUBLISHED = "published"  # what studies say, and nobody measured here
HEADS = (
    "benchmark",
    "data",
    "throughput",
    "±",
    "tolerated",
    "step",
    "first step",
    "memory",
    "MFU",
    "power",
    "units/Wh",
    "runs",
    "sessions",
)


def measured() -> str:
    platforms = sorted(folder.name for folder in FOLDER.iterdir() if folder.name != PUBLISHED)
    return (
        "# Measured\n\n"
        "What the baselines hold that are committed here. Throughput and step are those that the gate judges by, over all runs; the others are medians over them.\n\n"
        "± is the 95 % interval of the throughput, with the run-to-run noise that the gate assumes of few runs; *tolerated* is the loss that the gate is asked to catch: 5 %, or what "
        "noisy runs [resolve](../baselines.md#tolerance). The first step has compiling in "
        "it, or finding what was compiled. Power and energy are the device's. `pytest bench_suites -m PLATFORM` measures them again and judges "
        "the result.\n\n" + "".join(map(_platform, platforms))
    )


def _platform(name: str) -> str:
    files = find_source(f"platform:{name}", FOLDER).files
    stored = [
        Stored(file=file, key=key, entry=entry) for file in files for key, entry in file.benchmarks.items()
    ]
    newest = max(stored, key=lambda each: each.entry.runs[-1].session)
    runs = sum(len(each.entry.runs) for each in stored)
    provisional = sum(bool(each.standing.provisional) for each in stored)
    return (
        f"## {code(name)}\n\n"
        f"{counted(len(stored), 'benchmark')}, {counted(runs, 'run')}; {provisional} of them provisional. The newest run: "
        f"{environment_words(newest.environment)}.\n\n"
        + "".join(_suite(file.suite, stored) for file in files)
    )


def _suite(name: str, stored: list[Stored]) -> str:
    rows = [_row(each) for each in stored if each.file.suite == name]
    return f"### {name}\n\n" + table(HEADS, rows)


def _row(each: Stored) -> tuple[str, ...]:
    runs, entry = each.entry.runs, each.entry

    def metric(name: str) -> float | None:
        values = [run.metrics[name] for run in runs if name in run.metrics]
        return median(values) if values else None

    mfu, watts, joules = metric("mfu"), metric("power_mean_w"), metric("energy_per_step_j")
    first = [run.first_step_s for run in runs if run.first_step_s is not None]
    memory = [run.peak_memory_bytes for run in runs if run.peak_memory_bytes is not None]
    return (
        code(each.key.partition("::")[2]),
        str(entry.configuration.get("data_source", "")),
        f"{si(each.throughput)} {entry.unit}/s",
        percent(each.standing.step.relative_high),
        percent(each.standing.tolerance),
        seconds(entry.work_per_step / each.throughput),
        seconds(median(first)) if first else "",
        gibibytes(round(median(memory))) if memory else "",
        percent(mfu) if mfu is not None else "",
        f"{watts:.0f} W" if watts is not None else "",
        si(3600 * entry.work_per_step / joules) if joules else "",
        str(len(runs)),
        str(each.standing.sessions),
    )
