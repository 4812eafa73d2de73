"""What of a session's arguments a rank has."""

from __future__ import annotations

import pytest

from pytest_accel.distributed.worker import rank_arguments


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([], []),
        (["bench_suites", "-m", "cpu", "-k", "gpt"], ["bench_suites", "-m", "cpu", "-k", "gpt"]),
        (["--accel-record"], []),
        (["--accel-record=3", "suites"], ["suites"]),
        (["--accel-record", "3", "suites"], ["suites"]),
        (["--accel-record", "-v"], ["-v"]),
        (["--accel-update", "--accel-reason", "new driver", "-q"], ["-q"]),
        (["--accel-reason=-x is fine"], []),
        (["--accel-require"], []),
        (["--benchmark-json", "out.json", "--benchmark-json=out.json"], []),
        (["--benchmark-save", "a", "--benchmark-autosave", "--benchmark-save-data"], []),
        (["--benchmark-compare", "0001", "--benchmark-compare-fail", "min:5%"], []),
        (["--benchmark-compare", "--benchmark-columns=min"], ["--benchmark-columns=min"]),
        (["--junitxml=a.xml", "--junit-xml", "b.xml", "--junit-prefix=x"], []),
        (["-x", "--exitfirst", "--maxfail=1", "--maxfail", "2"], []),
        (["--lf", "--ff", "--nf", "--sw", "--last-failed"], []),
        (["--pdb", "--trace"], []),
        (["--html", "report.html"], []),
        (["-xq", "-vx", "-xx", "-sv"], ["-q", "-v", "-sv"]),
        (["--cov", "src", "--cov-report=html", "suites", "--cov", "-q"], ["suites", "-q"]),
        (
            ["--accel-budget=1s", "--accel-tolerance", "5%"],
            ["--accel-budget=1s", "--accel-tolerance", "5%"],
        ),
        (["-p", "benchmark", "-o", "markers=x"], ["-p", "benchmark", "-o", "markers=x"]),
        (["test_x.py::test_y[a-b]"], ["test_x.py::test_y[a-b]"]),
    ],
    ids=" ".join,
)
def test_what_writes_files_or_stops_early_is_left_out(given, kept):
    assert rank_arguments(given) == kept


@pytest.mark.parametrize(
    "argument",
    [
        "--basetemp=/tmp/mine",  # a process empties it when it starts
        "--log-file=run.log",  # a process truncates it
        "--pastebin=all",
        "--stepwise-reset",
        "--stepwise-skip",
        "--sw-skip",
    ],
)
def test_what_acts_on_files_of_the_session_is_left_out(argument):
    assert rank_arguments([argument, "suites"]) == ["suites"]
    name, _, value = argument.partition("=")
    if value:
        assert rank_arguments([name, value, "suites"]) == ["suites"]
