"""Verdicts beside the plain one: the shift that a platform's benchmarks share, gated metrics, the anchor."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from pytest_accel.stats import gate
from pytest_accel.stats.gate import LOSSES, THROUGHPUT, Estimate, Outcome, Policy, Verdict
from pytest_accel.stats.quantities import parse_fixed_tolerance
from pytest_accel.stats.run import Run, Summarized, median_error

FEWEST_MEMBERS = 8  # of fewer, two that regressed could pass for the machine
LEVEL = 0.02  # one-sided, of c beyond half the tolerance: the gate's own after the fourth repeat
SIGN_LEVEL = 0.05  # chance that a fair coin gives as many slower benchmarks: 7 of 8, 15 of 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftMember:
    """One benchmark of a platform: the runs of its baseline, and those of this session."""

    baseline: Sequence[Run]
    runs: Sequence[Run]
    tolerance: float
    regressed: bool = False  # judged by itself

    @property
    def d(self) -> float:
        return gate.centre(gate.summaries(self.runs)) - gate.centre(gate.summaries(self.baseline))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformShift:
    """Change of speed that the benchmarks of one platform share in a session."""

    c: float  # median of d, of ln(step time); above 0 is slower
    at_least: float  # lower bound of c
    slower: int  # benchmarks that lost more than half of c
    members: int
    tolerance: float  # their median
    regressed: bool  # whether c counts: it is one failure, and each benchmark is judged on the rest

    @property
    def loss(self) -> float:
        """c as a loss of throughput."""
        return gate.loss(self.c)


def judge_platform_shift(members: Sequence[ShiftMember]) -> PlatformShift | None:
    """Return what they share; None where they are too few to tell."""
    if len(members) < FEWEST_MEMBERS:
        return None
    differences = [each.d for each in members]
    c, tolerance = median(differences), median(each.tolerance for each in members)
    at_least = c - gate.t_quantile(LEVEL, len(members) - 1) * median_error(differences)
    slower = sum(d > c / 2 for d in differences)
    is_common = at_least > -math.log1p(-tolerance) / 2 and slower >= fewest_slower(len(members))
    return PlatformShift(
        c=c,
        at_least=at_least,
        slower=slower,
        members=len(members),
        tolerance=tolerance,
        regressed=is_common and any(each.regressed for each in members),
    )


def fewest_slower(members: int) -> int:
    """Return the smallest number of heads that a fair coin reaches in at most SIGN_LEVEL of cases."""
    chance, count = 0.0, members + 1
    while count > 0 and chance + math.comb(members, count - 1) / 2**members <= SIGN_LEVEL:
        count -= 1
        chance += math.comb(members, count) / 2**members
    return count


def judge_rest(baseline: Sequence[Run], candidate: Sequence[Run], c: float, policy: Policy) -> Verdict:
    """Judge a benchmark on what it lost beside c, at best as ok: less than the others lost is no gain. Plainly where c is 0."""
    if not c:
        return gate.judge(baseline, candidate, policy)
    kept = math.exp(-c)
    rest = [replace(run, rounds_s=tuple(kept * seconds for seconds in run.rounds_s)) for run in candidate]
    return at_best_ok(replace(gate.judge(baseline, rest, policy), common=gate.loss(c)), policy)


def at_best_ok(verdict: Verdict, policy: Policy) -> Verdict:
    """Return a gain as ok, without another run to be sure of it."""
    if verdict.outcome not in {Outcome.OK, Outcome.IMPROVED}:
        return verdict
    unconfirmed = gate.is_unconfirmed(verdict.outcome, verdict.slow_group, policy)
    return replace(verdict, outcome=Outcome.OK, wants_another_run=verdict.wants_another_run and unconfirmed)


def total_slowdown(verdict: Verdict) -> Estimate | None:
    """Return the loss of a benchmark with that of its platform; None where nothing was compared."""
    found, kept = verdict.slowdown, 1 - verdict.common
    return found and found.mapped(lambda lost: 1 - kept * (1 - lost)) if verdict.common else found


# --- names of metrics -------------------------------------------------------------------------------

# As runs store them: in baselines, in results, in the history. What a benchmark adds itself (`metrics=`) stands beside.
OF_ANY_STEP: Mapping[str, str] = {
    "host_cpu_s_per_step": "CPU time that the process spent on a step, in seconds.",
    "cpu_wait_s_per_step": "The time a step for which threads of the process were ready and waited for a CPU, in seconds: of the longest, half of the next, a third of the third, since threads wait for each other (Linux).",
    "cpu_throttled_s_per_step": "The time a step for which the CPU quota of its control group stopped the process, in seconds; where it did.",
    "other_cpu_share": "The share of the time of its CPUs that other processes used in the window; its children, such as loader workers, are its own.",
    "usable_cpus": "The CPUs that the process may use, by affinity and quota.",
    "cpu_clock_mhz": "The clock of the main thread's CPU where the window began and ended, in MHz; where the kernel shows it.",
    "compiled_graphs": "How many graphs torch.compile made of the step; where it is used.",
    "graph_breaks": "How often torch.compile broke off a graph; where it did.",
    "launch_s": "The time until the host is done with a step, the device idle before, in seconds; on accelerators. Short of the step where the device is what takes long; as long where the host is, or waits in the step itself: for a batch, for a result (`.item()`), or for room among a thousand launches.",
    "tflops": "Arithmetic of the model a second, in TFLOP/s; where the operations of a step are known.",
    "mfu": "Its share of the device's dense peak at the precision; where the catalogue has that peak.",
    "memory_gb_per_s": "What a step moves through the device's memory, in GB a second, as `accel.measure(bytes_moved=...)` says.",
    "roofline_share": "The least time that arithmetic and memory allow, as a share of the step's: 1 where nothing is left to gain; where `bytes_moved=` and the device's bandwidth are known.",
    "energy_per_step_j": "What the device's own counter says of a step, in joules; of all devices of a process group.",
    "energy_sampled_per_step_j": "The same from power that was sampled beside the rounds: a check of the counter.",
    "energy_j": "What the devices used over the whole measured window, in joules.",
    "power_mean_w": "Mean power of a device over the window, in watts.",
    "power_peak_w": "The highest power of a device that was sampled, in watts.",
    "tdp_share": "Mean power over the device's TDP; where the catalogue has that.",
    "node_cpu_energy_per_step_j": "What the CPUs of the nodes used for a step, in joules; where they have counters.",
    "node_module_energy_per_step_j": "What whole modules (CPU, GPU and memory) used for a step, in joules; it contains the devices' energy.",
    "sm_clock_mhz": "Mean clock of the multiprocessors over the window, in MHz.",
    "locked_clock_mhz": "The clock of the multiprocessors that samples never left, well below the highest and without a reason of the driver's, in MHz: a lock (`nvidia-smi -lgc`) or a cap.",
    "memory_clock_mhz": "Mean clock of the device's memory over the window, in MHz.",
    "temperature_c": "The highest temperature of the device in the window, in degrees Celsius.",
    "power_capped_share": "The share of the window in which the power limit held the clocks down.",
    "throttled_share": "The share of the window in which heat or the hardware itself held the clocks down.",
    "slowdown_felt": "How much of --accel-slowdown was felt; its presence says that a run was slowed on purpose.",
    "scaling_efficiency": "Throughput per device against the baseline of the same benchmark on fewer devices: 1 where nothing was lost.",
}
# Of what `train`, `infer` and `converge` build; a step of the user's own may measure the like, under the same name.
OF_BUILT_STEPS: Mapping[str, str] = {
    "loader_step_s": "The time in which the loader alone makes a batch, in seconds.",
    "compute_step_s": "The time of a step whose batch is ready, in seconds.",
    "loader_efficiency": "What is left of the device's own rate when batches have to be loaded: 1 where the loader hides behind the step. Gated.",
    "latency_p50_s": "The time that half of the single steps stay below, each waited for, in seconds (`infer(..., latency=True)`).",
    "latency_p90_s": "The same for nine of ten.",
    "latency_p99_s": "The same for 99 of 100.",
    "epoch_size": "Units of work that count as one epoch (`epoch_size=`).",
    "epoch_s": "The time of an epoch, in seconds: of `epoch_size`, or (`converge`) the typical one after the first.",
    "first_epoch_s": "The time of the first epoch, which compiles, in seconds (`converge`).",
    "accuracy": "The share of the test set that the model has right after the last epoch (`converge`). Gated.",
    "time_to_target_s": "The time of training until the target accuracy, in seconds (`converge`).",
}
MEASURED: Mapping[str, str] = {**OF_ANY_STEP, **OF_BUILT_STEPS}

# How it was measured, and under what conditions: neither more nor less of these is better, and no gate takes them.
# `energy_j` grows with the window, `energy_sampled_per_step_j` checks the counter, whose figure is gated, and a faster step may
# need more power: energy is what it costs.
DESCRIPTIVE = frozenset(
    {
        *("cpu_wait_s_per_step", "cpu_throttled_s_per_step", "other_cpu_share", "usable_cpus"),
        *("compiled_graphs", "graph_breaks", "slowdown_felt", "epoch_size", "temperature_c"),
        *("cpu_clock_mhz", "sm_clock_mhz", "locked_clock_mhz", "memory_clock_mhz"),
        *("energy_j", "energy_sampled_per_step_j", "power_mean_w", "power_peak_w", "tdp_share"),
        *("power_capped_share", "throttled_share"),
    }
)
_COSTS = ("_s", "_j")  # the units in a name: seconds and joules
# What they buy: said in full, or as everybody writes it (`bandwidth_gb_s`).
_RATE = re.compile(
    r"(.*_)?(per|[kmgt]?i?b|bytes|bits|t?flops?|ops|images|tokens|samples|sequences|requests|frames|items|steps|words|units)_[sj]"
)


def is_rate(name: str) -> bool:
    """Return whether a name says what a second or a joule buys: `tokens_per_s`, `bandwidth_gb_s`."""
    return _RATE.fullmatch(name) is not None


def is_cost(name: str) -> bool:
    """Return whether a name ends in seconds or joules that are spent: `decode_s`, and not `tokens_per_s`."""
    return name.endswith(_COSTS) and not is_rate(name)


# By what name people ask for a metric, and read it: work per step belongs to the configuration, so that energy per
# step and energy per unit of work rise together, and both are "energy".
SHORT_NAMES: Mapping[str, str] = {"energy": "energy_per_step_j", "latency": "latency_p99_s"}
# No metric, whose names are identifiers: throughput once more, against the anchor.
ANCHOR = "since-anchor"
_SHOWN: Mapping[str, str] = {
    **{metric: short for short, metric in SHORT_NAMES.items()},
    ANCHOR: "since the anchor",
}


def less_is_better(name: str) -> bool:
    """Return which way is better; a user's own name shows it by its unit: `decode_s` is a cost, `tokens_per_s` is not."""
    return name not in DESCRIPTIVE and (is_cost(name) or name == "host_cpu_s_per_step")


def shown_name(metric: str) -> str:
    """Return the name of a metric in verdicts."""
    return _SHOWN.get(metric, metric)


# --- verdicts ---------------------------------------------------------------------------------------

ANCHOR_SHARE = 1.5  # of the tolerance: a release may have cost something that was accepted


def judge_metrics(
    baseline: Sequence[Run], runs: Sequence[Run], gates: Mapping[str, float], policy: Policy
) -> tuple[Verdict, ...]:
    """Judge each metric with its own tolerance, a loss of it, or its increase where less of it is better."""
    return tuple(_judge_metric(name, baseline, runs, tolerance, policy) for name, tolerance in gates.items())


def judge_anchor(anchor: Sequence[Run], candidate: Sequence[Run], c: float, policy: Policy) -> Verdict:
    """Judge the candidate against the anchor; `c` is the shift of its platform, 0 where that does not count.

    A baseline that is refreshed again and again follows a slow loss down; the anchor does not. Faster than it is ok.
    """
    wider = replace(policy, tolerance=min(ANCHOR_SHARE * policy.tolerance, 0.99))
    return replace(at_best_ok(judge_rest(anchor, candidate, c, wider), wider), of=ANCHOR)


def worst(throughput: Verdict, metrics: Sequence[Verdict]) -> Outcome:
    """Return the outcome of all: regressed if any is, else unstable, else inconclusive, else that of the throughput."""
    outcomes = [throughput.outcome, *(verdict.outcome for verdict in metrics)]
    for outcome in (Outcome.REGRESSED, Outcome.UNSTABLE, Outcome.INCONCLUSIVE):
        if outcome in outcomes:
            return outcome
    return throughput.outcome


def want_another_run(throughput: Verdict, metrics: Sequence[Verdict]) -> bool:
    """Return whether another run could decide anything; a failure ends all repeats."""
    if worst(throughput, metrics) in LOSSES:
        return False
    return any(verdict.wants_another_run for verdict in (throughput, *metrics))


def is_gateable(value: float) -> bool:
    """Return whether a value and its reciprocal are positive and finite: the gate works on logarithms."""
    return value > 0 and math.isfinite(value) and math.isfinite(1 / value)


def _judge_metric(
    name: str, baseline: Sequence[Run], runs: Sequence[Run], tolerance: float, policy: Policy
) -> Verdict:
    stored = _values(baseline, name)
    if not stored:
        return Verdict(
            outcome=Outcome.NO_BASELINE,
            tolerance=tolerance,
            runs=len(runs),
            reason="no stored run has it above zero, so that it was not judged; add runs that do with --accel-record",
            of=name,
        )
    # An increase by r is the loss r/(1+r) of what it buys: delta is then ln(1+r).
    lost = tolerance / (1 + tolerance) if less_is_better(name) else tolerance
    verdict = gate.judge(stored, _values(runs, name), replace(policy, tolerance=lost), noise_only_slows=False)
    if less_is_better(name) and verdict.slowdown is not None and verdict.resolution is not None:
        increases, resolution = verdict.slowdown.mapped(_increase), _increase(verdict.resolution)
        verdict = replace(verdict, slowdown=increases, resolution=resolution)
    return replace(verdict, of=name, tolerance=tolerance)


def _increase(loss: float) -> float:
    """Convert 1 - exp(-d) to exp(d) - 1; of a loss that rounds to all, to a number still."""
    return loss / max(1 - loss, 2.0**-53)


def _values(runs: Sequence[Run], name: str) -> list[Summarized]:
    """Return ln q of the runs that measured a metric q; -ln q where more is better, so that worse is always above."""
    is_cost_like = less_is_better(name)
    return [
        Summarized(run.session, math.log(value if is_cost_like else 1 / value))
        for run in runs
        if is_gateable(value := run.metrics.get(name, 0.0))
    ]


# --- --accel-gate -----------------------------------------------------------------------------------

# More-is-better metrics that say something beside throughput: tflops and mfu are throughput in other units.
_MORE = frozenset({"accuracy", "loader_efficiency"})
# By every accepted name; a short name comes before its metric.
METRICS: dict[str, str] = {
    **SHORT_NAMES,
    **{name: name for name in sorted({*filter(less_is_better, MEASURED), *_MORE})},
}
NAMES = (THROUGHPUT, *(name for name in METRICS if name not in SHORT_NAMES.values()))  # as errors list them


def parse_gates(text: str) -> dict[str, float | None]:
    """Parse `throughput,energy=8%` to metrics with their tolerance or None, in their order.

    Throughput is gated always: it may be named, and is not among them.
    """
    found: dict[str, float | None] = {}
    for part in text.strip(", ").split(","):
        name, given, tolerance = (each.strip() for each in part.partition("="))
        if name == THROUGHPUT and not given:
            continue
        if name not in METRICS:
            raise ValueError(
                f"names {part.strip()!r}, which is not gated here. Valid, separated by commas: {', '.join(NAMES)}; each but "
                "throughput, which has accel_tolerance, with a tolerance of its own where it needs one, energy=8%. "
                "A metric of your own is gated where it is measured: gates={...} of accel.measure."
            )
        try:
            found[METRICS[name]] = parse_fixed_tolerance(tolerance) if given else None
        except ValueError as error:
            raise ValueError(f"has {tolerance!r} for {name}, which {error}") from None
    return found
