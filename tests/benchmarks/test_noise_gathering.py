"""Gathering streams: with made-up processes, and for real on a made-up GPU."""

from __future__ import annotations

import dataclasses
import errno
import os
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.noise.__main__ import main
from benchmarks.noise.gathering import Asked, Progress, _until_idle, gather
from benchmarks.noise.processes import Child, GatherError, cpu_s
from benchmarks.noise.streams import Plan, StreamError, read
from pytest_accel.stats.environment import Environment
from pytest_accel.stats.results import Ending, Result, SessionResults
from pytest_accel.stats.run import Run
from pytest_accel.stats.verdict import Outcome
from tests.support.fake_nvml import COMPUTED_HERE, FakeGpu
from tests.support.noise import HEAD, RUN

pytest_plugins = ("tests.support.fake_nvml",)

ROOT = Path(__file__).parents[2]


RESULT = Result(
    benchmark=HEAD.benchmark,
    suite="sums",
    platform="cpu",
    disk_name="cpu-made-up",
    status=Outcome.NO_BASELINE,
    unit="calls",
    work_per_step=1.0,
    configuration={"batch_size": 4},
    runs=(Run(session="a", rounds_s=(0.12345678, 0.2), steps_per_round=1, metrics={"sm_clock_mhz": 1980.0}),),
    environment="e",
    details=("noted",),
)


class MadeUp:
    """A process that has ended as soon as it was started."""

    has_ended = is_waiting = True

    def __init__(self, slowdown, result=RESULT, **facts):
        self.slowdown = slowdown
        self.stopped = 0
        self._session = SessionResults(
            session="a",
            at=RUN.at,
            duration_s=1.0,
            exit_status=0,
            version="0.1.0",
            environments={"e": Environment(identity=HEAD.identity, context=HEAD.context)},
            results=(result,),
            **facts,
        )

    def results(self):
        return self._session

    def stop(self):
        self.stopped += 1


def asked(path, **changes):
    return dataclasses.replace(
        Asked(name="cpu-sum", arguments=HEAD.command, plan=HEAD.plan, out=path), **changes
    )


def test_a_stream_is_gathered_in_the_order_of_the_plan(tmp_path):
    started = []

    def start(slowdown, folder):
        started.append((slowdown, folder))
        return MadeUp(slowdown, findings=({"level": "problem", "subject": "other work", "text": "50 %"},))

    out = tmp_path / "new" / "a.jsonl"
    stream = gather(asked(out), start, nullcontext, tmp_path)
    assert stream == read(out)
    assert [slowdown for slowdown, _ in started] == HEAD.plan.order() == [run.slowdown for run in stream.runs]
    assert len({folder for _, folder in started}) == 5
    assert stream.head == HEAD
    assert stream.runs[0].rounds_s == (0.12346, 0.2)  # five digits are enough
    assert stream.runs[0].metrics["sm_clock_mhz"] == 1980
    assert (stream.runs[0].notes, stream.runs[0].problems) == (("noted",), ("other work: 50 %",))
    assert [run.place for run in stream.runs] == [0, 1, 2, 3, 4]
    with pytest.raises(StreamError, match="is there already"):
        gather(asked(out), start, nullcontext, tmp_path)
    assert gather(asked(out), start, nullcontext, tmp_path, resume=True) == stream  # nothing is left to do
    assert len(started) == 5


def test_what_was_interrupted_is_kept_and_goes_on(tmp_path):
    out, children = tmp_path / "a.jsonl", []

    def start(slowdown, folder):
        if len(children) == 2:
            raise KeyboardInterrupt
        children.append(MadeUp(slowdown))
        return children[-1]

    with pytest.raises(KeyboardInterrupt):
        gather(asked(out), start, nullcontext, tmp_path)
    assert len(read(out).runs) == 2
    assert all(child.stopped for child in children)
    stream = gather(asked(out), lambda slowdown, folder: MadeUp(slowdown), nullcontext, tmp_path, resume=True)
    assert [run.slowdown for run in stream.runs] == HEAD.plan.order()
    with pytest.raises(StreamError, match="has another plan"):
        gather(asked(out, plan=Plan(runs=9)), start, nullcontext, tmp_path, resume=True)


@pytest.mark.parametrize("kept_bytes", [1, 20, -1], ids=["first byte", "middle", "all but its end"])
def test_a_line_that_was_cut_off_is_removed_and_its_run_measured_again(tmp_path, capsys, kept_bytes):
    out = tmp_path / "a.jsonl"
    whole = gather(asked(out), lambda slowdown, folder: MadeUp(slowdown), nullcontext, tmp_path)
    *lines, last = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(lines) + last[:kept_bytes])
    with pytest.raises(StreamError, match=r"its last line was cut off\. Gather with --resume"):
        read(out)
    with pytest.raises(StreamError, match="has another plan"):
        gather(asked(out, plan=Plan(runs=9)), MadeUp, nullcontext, tmp_path, resume=True)
    assert out.read_bytes().endswith(last[:kept_bytes])  # what is not continued stays as it is
    started = []

    def start(slowdown, folder):
        started.append(slowdown)
        return MadeUp(slowdown)

    stream = gather(asked(out), start, nullcontext, tmp_path, resume=True)
    assert started == [whole.runs[-1].slowdown]
    assert stream == read(out)
    assert [run.slowdown for run in stream.runs] == HEAD.plan.order()
    assert "its last line was cut off and is removed" in capsys.readouterr().err


def test_a_file_that_is_no_stream_is_never_cut(tmp_path):
    out = tmp_path / "a.jsonl"
    for content in ("mine", "mine\nand more"):
        out.write_text(content)
        with pytest.raises(StreamError, match=r"no stream of runs|no JSON object"):
            gather(asked(out), MadeUp, nullcontext, tmp_path, resume=True)
        assert out.read_text() == content


def test_processes_are_stopped_before_a_failure_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.noise.gathering._until_idle", lambda children: None)
    children = []

    def start(slowdown, folder):
        children.append(MadeUp(slowdown, dataclasses.replace(RESULT, status=Ending.SKIPPED)))
        return children[-1]

    with pytest.raises(GatherError) as failure:
        gather(asked(tmp_path / "a.jsonl", ahead=3), start, nullcontext, tmp_path)
    assert failure.tb is not None  # which keeps everything alive that it names
    assert [child.stopped for child in children] == [1, 1, 1]


def test_processes_are_stopped_where_the_next_one_cannot_start(tmp_path):
    children = []

    def start(slowdown, folder):
        if children:
            raise GatherError("no memory")
        children.append(MadeUp(slowdown))
        return children[-1]

    with pytest.raises(GatherError, match="no memory"):
        gather(asked(tmp_path / "a.jsonl", ahead=3), start, nullcontext, tmp_path)
    assert [child.stopped for child in children] == [1]


def test_a_folder_that_cannot_be_removed_does_not_hide_why_it_failed(tmp_path, monkeypatch, capsys):
    def start(arguments, slowdown, folder, **facts):
        folder.mkdir()
        return MadeUp(slowdown, dataclasses.replace(RESULT, runs=(), status=Ending.FAILED, text="no memory"))

    def rmdir(*arguments, **facts):
        raise OSError(errno.ENOTEMPTY, "somebody writes into it")

    monkeypatch.setattr("benchmarks.noise.__main__.start", start)
    monkeypatch.setattr("benchmarks.noise.__main__.signal.signal", lambda *arguments: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", rmdir)
        assert main(["gather", "--name=a", f"--out={tmp_path / 'a.jsonl'}", "--", "nothing.py"]) == 1
    assert "was not measured (failed): no memory" in capsys.readouterr().err


@given(ahead=st.integers(1, 40), timeout_s=st.floats(1, 1e4))
def test_the_last_of_a_group_may_wait_for_all_the_others(ahead, timeout_s):
    group = asked(Path("a"), ahead=ahead, timeout_s=timeout_s)
    assert group.wait_s > timeout_s + (ahead - 1) * timeout_s  # built, then measured one after another
    assert asked(Path("a"), timeout_s=timeout_s).wait_s is None


def test_a_disturbed_run_is_noted_and_measured_again(tmp_path):
    invalid = dataclasses.replace(RESULT, runs=(), status=Outcome.INVALID, text="throttled")
    results = iter([RESULT, invalid, *[RESULT] * 4])
    stream = gather(
        asked(tmp_path / "a.jsonl"),
        lambda slowdown, folder: MadeUp(slowdown, next(results)),
        nullcontext,
        tmp_path,
    )
    assert [run.invalid for run in stream.runs] == ["", "throttled", "", "", "", ""]
    assert len(stream.of(0.0)) == 3


@pytest.mark.parametrize(
    ("results", "fault"),
    [
        (["throttled"], "the first process was disturbed: throttled"),
        ([RESULT, "hot", "hot", "hot"], "3 processes in a row were disturbed"),
        (
            [dataclasses.replace(RESULT, runs=(), status=Ending.FAILED, text="no memory")],
            "was not measured .*no memory",
        ),
        ([dataclasses.replace(RESULT, status=Ending.SKIPPED)], "0 benchmarks ran, and a stream is of one"),
        (
            [RESULT, dataclasses.replace(RESULT, configuration={"batch_size": 8})],
            "the configuration is another one than that of the stream",
        ),
    ],
)
def test_what_makes_no_stream_says_why(tmp_path, results, fault):
    left = iter(
        dataclasses.replace(RESULT, runs=(), status=Outcome.INVALID, text=each)
        if isinstance(each, str)
        else each
        for each in results
    )
    with pytest.raises(GatherError, match=fault):
        gather(
            asked(tmp_path / "a.jsonl"),
            lambda slowdown, folder: MadeUp(slowdown, next(left)),
            nullcontext,
            tmp_path,
        )


def test_processes_that_do_not_wait_cannot_be_built_ahead(tmp_path):
    class Unlocked(MadeUp):
        is_waiting = False

    with pytest.raises(GatherError, match="without waiting for the device"):
        gather(
            asked(tmp_path / "a.jsonl", ahead=2),
            lambda slowdown, folder: Unlocked(slowdown),
            nullcontext,
            tmp_path,
        )


def test_processes_that_work_while_they_wait_cannot_be_built_ahead():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        child = Child(slowdown=0.0, folder=Path(), process=process)
        try:
            before_s = cpu_s([child])
            with pytest.raises(GatherError, match="CPUs busy, beside which none should measure"):
                _until_idle([child], limit_s=0.0)
            assert cpu_s([child]) > before_s
        finally:
            process.kill()
    _until_idle([child], limit_s=0.0)  # it is gone


def test_progress_says_what_is_left():
    said = []
    progress = Progress(total=5, tell=said.append)
    progress.tell(RUN, left=4)
    progress.tell(dataclasses.replace(RUN, slowdown=0.025, took_s=99.0), left=3)
    assert said == [
        "1 of 5  A/A: 500 ms, 1.0 s; about 4 s left\n",
        "2 of 5  slower by 2.5 %: 500 ms, 99.0 s; about 2.5 min left\n",
    ]


# --- gathering, for real ----------------------------------------------------------------------------

UUID = "GPU-8f3aab12-0000-0000-0000-000000000001"
# Each process says when it was built, and when it
# measured first and last.
SUITE = """
import os, pathlib, time
import pytest

steps_s = []


def note(what, at_s):
    with pathlib.Path("notes").open("a") as file:
        file.write(f"{what} {os.getpid()} {at_s}\\n")


def step():
    steps_s.append(time.monotonic())
    sum(range(2000))


@pytest.mark.h200
def test_step(accel):
    note("built", time.monotonic())
    accel.measure(step, work=2000, unit="numbers")
    note("began", steps_s[0])
    note("ended", steps_s[-1])
"""


@pytest.fixture
def on_a_gpu(fake_nvml, tmp_path):
    """`python -m benchmarks.noise` in a folder with a benchmark of a GPU that is a fake driver's."""
    (tmp_path / "conftest.py").write_text(COMPUTED_HERE)
    (tmp_path / "test_suite.py").write_text(SUITE)
    # Nobody who waits for others is done by then: `gather` has to give them more.
    (tmp_path / "pytest.ini").write_text("[pytest]\naccel_timeout = 100ms\n")
    environ = fake_nvml.environment(
        [FakeGpu(uuid=UUID)],
        PYTEST_ACCEL_LOCKS=str(tmp_path / "locks"),
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
        PYTHONPATH=str(ROOT),
    )

    def run(*options, arguments=()):
        command = [
            sys.executable,
            "-m",
            "benchmarks.noise",
            "gather",
            "--name=fake",
            "--out=fake.jsonl",
            *options,
        ]
        command += [
            "--",
            "test_suite.py",
            "-p",
            "benchmark",
            "-p",
            "accel",
            "--accel-budget=60ms",
            "-oaccel_warmup=50ms",
        ]
        return subprocess.run(
            [*command, *arguments],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def test_processes_that_are_built_ahead_measure_one_after_another_and_beside_no_building(on_a_gpu, tmp_path):
    done = on_a_gpu("--runs=2", "--slowdowns=0.5", "--slow-runs=1", "--ahead=3")
    assert done.returncode == 0, done.stderr
    stream = read(tmp_path / "fake.jsonl")
    assert Counter(run.slowdown for run in stream.runs if run.is_valid) == {0.0: 2, 0.5: 1}
    assert stream.head.platform == "h200"
    notes = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    at_s = {(what, pid): float(second) for what, pid, second in notes}
    pids = {pid for _, pid, _ in notes}
    assert len(pids) == 3
    spans = sorted((at_s["began", pid], at_s["ended", pid]) for pid in pids)
    assert max(at_s["built", pid] for pid in pids) < spans[0][0]
    assert all(before[1] < after[0] for before, after in pairwise(spans))
    slow = next(run for run in stream.runs if run.slowdown)
    assert slow.metrics["slowdown_felt"] > 0.1  # half was asked for; a busy machine gives and takes


def test_building_ahead_is_refused_where_nothing_is_locked(tmp_path):
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "benchmarks.noise",
                "gather",
                "--name=a",
                f"--out={tmp_path / 'a'}",
                "--ahead=2",
            ),
            *("--", "nothing.py"),
        ],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "--ahead needs a device that sessions lock" in done.stderr


def test_a_process_that_leaves_no_results_shows_its_last_words(tmp_path):
    (tmp_path / "log.txt").write_text("usage: pytest\nerror: unrecognised\n")
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(4)"]) as process:
        process.wait()
    child = Child(slowdown=0.0, folder=tmp_path, process=process)
    with pytest.raises(GatherError, match=r"ended with 4 and left no results[^$]*error: unrecognised"):
        child.results()
