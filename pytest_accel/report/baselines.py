"""Text of baselines: stored runs and their quality, ledgers, and faults of a folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pytest_accel.report.terminal import fitted, text_table
from pytest_accel.stats.baseline_quality import (
    DEFAULT_PRIOR,
    MIN_SESSIONS,
    NO_GATE,
    BaselineQuality,
    NoisePrior,
    baseline_quality,
)
from pytest_accel.stats.comparison import Value, figures
from pytest_accel.stats.environment import TITLES, Environment
from pytest_accel.stats.gate import THROUGHPUT
from pytest_accel.stats.quantities import ASSUMED, counted, noise_percent, percent, printable, si
from pytest_accel.stats.run import RECORD_RUNS, short_name
from pytest_accel.storage.baselines import BaselineEntry, BaselineFile, LedgerEntry
from pytest_accel.storage.codec import encode

_ENVIRONMENT_FACTS = (
    *("device_name", "power_limit_w", "cpu_model"),
    *("driver", "cuda", "torch", "python", "container_image"),
)
_LEGEND = (
    f"± is the 95 % interval; resolves is the loss that the gate catches in 80 % of cases. {ASSUMED}: a single run shows no "
    f"noise; it is assumed. provisional: fewer than {RECORD_RUNS} runs or {MIN_SESSIONS} sessions; record again on other days. "
    "too noisy: the loss that it resolves is larger than its tolerance. "
    f"no gate: it tolerates more than {percent(NO_GATE, 0)}."
)

# --- stored runs ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownBenchmark:
    file: BaselineFile
    key: str
    entry: BaselineEntry
    prior: NoisePrior = DEFAULT_PRIOR

    @property
    def throughput(self) -> Value:
        return figures(self.entry.runs, self.entry.work_per_step, self.entry.unit)[THROUGHPUT]

    @property
    def environment(self) -> Environment:
        """The environment of its newest run."""
        return self.file.environments[self.entry.runs[-1].environment]

    @property
    def quality(self) -> BaselineQuality:
        return baseline_quality(self.entry.runs, self.entry.tolerance, self.prior)


def shown(stored: Sequence[ShownBenchmark]) -> list[str]:
    """Return one table a platform, and below it the noise prior, the environments and the ledger."""
    lines: list[str] = []
    for platform in sorted({each.file.platform for each in stored}):
        own = [each for each in stored if each.file.platform == platform]
        prior = own[0].prior
        source = f"from {counted(prior.benchmarks, 'benchmark')}" if prior.benchmarks else "the default"
        worth = f"worth {prior.degrees_of_freedom:.1f} runs ({source})"
        lines += [
            printable(platform),
            *_table(own),
            f"prior of run-to-run noise: {percent(prior.noise, 2)}, {worth}",
            *_environments(own),
            *_ledger(own),
            "",
        ]
    return fitted([*lines, _LEGEND])


def _table(stored: Sequence[ShownBenchmark]) -> list[str]:
    rows = []
    for each in stored:
        found, entry = each.quality, each.entry
        rows.append(
            [
                short_name(each.key),
                _state(found),
                si(each.throughput.value),
                f"{entry.unit}/s",
                noise_percent(found.resolution, found.runs),
                percent(found.tolerance) + ("" if entry.tolerance is not None else " (default)"),
                str(found.runs),
                str(found.sessions),
                noise_percent(found.noise, found.runs),
                noise_percent(found.step.relative_high, found.runs),
                str(len(entry.anchor) or ""),
            ]
        )
    titles = ["benchmark", "state", "throughput>", "unit", "resolves>", "tolerance>"]
    titles += ["runs>", "sessions>", "noise>", "±>", "anchor runs>"]
    return text_table(titles, rows)


def _state(quality: BaselineQuality) -> str:
    noisy, ungated = "too noisy" if quality.too_noisy else "", "no gate" if quality.no_gate else ""
    return ", ".join(filter(None, ("provisional" if quality.provisional else "", noisy, ungated))) or "ok"


def _environments(stored: Sequence[ShownBenchmark]) -> Iterator[str]:
    """Yield the most distinctive facts of each environment."""
    for environment in {each.environment.key: each.environment for each in stored}.values():
        facts = {**environment.identity, **environment.context}
        found = [f"{TITLES[name]} {facts[name]}" for name in _ENVIRONMENT_FACTS if name in facts]
        yield printable(f"environment {environment.key}: {', '.join(found) or 'nothing known of it'}")


def _ledger(stored: Sequence[ShownBenchmark]) -> Iterator[str]:
    """Yield the lines of the ledgers in the order of time; a line that several benchmarks share comes once."""
    found: dict[LedgerEntry, list[str]] = {}
    for each in stored:
        for line in each.entry.ledger:
            found.setdefault(line, []).append(short_name(each.key))
    lines: list[tuple[str, str]] = []
    for line, names in found.items():
        done = f"{line.action} {counted(line.runs, 'run')}, session {line.session}"
        reason = f": {line.reason}" if line.reason else ""
        of = names[0] if len(names) == 1 else counted(len(names), "benchmark")
        lines.append((line.at, f"{done}{reason} ({of})"))
    removed = dict.fromkeys(gone for each in stored for gone in each.file.removed)
    lines += [(gone.at, f"remove {gone.benchmark}: {gone.reason}") for gone in removed]
    for at, text in sorted(lines, key=lambda each: each[0]):
        yield printable(f"ledger {at} {text}")


def shown_json(stored: Iterable[ShownBenchmark]) -> list[dict[str, Any]]:
    """Return the same as plain values, not rounded."""
    return [
        {
            "platform": each.file.platform,
            "suite": each.file.suite,
            "benchmark": each.key,
            "throughput": each.throughput.value,
            "throughput_low": each.throughput.low,
            "throughput_high": each.throughput.high,
            "unit": each.throughput.unit,
            **asdict(each.quality),
            "tolerance_is_default": each.entry.tolerance is None,
            "provisional": each.quality.provisional or None,
            "prior": asdict(each.prior),
            "anchor_runs": len(each.entry.anchor),
            "configuration": dict(each.entry.configuration),
            "environment": {"key": each.environment.key, **encode(each.environment)},
            "ledger": encode(each.entry.ledger),
        }
        for each in stored
    ]
