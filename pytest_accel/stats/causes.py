"""Causes of a loss: what differs between runs and those of their baseline, with the share of the loss that each explains.

Pure. A cause takes seconds of a step, in the order of `find_causes`; none takes more than those before it left.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import NamedTuple

from pytest_accel.stats import gate
from pytest_accel.stats.environment import Change, describe_briefly, is_place, is_setting
from pytest_accel.stats.gate import LOSSES, Outcome, Policy, Verdict
from pytest_accel.stats.kernels import IDLE, LAYOUT, LOADER, KernelChange, KernelDifference
from pytest_accel.stats.metric_gates import total_slowdown
from pytest_accel.stats.quantities import counted, percent, seconds
from pytest_accel.stats.run import Run, Summarized, known_values

_CPU, _WAIT = "host_cpu_s_per_step", "cpu_wait_s_per_step"
LEVEL = 2e-4  # chance that a metric that did not change is taken for one that did
# Prior of its scatter from run to run, of ln: medians of 18 to 24 rows of an H200; the CPU's clock and the loader are assumed.
_SCATTER = {
    "sm_clock_mhz": 0.012,
    "memory_clock_mhz": 0.005,
    "cpu_clock_mhz": 0.02,
    "launch_s": 0.22,
    "loader_step_s": 0.05,
}
_CPU_SCATTER = 0.03  # the same of CPU time
_OF_STEP = 0.005  # of waiting, as a share of a step
_LEAST_SHARE = 0.1  # of the loss: less is not worth a line
_DISAGREES = 0.25  # of the loss: what two profiled runs differ by beyond it
_PACE = 0.95  # share of a step from which the host or the loader sets its pace
_IN_THE_BASELINE = " in the baseline"
_REMEDIES = {  # of operations that say what to do; others name their kernels
    LAYOUT: "cuDNN converts what is not channels last: look for a tensor or a model that lost its memory format",
    LOADER: "look at the disk, and at the CPUs of its workers; more workers",
    IDLE: "look for Python code, a sleep or a wait in the step; torch.profiler's timeline shows where",
}
_KINDS = {IDLE: "host", LOADER: "loader"}  # of causes, by operation; others are collectives or kernels
_MOST = 3  # causes that are printed
_BUSY = 0.1  # of its CPUs' time, used by other processes
_LOAD_SCATTER = 1.0  # scatter of what other processes do, as a share of its level: a few stored runs may show less by chance
_OFF_SCATTER = 0.1  # the same of neither computing nor waiting for a CPU
_ONE_THREAD = 1.05  # CPU time of a step, as a share of it
_LEAST_SHOWN = 1e-3  # of ln(step time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One cause of a loss."""

    kind: str  # one of delay, sm_clock, memory_clock, cpu_clock, cpu_wait, host, loader, environment, kernels, collectives or package
    text: str  # one sentence: what it is now, what it was in the baseline
    explained: float | None = None  # of ln(step time); None for a suspect whose share is unknown
    remedy: str = ""  # what to do; of an operation, its kernels


def lost(verdict: Verdict | None) -> float:
    """Return the loss that causes explain, of ln(step time): of unstable runs, that of the slow ones; 0 without any."""
    if verdict is None:
        return 0.0
    total, group = total_slowdown(verdict), verdict.slow_group
    point = group.loss if verdict.outcome is Outcome.UNSTABLE and group else total.point if total else 0.0
    return -math.log1p(-point) if 0 < point < 1 else 0.0


def causes_of(
    verdict: Verdict | None,
    baseline: Sequence[Run],
    candidate: Sequence[Run],
    changes: Sequence[Change] = (),
    found: Sequence[Cause] = (),
) -> tuple[Cause, ...]:
    """Return the causes of the loss that a verdict on throughput has; none where it has none to speak of."""
    if verdict is None or not (baseline and candidate and has_causes(verdict)):
        return ()
    (fast, slow), loss = _by_loss(verdict, candidate), lost(verdict)
    causes = find_causes([*baseline, *fast], slow, loss, changes, found)
    # What the fast ones of unstable runs had too is no cause.
    shared = {each.kind for each in find_causes(baseline, fast, loss, changes)} if fast else set()
    return tuple(each for each in causes if each.kind not in shared)


def has_causes(verdict: Verdict | None) -> bool:
    """Return whether a loss is sure: one that the gate names, or one within a wide tolerance."""
    if verdict is None or verdict.outcome in LOSSES:
        return lost(verdict) > 0
    total = total_slowdown(verdict)
    return total is not None and total.low > 0 and lost(verdict) >= Policy().delta


def _by_loss(verdict: Verdict, runs: Sequence[Run]) -> tuple[Sequence[Run], Sequence[Run]]:
    """Return the runs that did not lose, the fast ones of unstable ones, and those that lost."""
    if verdict.outcome is not Outcome.UNSTABLE or not verdict.slow_group:
        return (), runs
    ordered = sorted(runs, key=lambda run: run.summary)
    return ordered[: -verdict.slow_group.runs], ordered[-verdict.slow_group.runs :]


def find_causes(
    baseline: Sequence[Run],
    candidate: Sequence[Run],
    loss: float,
    changes: Sequence[Change] = (),
    found: Sequence[Cause] = (),
) -> tuple[Cause, ...]:
    """Return the causes of a loss of so much of ln(step time), those that explain most first; they sum up to it at most.

    `found` are causes that were measured otherwise, such as kernels: where the time went, below why it did.
    """
    if loss <= 0:
        return ()
    sides = _Sides(baseline=baseline, candidate=candidate, loss=loss)
    causes: list[Cause] = []
    rest = loss

    def take(cause: Cause | None) -> None:
        nonlocal rest
        taken = min(cause.explained or 0.0, rest) if cause else 0.0
        if cause is not None and taken >= _LEAST_SHARE * loss:
            causes.append(replace(cause, explained=taken))
            rest -= taken

    for explain in (_delay, _loader, _cpu_wait, _sm_clock, _memory_clock, _cpu_clock):
        take(explain(sides))
    setting = _setting(sides, changes) if rest >= _LEAST_SHARE * loss else None
    if setting is not None and all(is_setting(each.name) or is_place(each.name) for each in changes):
        # Nothing else is known to have changed; kernels say where, and not why.
        take(replace(setting, explained=rest))
    elif setting is not None:
        causes.append(setting)
    idle = [each for each in found if each.kind == "host"]  # of which launching is a reason
    for cause in (*(each for each in found if each not in idle), _launch(sides), *idle):
        take(cause)
    has_cause = bool(causes)
    if not found:  # operators and idle time say where
        take(_off_cpu(sides))
    suspect = None if has_cause or rest < _LEAST_SHARE * loss else _other_load(sides)
    if not found:
        take(_computing(sides))
    if suspect:
        causes.append(suspect)
    return tuple(sorted(causes, key=lambda each: -(each.explained or 0)))


def disturbance(verdict: Verdict, baseline: Sequence[Run], candidate: Sequence[Run], delta: float) -> str:
    """Return the other work that a loss comes from: without the waiting for it, less than delta / 2 is left.

    Each run is compared without its own waiting. Where other processes did not use more than beside the baseline, it is its own.
    """
    _, runs = _by_loss(verdict, candidate)
    share, quiet = _other_share(runs), _other_share(baseline)
    before, now = _own_steps(baseline), _own_steps(runs)
    if share is None or quiet is None or share < quiet + _BUSY or not (before and now):
        return ""
    left, loss = gate.centre(now) - gate.centre(before), lost(verdict)
    if not -loss < left < delta / 2:  # that much waiting is of threads that the step does not wait for
        return ""
    waited, step_s = _typical(runs, _WAIT) or 0.0, math.exp(gate.centre(gate.summaries(runs)))
    kept = f"{percent(-math.expm1(-left))} of {percent(-math.expm1(-loss))}" if left > 0 else "nothing"
    return (
        f"other processes used {percent(share, 0)} of its CPUs' time, and it waited for {seconds(waited)} of a step of "
        f"{seconds(step_s)}; {kept} of the loss is left without that"
    )


def _own_steps(runs: Sequence[Run]) -> list[float]:
    """Return ln of the step times without waiting for other processes; none where that is not known of all runs."""
    own_s = []
    for run in runs:
        waited_s, share = run.metrics.get(_WAIT), run.metrics.get("other_cpu_share")
        if waited_s is None or share is None:
            return []
        # No wait for others is longer than they used CPUs.
        taken_s = share * run.metrics.get("usable_cpus", 1.0) * run.step_time_s
        own_s.append(run.step_time_s - min(waited_s, taken_s))
    return [math.log(each) for each in own_s] if min(own_s, default=0.0) > 0 else []


def _other_share(runs: Sequence[Run]) -> float | None:
    """Return the share of its CPUs that other processes used; unknown of several ranks, which are others to each other."""
    return None if any(run.rank_step_s for run in runs) else _typical(runs, "other_cpu_share")


# --- where it shows -----------------------------------------------------------------------------------


def cause_text(cause: Cause, loss: float) -> str:
    """Return its sentence with `: explains 26.1 of 26.5 %`; the losses are of throughput, as the verdict has them."""
    if cause.explained is None or loss <= 0:
        return cause.text
    at_most = "at most " if cause.kind == "environment" else ""
    return f"{cause.text}: explains {at_most}{_share_text(cause.explained, loss)}"


def _share_text(part: float, loss: float) -> str:
    """Return `26.1 of 26.5 %`: what a part takes of the throughput; parts sum up to the whole."""
    whole = -math.expm1(-loss)
    return f"{100 * whole * part / loss:.1f} of {percent(whole)}"


def cause_lines(causes: Sequence[Cause], loss: float) -> list[tuple[str, str, str]]:
    """Return what is printed of causes: heading, sentence with its share, remedy."""
    lines = [
        ("cause" if cause.explained is not None else "suspect", cause_text(cause, loss), cause.remedy)
        for cause in causes[:_MOST]
    ]
    smaller = [cause.explained for cause in causes[_MOST:] if cause.explained]
    if smaller:
        share = _share_text(math.fsum(smaller), loss)
        lines.append(("cause", f"{counted(len(smaller), 'smaller one')}: explains {share}", ""))
    left = loss - math.fsum(cause.explained or 0.0 for cause in causes)
    if left >= _LEAST_SHOWN and any(cause.explained is not None for cause in causes):
        lines.append(("unexplained", _share_text(left, loss), ""))
    return lines


def common_causes(first: Iterable[Cause | None]) -> list[str]:
    """Return what explains the losses of several benchmarks, given the first cause of each that lost: once, with how many."""
    all_first = list(first)
    counts = Counter(cause.kind for cause in all_first if cause is not None and cause.explained is not None)
    return [
        f"the {kind.replace('sm_', 'SM ').replace('cpu_', 'CPU ').replace('_', ' ')} "
        f"{'may explain' if kind == 'environment' else 'explains'} the loss of {number} of {len(all_first)}"
        for kind, number in counts.most_common()
        if number > 1
    ]


# --- differences --------------------------------------------------------------------------------------


class _Moved(NamedTuple):
    """Typical values of a metric that differs by more than its noise."""

    now: float
    before: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sides:
    baseline: Sequence[Run]
    candidate: Sequence[Run]
    loss: float

    @property
    def now_s(self) -> float:
        return math.exp(gate.centre(gate.summaries(self.candidate)))

    @property
    def before_s(self) -> float:
        return self.now_s * math.exp(-self.loss)

    @property
    def lost_s(self) -> float:
        return self.now_s - self.before_s

    def now(self, name: str) -> float:
        return _typical(self.candidate, name) or 0.0

    def before(self, name: str) -> float:
        return _typical(self.baseline, name) or 0.0

    def cause(self, kind: str, text: str, lost_s: float, remedy: str) -> Cause:
        """Return a cause that costs so many seconds of a step."""
        share = min(max(lost_s / self.lost_s, 0.0), 1.0)
        return Cause(kind=kind, text=text, explained=share * self.loss, remedy=remedy)

    @property
    def has_fewer_cpus(self) -> bool:
        return 0 < self.now("usable_cpus") < self.before("usable_cpus")

    def higher(self, name: str, scaled: Callable[[float], float] = math.log) -> _Moved | None:
        # A sensor that failed returned 0.
        return self.moved(lambda run: run.metrics.get(name) or None, scaled, _SCATTER[name])

    def lower(self, name: str) -> _Moved | None:
        return self.higher(name, lambda value: -math.log(value))

    def longer(self, read: Callable[[Run], float | None], scatter_of_level: float) -> _Moved | None:
        """Return a part of a step that grew; it may be 0."""
        return self.moved(read, lambda value: value / self.before_s, _OF_STEP, scatter_of_level)

    def moved(
        self,
        read: Callable[[Run], float | None],
        scaled: Callable[[float], float],
        scatter: float,
        scatter_of_level: float = 0.0,
    ) -> _Moved | None:
        """Return a value that grew by more than its scatter in the stored runs: those of a disturbed candidate scatter by nature."""
        known = [
            [(run.session, value) for run in runs if (value := read(run)) is not None and value >= 0]
            for runs in (self.baseline, self.candidate)
        ]
        stored, new = ([Summarized(session, scaled(value)) for session, value in side] for side in known)
        if not (stored and new):
            return None
        policy, scale = gate.resolve_policy(Policy(prior_noise=scatter), stored)
        level = gate.centre([each.summary for each in stored])
        noise = max(scale.noise, scatter_of_level * level)
        error = noise * gate.unit_standard_error(len(stored), gate.count_sessions(stored), len(new), policy)
        d = gate.centre([each.summary for each in new]) - level
        if d <= gate.t_quantile(LEVEL, scale.degrees_of_freedom) * error:
            return None
        before, now = (median(value for _, value in side) for side in known)
        return _Moved(now=now, before=before)


def _typical(runs: Sequence[Run], name: str) -> float | None:
    values = known_values(runs, name)
    return median(values) if values else None


def _delay(sides: _Sides) -> Cause | None:
    felt = sides.now("slowdown_felt")
    if not 0 < felt < 1:
        return None
    return Cause(
        kind="delay", text="--accel-slowdown delayed every step on purpose", explained=-math.log1p(-felt)
    )


# --- the device ---------------------------------------------------------------------------------------


def _clock(sides: _Sides, kind: str, title: str, share: float, remedy: str) -> Cause | None:
    """Return what a lower clock costs, where this share of a step scales with it."""
    moved = sides.lower(f"{kind}_mhz")
    if moved is None:
        return None
    lost_s = sides.before_s * share * (moved.before / moved.now - 1)
    text = f"{title} {moved.now:.0f} MHz, {moved.before:.0f} MHz{_IN_THE_BASELINE}"
    return sides.cause(kind, text, lost_s, remedy)


def _sm_clock(sides: _Sides) -> Cause | None:
    # All but the time that the memory takes scales with it.
    return _clock(sides, "sm_clock", "SM clock", 1 - _memory_share(sides), _why_slow_clock(sides))


def _why_slow_clock(sides: _Sides) -> str:
    names = ("throttled_share", "power_capped_share")
    throttled, capped = ((sides.now(name), sides.before(name)) for name in names)
    if throttled[0] > throttled[1] + 0.1:
        return f"heat or the hardware held it down in {percent(throttled[0], 0)} of the window: check cooling and power supply"
    if capped[0] > 0.5 or capped[0] > capped[1] + 0.1:
        return (
            f"the power limit held it down in {percent(capped[0], 0)} of the window, in {percent(capped[1], 0)}"
            f"{_IN_THE_BASELINE}: look at the limit, the power and the cooling (pytest-accel doctor)"
        )
    if sides.now("locked_clock_mhz"):
        return "clocks are locked or capped there; `nvidia-smi -rgc` (locked clocks) or `-rac` (application clocks) releases them"
    return "look at clocks, power limit and temperature (pytest-accel doctor)"


def _memory_clock(sides: _Sides) -> Cause | None:
    share = _memory_share(sides) or 1 - sides.before("mfu")
    return _clock(
        sides, "memory_clock", "memory clock", share, "`nvidia-smi -rmc` releases locked memory clocks"
    )


def _memory_share(sides: _Sides) -> float:
    """Return the share of a step that its transfers take at the least; 0 where arithmetic takes longer, or unknown."""
    roofline = sides.before("roofline_share")
    return min(1.0, roofline) if roofline > 1.001 * sides.before("mfu") else 0.0


# --- host and loader ----------------------------------------------------------------------------------


def _cpu_wait(sides: _Sides) -> Cause | None:
    # With fewer CPUs the reason is known: no scatter of what other processes do; n threads wait 1 + 1/2 + ... + 1/n times the loss.
    moved = sides.longer(lambda run: run.metrics.get(_WAIT), 0.0 if sides.has_fewer_cpus else _LOAD_SCATTER)
    # More is of a thread that the step does not wait for.
    if moved is None or moved.now - moved.before > (4 if sides.has_fewer_cpus else 2) * sides.lost_s:
        return None
    text = f"waiting for a CPU {seconds(moved.now)} a step, {seconds(moved.before)}{_IN_THE_BASELINE}"
    # A step that computes for longer waits for longer too, where others took CPUs before.
    own_s = sides.now_s - moved.now, sides.before_s - moved.before
    longer = max(1.0, own_s[0] / own_s[1]) if min(own_s) > 0 else 1.0
    return sides.cause("cpu_wait", text, moved.now - moved.before * longer, _why_waiting(sides))


def _why_waiting(sides: _Sides) -> str:
    if sides.has_fewer_cpus:
        return (
            f"CPUs that it may use: {sides.now('usable_cpus'):g}, {sides.before('usable_cpus'):g}{_IN_THE_BASELINE}; look at taskset, "
            "Slurm's --cpus-per-task and the quota of its group (pytest-accel doctor)"
        )
    stopped_s = sides.now("cpu_throttled_s_per_step") - sides.before("cpu_throttled_s_per_step")
    if stopped_s > _LEAST_SHARE * sides.lost_s:
        return (
            "the CPU quota of its group stopped it: raise the limit (Kubernetes: limits.cpu; docker: --cpus)"
        )
    if load := _load_text(sides):
        return f"{load}: end them (`top`)"
    return "other processes, threads of its own, or another machine (steal) take its CPUs: `top`"


def _load_text(sides: _Sides) -> str:
    now, before = _other_share(sides.candidate), _other_share(sides.baseline)
    if now is None or before is None or now < before + _BUSY:
        return ""
    return f"other processes used {percent(now, 0)} of its CPUs' time, {percent(before, 0)}{_IN_THE_BASELINE}"


def _other_load(sides: _Sides) -> Cause | None:
    """Return load that did not let it wait: it shares caches, memory and cores with it, by how much is not known."""
    load = _load_text(sides)
    stored, new = (known_values(runs, "other_cpu_share") for runs in (sides.baseline, sides.candidate))
    if not load or min(new) < 2 * max(stored) + _BUSY:
        return None
    return Cause(kind="host", text=load, remedy="end them (`top`), and measure again")


def _off_cpu(sides: _Sides) -> Cause | None:
    """Return the time in which the one thread of a step on the CPU slept, or waited for something else than a CPU."""
    moved = sides.longer(_off_cpu_s, _OFF_SCATTER)
    # More is of another thread, whose CPU time it lacks.
    if moved is None or moved.now - moved.before > 2 * sides.lost_s:
        return None
    text = f"neither computing nor waiting for a CPU {seconds(moved.now)} a step, {seconds(moved.before)}{_IN_THE_BASELINE}"
    remedy = "it may sleep or wait: for a file, the network, a lock, a device, another process, or another machine (steal)"
    return sides.cause("host", text, moved.now - moved.before, remedy)


def _computing(sides: _Sides) -> Cause | None:
    """Return the CPU time of the one thread of a step on the CPU."""
    moved = sides.moved(_computing_s, math.log, _CPU_SCATTER)
    if moved is None:
        return None
    text = f"computing {seconds(moved.now)} a step, {seconds(moved.before)}{_IN_THE_BASELINE}"
    remedy = "its code or a package does more, or the CPU is slower: compare the code, and look at other work on the machine"
    return sides.cause("host", text, moved.now - moved.before, remedy)


def _computing_s(run: Run) -> float | None:
    """Return the CPU time of its one thread; None with other threads, or on a device."""
    cpu_s, mean_s = run.metrics.get(_CPU, 0.0), fmean(run.rounds_s)  # times of CPUs are means
    on_device = run.rank_step_s or "launch_s" in run.metrics or "sm_clock_mhz" in run.metrics
    return None if on_device or not 0 < cpu_s <= _ONE_THREAD * mean_s else cpu_s * run.step_time_s / mean_s


def _off_cpu_s(run: Run) -> float | None:
    """Return how long its one thread neither computed nor waited for a CPU."""
    computing_s, waited_s = _computing_s(run), run.metrics.get(_WAIT)
    if computing_s is None or waited_s is None:
        return None
    return max(0.0, run.step_time_s - computing_s - waited_s * run.step_time_s / fmean(run.rounds_s))


def _cpu_clock(sides: _Sides) -> Cause | None:
    """Return what a lower CPU clock costs, where the CPU sets the pace."""
    launch_s = sides.now("launch_s")
    on_device = sides.now("sm_clock_mhz") or launch_s
    if on_device and launch_s < _PACE * sides.now_s:
        return None
    remedy = "look at the governor and the temperature of the CPU (pytest-accel doctor)"
    return _clock(sides, "cpu_clock", "CPU clock", 1.0, remedy)


def _launch(sides: _Sides) -> Cause | None:
    """Return a host that came to set the pace; where it did so before, how long it takes says nothing of the cause."""
    moved = sides.higher("launch_s")
    if moved is None or moved.now < _PACE * sides.now_s or moved.before >= _PACE * sides.before_s:
        return None
    text = (
        f"the host is done with a step after {seconds(moved.now)}, {seconds(moved.before)}{_IN_THE_BASELINE}"
    )
    remedy = (
        "it sets the pace, by launching or by waiting in the step (`.item()`, a copy to the host); replay=True launches a step "
        "as one, where it can be recorded"
    )
    return sides.cause("host", text, moved.now - moved.before, remedy)


def _loader(sides: _Sides) -> Cause | None:
    """Return the time that steps wait for batches: what they take beyond the step whose batch is ready."""
    moved = sides.higher("loader_step_s")
    if moved is None:
        return None
    computing_s = sides.before("compute_step_s"), sides.now("compute_step_s")
    if all(computing_s):
        lost_s = sides.now_s - computing_s[1] - max(0.0, sides.before_s - computing_s[0])
    elif moved.now >= _PACE * sides.now_s:
        lost_s = moved.now - moved.before
    else:
        return None
    text = f"the loader makes a batch in {seconds(moved.now)}, {seconds(moved.before)}{_IN_THE_BASELINE}"
    return sides.cause("loader", text, lost_s, f"{_REMEDIES[LOADER]}, decode='device'")


# --- kernels ------------------------------------------------------------------------------------------


def kernel_causes(found: KernelDifference) -> tuple[Cause, ...]:
    """Return the changes that explain at least a tenth of a loss each, the largest first; none where the tables disagree with it."""
    if found.loss_s <= 0 or disagreement(found):
        return ()
    whole = math.log(found.after_s / found.before_s)
    changes = sorted((*found.rows, found.idle), key=lambda each: each.change_s, reverse=True)
    return tuple(
        Cause(
            kind=_KINDS.get(each.operation) or ("collectives" if each.is_collective else "kernels"),
            text=_cause_text(each),
            remedy=(_waits(found) if each.operation == IDLE else "")
            or _REMEDIES.get(each.operation)
            or each.kernel,
            explained=each.change_s / found.loss_s * whole,
        )
        for each in changes
        if each.change_s >= _LEAST_SHARE * found.loss_s
    )


def disagreement(found: KernelDifference) -> str:
    """Return why a loss has no kernels among its causes: the profiled runs differ by much more than all runs; empty if not."""
    excess_s = -found.unexplained_s
    if not excess_s > _DISAGREES * found.loss_s > 0:
        return ""
    return (
        f"no kernels among the causes: the steps that were profiled differ by {seconds(found.loss_s + excess_s)}, all runs by "
        f"{seconds(found.loss_s)}; one of the profiled runs may have been disturbed"
    )


def _waits(found: KernelDifference) -> str:
    """Return the copies to the host that a step waits for, where it has more of them."""
    copies = next((each.calls for each in found.rows if each.operation == "copy DtoH"), (0.0, 0.0))
    if copies[1] < copies[0] + 1:
        return ""
    return f"{copies[1]:.4g} copies to the host a step, {copies[0]:.4g}{_IN_THE_BASELINE}: each waits for the device (`.item()`, `.cpu()`)"


def _cause_text(change: KernelChange) -> str:
    moved = f"{seconds(change.before_s)} -> {seconds(change.after_s)} a step"
    if change.operation == IDLE:
        return f"idle {moved}, without a kernel or an operator: Python, launching, waiting"
    calls = f", {change.calls_text} calls" if change.calls_differ else ""
    return f"{change.operation} {moved}{calls}"


# --- the environment ----------------------------------------------------------------------------------


def _setting(sides: _Sides, changes: Sequence[Change]) -> Cause | None:
    """Return changed settings and what the compiler did otherwise as one cause; versions are suspects, listed as changes."""
    settings = [each for each in changes if is_setting(each.name)]
    compiled = _compiler(sides)
    if not settings and not compiled:
        return None
    return Cause(
        kind="environment",
        text="; ".join(filter(None, (describe_briefly(settings, _MOST), compiled))),
        remedy="set it as it was, or record the baseline anew with it",
    )


def _compiler(sides: _Sides) -> str:
    """Return what changed in all runs of what the compiler did."""
    graphs, before = (known_values(runs, "compiled_graphs") for runs in (sides.candidate, sides.baseline))
    # Without a count another benchmark of its process may have compiled its step.
    if not graphs or len(before) < len(sides.baseline) or min(before) < 1:
        return ""
    if not any(graphs):
        return f"the step ran eager: 0 compiled graphs, {median(before):g}{_IN_THE_BASELINE}"
    sides_runs = sides.candidate, sides.baseline
    breaks, stored = ([run.metrics.get("graph_breaks", 0.0) for run in runs] for runs in sides_runs)
    if min(breaks) > max(stored):
        return f"{median(breaks):g} graph breaks, {median(stored):g}{_IN_THE_BASELINE}"
    return ""
