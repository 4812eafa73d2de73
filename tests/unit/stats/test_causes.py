"""Causes of a loss: what is named, with what share, and that nothing is invented."""

import math
import random
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.causes import (
    Cause,
    cause_lines,
    causes_of,
    common_causes,
    disturbance,
    find_causes,
    has_causes,
)
from pytest_accel.stats.environment import Change
from pytest_accel.stats.gate import Estimate, Outcome, SlowGroup, Verdict
from pytest_accel.stats.run import Run


def runs(step_s, count=5, *, session="then", scatter=0.001, **metrics):
    return [
        Run(
            session=session,
            rounds_s=(step_s * (1 + scatter * (index - count // 2)),) * 6,
            steps_per_round=10,
            metrics=dict(metrics),
        )
        for index in range(count)
    ]


def explained(then, now, *changes, ratio=1.36, found=()):
    """Causes of steps of 10 ms that take `ratio` times as long."""
    loss = math.log(ratio)
    return find_causes(
        runs(0.01, **then), runs(0.01 * ratio, 2, session="now", **now), loss, changes, found
    ), loss


ENV = Change(name="env.TORCHDYNAMO_DISABLE", old=None, new="1")
PLACE = Change(name="cpu_affinity", old="0-15", new="16-31")
FOLDER = Change(name="env.CUDA_MPS_PIPE_DIRECTORY", old="/tmp/7", new="/tmp/8")
TORCH = Change(name="torch", old="2.11.0", new="2.12.0")
# What differs, the first cause, the share of a loss of 26.5 % that it explains (None: unknown), words of its lines.
PROVOKED = {
    "a delay on purpose, beside other work": (
        {"cpu_wait_s_per_step": 0.0},
        {"cpu_wait_s_per_step": 0.002, "slowdown_felt": 0.2},
        *((), "delay", math.log(1.25) / math.log(1.36), "--accel-slowdown delayed every step on purpose"),
    ),
    "locked clock of a compute-bound step": (
        {"sm_clock_mhz": 1886, "mfu": 0.6},
        {"sm_clock_mhz": 1380, "mfu": 0.44, "locked_clock_mhz": 1380},
        *((), "sm_clock", 1.0, "SM clock 1380 MHz, 1886 MHz in the baseline.*`nvidia-smi -rgc`"),
    ),
    "clock of a step that waits for memory half of its time": (
        {"sm_clock_mhz": 1886, "mfu": 0.2, "roofline_share": 0.5},
        {"sm_clock_mhz": 1386, "mfu": 0.15, "roofline_share": 0.4},
        *((), "sm_clock", 0.5, "SM clock"),
    ),
    "heat": (
        {"sm_clock_mhz": 1886, "throttled_share": 0.0},
        {"sm_clock_mhz": 1390, "throttled_share": 0.5},
        *((), "sm_clock", 1.0, "heat or the hardware .* 50 % "),
    ),
    "power": (
        {"sm_clock_mhz": 1886, "power_capped_share": 0.1},
        {"sm_clock_mhz": 1390, "power_capped_share": 1.0},
        *((), "sm_clock", 1.0, "the power limit held it down in 100 %"),
    ),
    "memory clock": (
        {"memory_clock_mhz": 3201, "mfu": 0.01, "roofline_share": 0.9},
        {"memory_clock_mhz": 2300, "mfu": 0.01, "roofline_share": 0.66},
        *((), "memory_clock", 0.98, "memory clock 2300 MHz, 3201 MHz .*-rmc"),
    ),
    "other processes": (
        {"cpu_wait_s_per_step": 0.00001, "other_cpu_share": 0.02, "usable_cpus": 2},
        {"cpu_wait_s_per_step": 0.0035, "other_cpu_share": 0.5, "usable_cpus": 2},
        *((), "cpu_wait", 0.97, "waiting for a CPU 3.5 ms a step, 10 us .*used 50 % of its CPUs' time, 2 %"),
    ),
    "one CPU": (
        {"cpu_wait_s_per_step": 0.00001, "usable_cpus": 2},
        {"cpu_wait_s_per_step": 0.0036, "usable_cpus": 1},
        *((), "cpu_wait", 1.0, "CPUs that it may use: 1, 2 in the baseline.*taskset"),
    ),
    "quota that was lowered within the CPUs": (
        {"cpu_wait_s_per_step": 0.00001, "usable_cpus": 2},
        {"cpu_wait_s_per_step": 0.0036, "usable_cpus": 2, "cpu_throttled_s_per_step": 0.003},
        *((), "cpu_wait", 1.0, "the CPU quota of its group"),
    ),
    "slower CPU": ({"cpu_clock_mhz": 3000}, {"cpu_clock_mhz": 2206}, (), "cpu_clock", 1.0, "CPU clock 2206"),
    "host that came to set the pace": (
        {"launch_s": 0.003, "sm_clock_mhz": 1980},
        {"launch_s": 0.0135, "sm_clock_mhz": 1980},
        *((), "host", 1.0, "the host is done with a step after 13.5 ms, 3 ms .*item"),
    ),
    "slow loader": (
        {"loader_step_s": 0.004, "compute_step_s": 0.0099},
        {"loader_step_s": 0.0136, "compute_step_s": 0.0099},
        *((), "loader", 1.0, "the loader makes a batch in 13.6 ms, 4 ms .*more workers"),
    ),
    "compiler switched off": (
        {"compiled_graphs": 1},
        {"compiled_graphs": 0},
        *((ENV,), "environment", 1.0, "unset -> 1; the step ran eager: 0 compiled graphs, 1 in"),
    ),
    "graph breaks": (
        {"compiled_graphs": 1},
        {"compiled_graphs": 3, "graph_breaks": 2},
        *((), "environment", 1.0, "2 graph breaks, 0 in the baseline"),
    ),
    "a setting of a job on other CPUs": (
        *({}, {}, (PLACE, FOLDER, ENV), "environment", 1.0),
        "TORCHDYNAMO_DISABLE unset -> 1: explains at most",
    ),
    "a setting beside a new version": ({}, {}, (TORCH, ENV), "environment", None, "DISABLE unset -> 1"),
    "fewer CPUs, whose affinity changed too": (
        {"cpu_wait_s_per_step": 0.00001, "usable_cpus": 2},
        {"cpu_wait_s_per_step": 0.003, "usable_cpus": 1},
        *((ENV,), "cpu_wait", 0.83, "waiting for a CPU .*TORCHDYNAMO_DISABLE unset -> 1: explains at most"),
    ),
    "a sleep in a step of one thread": (
        {"host_cpu_s_per_step": 0.0099, "cpu_wait_s_per_step": 0.0001},
        {"host_cpu_s_per_step": 0.0100, "cpu_wait_s_per_step": 0.0001},
        *((), "host", 0.97, "neither computing nor waiting for a CPU 3.49 ms a step, .*us in .*it may sleep"),
    ),
    "fewer CPUs than a baseline that waited too": (
        {"cpu_wait_s_per_step": 0.0012, "usable_cpus": 2},
        {"cpu_wait_s_per_step": 0.0100, "usable_cpus": 1},
        *((), "cpu_wait", 1.0, "waiting for a CPU 10 ms a step, 1.2 ms .*CPUs that it may use: 1, 2"),
    ),
    "a step of one thread that computes more": (
        {"host_cpu_s_per_step": 0.0098, "cpu_wait_s_per_step": 0.0001},
        {"host_cpu_s_per_step": 0.0134, "cpu_wait_s_per_step": 0.0001},
        *(
            (),
            "host",
            1.0,
            "computing 13.4 ms a step, 9.8 ms in the baseline: explains 26.5 of 26.5 %.*does more",
        ),
    ),
    "load beside a step of one thread that computes for longer": (
        {"host_cpu_s_per_step": 0.0099, "cpu_wait_s_per_step": 0.0, "other_cpu_share": 0.02},
        {"host_cpu_s_per_step": 0.0135, "cpu_wait_s_per_step": 0.0, "other_cpu_share": 0.5},
        *((), "host", 1.0, "computing 13.5 ms .*other processes used 50 %"),
    ),
    "load that lets it run": (
        {"other_cpu_share": 0.02},
        {"other_cpu_share": 0.5},
        *((), "host", None, "other processes used 50 %"),
    ),
}


@pytest.mark.parametrize(
    ("then", "now", "changes", "kind", "share", "words"), PROVOKED.values(), ids=PROVOKED
)
def test_provoked_cause_is_the_first_with_its_share(then, now, changes, kind, share, words):
    causes, loss = explained(then, now, *changes)
    assert causes[0].kind == kind
    assert causes[0].explained == (None if share is None else pytest.approx(share * loss, rel=0.03))
    text = " ".join(" ".join(filter(None, line)) for line in cause_lines(causes, loss))
    assert re.search(words, text), text


def test_run_without_a_count_of_graphs_is_not_known_to_be_eager():
    """Another benchmark of its process may have compiled its step."""
    assert explained({"compiled_graphs": 1}, {})[0] == ()


SLOWER = Verdict(
    outcome=Outcome.REGRESSED,
    tolerance=0.05,
    runs=2,
    slowdown=Estimate(point=1 - 1 / 1.36, low=0.2, high=0.3),
)


@pytest.mark.parametrize(
    ("wait_s", "other", "words"),
    [
        (0.0035, 0.5, "used 50 % of its CPUs' time, and it waited for 3.5 ms of a step of 13.6 ms; 0.9 % of"),
        (0.0036, 0.5, "; nothing of the loss is left without that"),
        (0.0020, 0.5, ""),  # 13.8 % are its own
        (0.0032, 0.5, ""),  # 3.8 % are its own: more than half of the tolerance regresses
        (0.0035, 0.0, ""),  # its own threads
        (0.0035, 0.25, ""),  # beside the baseline they used as much
        (0.0100, 0.9, ""),  # of threads that it does not wait for
        (None, 0.5, ""),
    ],
)
def test_loss_that_comes_from_other_work_is_a_disturbance(wait_s, other, words):
    waits = {} if wait_s is None else {"cpu_wait_s_per_step": wait_s}
    before = runs(0.01, cpu_wait_s_per_step=0.0, other_cpu_share=0.2, usable_cpus=2)
    now = runs(0.0136, 2, other_cpu_share=other, usable_cpus=2, **waits)
    assert words in disturbance(SLOWER, before, now, math.log(1.05))
    assert bool(words) == bool(disturbance(SLOWER, before, now, math.log(1.05)))
    ranks = [replace(run, rank_step_s=(0.0136, 0.0136)) for run in now]
    assert disturbance(SLOWER, before, ranks, math.log(1.05)) == ""  # they are others to each other


def test_other_work_beside_the_slow_runs_is_a_disturbance():
    before = runs(0.01, cpu_wait_s_per_step=0.0, other_cpu_share=0.02)
    now = [
        *runs(0.01, 3, cpu_wait_s_per_step=0.0, other_cpu_share=0.02),
        *runs(0.0136, 2, cpu_wait_s_per_step=0.0036, other_cpu_share=0.5),
    ]
    assert "used 50 %" in disturbance(UNSTABLE, before, now, math.log(1.05))


@pytest.mark.parametrize(
    ("then", "now", "changes"),
    [
        ({}, {}, ()),  # a sleep in forward
        ({}, {}, (PLACE, FOLDER)),  # a scheduler gives each job others
        ({}, {}, (TORCH,)),  # a version is listed as a change, and is no cause by itself
        ({"sm_clock_mhz": 1886}, {"sm_clock_mhz": 1880}, ()),
        ({"sm_clock_mhz": 1500}, {"sm_clock_mhz": 1900}, ()),
        ({"launch_s": 0.01}, {"launch_s": 0.0136}, ()),  # as long as the step before: it waits in the step
        (
            {"loader_step_s": 0.004, "compute_step_s": 0.01},
            {"loader_step_s": 0.006, "compute_step_s": 0.0136},
            (),
        ),
        ({"cpu_clock_mhz": 3000, "sm_clock_mhz": 1980}, {"cpu_clock_mhz": 2000, "sm_clock_mhz": 1980}, ()),
        ({"host_cpu_s_per_step": 0.01}, {"cpu_wait_s_per_step": 0.005}, ()),  # an old baseline does not say
        # The kernel counted no waiting then; another thread waits, for longer than the step.
        ({"usable_cpus": 2}, {"usable_cpus": 1, "cpu_wait_s_per_step": 0.0036}, ()),
        (
            {"usable_cpus": 16, "cpu_wait_s_per_step": 0.0005},
            {"usable_cpus": 8, "cpu_wait_s_per_step": 0.02},
            (),
        ),
        # Not known what it waited for; several threads; a device.
        ({"host_cpu_s_per_step": 0.0099}, {"host_cpu_s_per_step": 0.01}, ()),
        (*[{"host_cpu_s_per_step": each, "cpu_wait_s_per_step": 0.0} for each in (0.018, 0.027)], ()),
        (
            *[
                {"host_cpu_s_per_step": each, "cpu_wait_s_per_step": 0.0, "launch_s": 0.003}
                for each in (0.002, 0.009)
            ],
            (),
        ),
    ],
)
def test_what_explains_nothing_is_not_named(then, now, changes):
    assert explained(then, now, *changes)[0] == ()


def test_reading_of_zero_is_none():
    """Sensors that fail now and then return zeros."""
    now = [*runs(0.0136, 2, sm_clock_mhz=0), *runs(0.0136, 1, sm_clock_mhz=1380)]
    (cause,) = find_causes(runs(0.01, sm_clock_mhz=1886), now, math.log(1.36))
    assert cause.text == "SM clock 1380 MHz, 1886 MHz in the baseline"


def test_lines_have_the_form_of_a_failure():
    kernels = Cause(kind="kernels", text="attention backward 48.1 -> 71.3 ms a step", explained=0.1)
    causes, loss = explained({"sm_clock_mhz": 1886}, {"sm_clock_mhz": 1600}, found=[kernels])
    assert [(heading, text) for heading, text, _ in cause_lines(causes, loss)] == [
        ("cause", "SM clock 1600 MHz, 1886 MHz in the baseline: explains 13.1 of 26.5 %"),
        ("cause", "attention backward 48.1 -> 71.3 ms a step: explains 8.6 of 26.5 %"),
        ("unexplained", "4.7 of 26.5 %"),
    ]
    assert causes[0].text == "SM clock 1600 MHz, 1886 MHz in the baseline"


def test_lines_sum_up_to_the_loss_where_some_causes_have_none():
    shares = (0.1, 0.08, 0.06, 0.04, 0.02)
    causes = [Cause(kind="kernels", text="k", explained=each) for each in shares]
    texts = [text for _, text, _ in cause_lines(causes, 0.32)]
    assert texts[3] == "2 smaller ones: explains 5.1 of 27.4 %"
    printed = [float(re.search(r"([\d.]+) of 27.4 %", text)[1]) for text in texts]
    assert math.fsum(printed) == pytest.approx(27.4, abs=0.2)


def test_launching_is_named_before_the_idle_time_that_it_leaves():
    kernels = Cause(kind="kernels", text="softmax 1 ms -> 1.5 ms a step", explained=0.05)
    idle = Cause(kind="host", text="1 ms -> 4 ms a step without a kernel", explained=0.25)
    then, now = {"launch_s": 0.003, "sm_clock_mhz": 1980}, {"launch_s": 0.0135, "sm_clock_mhz": 1980}
    host, softmax = explained(then, now, found=[idle, kernels])[0]
    assert host.text.startswith("the host is done with a step after 13.5 ms")
    assert softmax == kernels


def test_time_off_the_cpu_is_that_of_a_typical_step():
    """CPU time is a mean over all rounds; a few of them were disturbed."""
    metrics = {"host_cpu_s_per_step": 0.0100, "cpu_wait_s_per_step": 0.0}
    before = [replace(run, metrics=metrics) for run in runs(0.0100)]
    rounds_s, metrics = (0.0136,) * 5 + (0.0272,), {**metrics, "host_cpu_s_per_step": 0.0120}
    now = [replace(run, rounds_s=rounds_s, metrics=metrics) for run in runs(0.0136, 2)]
    (cause,) = find_causes(before, now, math.log(1.36))
    assert cause.text == "neither computing nor waiting for a CPU 3.31 ms a step, 0 us in the baseline"


def test_what_several_benchmarks_share_is_said_once():
    clock, load = Cause(kind="sm_clock", text="", explained=0.1), Cause(kind="host", text="")
    assert common_causes([clock, clock, None, load]) == ["the SM clock explains the loss of 2 of 4"]
    assert common_causes([clock, None]) == []
    setting = Cause(kind="environment", text="", explained=0.1)  # at most
    assert common_causes([setting, setting]) == ["the environment may explain the loss of 2 of 2"]


UNSTABLE = Verdict(
    outcome=Outcome.UNSTABLE,
    tolerance=0.05,
    slowdown=Estimate(point=0.0, low=0.0, high=0.0),
    slow_group=SlowGroup(runs=2, loss=0.265, least_loss=0.26, others_loss=0.0),
)


def test_unstable_runs_are_explained_by_the_slow_ones():
    now = [
        *runs(0.01, 3, session="now", sm_clock_mhz=1886),
        *runs(0.0136, 2, session="now", sm_clock_mhz=1380),
    ]
    (cause,) = causes_of(UNSTABLE, runs(0.01, sm_clock_mhz=1886), now)
    assert cause.text == "SM clock 1380 MHz, 1886 MHz in the baseline"


@pytest.mark.parametrize("fast", [1, 3])
@pytest.mark.parametrize(
    ("then", "now", "changes"),
    [
        ({"other_cpu_share": 0.02}, {"other_cpu_share": 0.5}, ()),
        ({"sm_clock_mhz": 1886}, {"sm_clock_mhz": 1380}, ()),
        ({}, {"slowdown_felt": 0.2}, ()),
        ({}, {}, (ENV,)),
    ],
)
def test_what_the_fast_of_unstable_runs_had_too_is_no_cause(fast, then, now, changes):
    candidate = [*runs(0.01, fast, session="now", **now), *runs(0.0136, 2, session="now", **now)]
    assert causes_of(UNSTABLE, runs(0.01, **then), candidate, changes) == ()


@pytest.mark.parametrize(("outcome", "low", "named"), [("inconclusive", -0.01, 0), ("ok", 0.2, 1)])
def test_loss_that_is_not_sure_has_no_causes(outcome, low, named):
    """One within a wide tolerance is sure, and fails nothing."""
    found = replace(SLOWER, outcome=Outcome(outcome), slowdown=Estimate(point=0.265, low=low, high=0.5))
    causes = causes_of(found, runs(0.01, sm_clock_mhz=1886), runs(0.0136, 2, sm_clock_mhz=1380))
    assert len(causes) == has_causes(found) == named


METRICS = {
    "sm_clock_mhz": (500, 2000),
    "memory_clock_mhz": (500, 3200),
    "cpu_clock_mhz": (800, 4000),
    "mfu": (0, 1),
    "roofline_share": (0, 1),
    "launch_s": (1e-4, 0.1),
    "loader_step_s": (1e-4, 0.1),
    "compute_step_s": (1e-4, 0.1),
    "cpu_wait_s_per_step": (0, 0.1),
    "host_cpu_s_per_step": (0, 0.1),
    "other_cpu_share": (0, 1),
    "compiled_graphs": (0, 2),
    "slowdown_felt": (0, 1),
}
SIDES = st.fixed_dictionaries({}, optional={name: st.floats(*ends) for name, ends in METRICS.items()})


@given(
    SIDES,
    SIDES,
    st.floats(1.001, 20),
    st.sets(st.sampled_from([ENV, TORCH])),
    st.lists(st.floats(0, 3), max_size=3),
)
def test_causes_sum_up_to_the_loss_at_most(then, now, ratio, changes, others):
    found = [Cause(kind="kernels", text="k", explained=share) for share in others]
    causes, loss = explained(then, now, *changes, ratio=ratio, found=found)
    shares = [each.explained for each in causes if each.explained is not None]
    assert all(share > 0 for share in shares)
    assert math.fsum(shares) <= loss + 1e-9


def test_nothing_is_invented_for_equal_runs():
    """1,000 pairs of equal sets of runs, whose every metric scatters; half of them come out slower by chance."""
    draw = random.Random(36)
    typical = {
        "sm_clock_mhz": (1886, 0.015),
        "memory_clock_mhz": (3201, 0.0),
        "mfu": (0.5, 0.01),
        "launch_s": (0.0098, 0.22),
        "cpu_clock_mhz": (3000, 0.02),
        "cpu_wait_s_per_step": (0.0005, 1.0),
        "other_cpu_share": (0.1, 0.5),
        "loader_step_s": (0.009, 0.05),
        "compute_step_s": (0.009, 0.02),
        "usable_cpus": (16, 0.0),
    }

    def measured(count, session):
        return [
            Run(
                session=session,
                rounds_s=(0.01 * math.exp(draw.gauss(0, 0.02)),) * 6,
                steps_per_round=10,
                metrics={
                    name: value * math.exp(draw.gauss(0, noise)) for name, (value, noise) in typical.items()
                },
            )
            for _ in range(count)
        ]

    named = []
    for _ in range(1000):
        then, now = measured(5, "then"), measured(draw.choice((2, 5)), "now")
        loss = math.log(now[0].step_time_s / then[0].step_time_s)
        named += find_causes(then, now, loss)
    assert named == []


def test_nothing_is_invented_for_equal_runs_of_one_thread():
    """1,000 pairs of equal sets of runs that compute, wait for a CPU and sleep; half of them come out slower by chance."""
    draw = random.Random(36)

    def measured(count, session, sleep_s):
        found = []
        for _ in range(count):
            cpu_s = 0.01 * math.exp(draw.gauss(0, 0.02))
            wait_s = 0.0002 * math.exp(draw.gauss(0, 0.7))
            step_s = cpu_s + wait_s + sleep_s * math.exp(draw.gauss(0, 0.03))
            metrics = {"host_cpu_s_per_step": cpu_s, "cpu_wait_s_per_step": wait_s, "usable_cpus": 2}
            found.append(Run(session=session, rounds_s=(step_s,) * 6, steps_per_round=10, metrics=metrics))
        return found

    named = []
    for _ in range(1000):
        sleep_s = draw.choice((0.0, 0.0001, 0.005, 0.03))
        then, now = measured(5, "then", sleep_s), measured(draw.choice((2, 5)), "now", sleep_s)
        loss = math.log(now[0].step_time_s / then[0].step_time_s)
        named += find_causes(then, now, loss)
    assert named == []


def test_waiting_explains_what_it_grew_by_beyond_the_step():
    """Others used half of the CPUs then and now; the step computes for eight times as long."""
    before, now = runs(0.035, cpu_wait_s_per_step=0.0121), runs(0.379, cpu_wait_s_per_step=0.179)
    (waiting,) = find_causes(before, now, math.log(0.379 / 0.035))
    assert waiting.kind == "cpu_wait"
    assert waiting.explained == pytest.approx(
        (179 - 12.1 * 200 / 22.9) / 344 * math.log(0.379 / 0.035), rel=0.01
    )


def test_threads_that_wait_for_each_other_are_no_disturbance():
    """A step with more threads waits longer than other processes can make it."""
    before = runs(0.01, cpu_wait_s_per_step=0.0, other_cpu_share=0.02, usable_cpus=2)
    now = runs(0.0136, 2, cpu_wait_s_per_step=0.0036, other_cpu_share=0.12, usable_cpus=1)
    assert disturbance(SLOWER, before, now, math.log(1.05)) == ""
