"""Files and the history that a session writes: none of them changes a verdict."""

import os
import types

import pytest

from pytest_accel import cli
from pytest_accel.report import page
from pytest_accel.session import outputs  # here, so that runs in this process share it
from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.results import Ending
from pytest_accel.storage.history import History
from pytest_accel.storage.results import read_results

ENDINGS = """
    @pytest.fixture
    def fragile():
        yield
        raise RuntimeError("the file is gone")

    def test_step(accel):
        measure(accel)

    def test_regressed(accel):
        measure(accel)

    @pytest.mark.accel(tolerance="20%")
    def test_open(accel):
        measure(accel)

    def test_broken(accel):
        raise RuntimeError("half a pair: \\udc80")

    def test_silent(accel):
        pytest.skip("not today")

    def test_new(accel):
        measure(accel)

    def test_fragile(fragile, accel):
        measure(accel)

    @pytest.mark.xfail(reason="known")
    def test_expected(accel):
        raise RuntimeError("as ever")

    def test_plain():
        pass
    """
OPTIONS = """
def pytest_addoption(parser):
    parser.addoption("--api-token")
    parser.addoption("--address")
"""


@pytest.fixture(scope="module")
def ran(shared):
    """Every way to end, in one session that writes all files."""
    shared.write(ENDINGS)
    shared.path("conftest.py").write_text(OPTIONS)
    shared.path("test_elsewhere.py").write_text(
        "import pytest\n\n@pytest.mark.h200\ndef test_elsewhere(accel): ...\n"
    )
    shared.baseline(
        test_step=shared.SAME, test_regressed=shared.FASTER, test_open=shared.APART, test_gone=shared.SAME
    )
    return shared.run_apart(
        *(shared.TOLERANT, "--accel-repeats=2", "--junitxml=out.xml", "--accel-json=out/results.json"),
        *("--accel-report=out/r.html,out/also.md", "--accel-report=out/r.md"),
        *("--api-token", "hunter2", "--address=https://me:secret@example.org"),
    )


@pytest.fixture(scope="module")
def session(ran, shared):
    return read_results(shared.path("out/results.json"))


@pytest.fixture(scope="module")
def results(session):
    return {result.name: result for result in session.results}


def test_every_benchmark_is_in_the_results_with_its_status(ran, results):
    assert ran.ret == pytest.ExitCode.TESTS_FAILED
    assert {name: result.status for name, result in results.items()} == {
        "test_step": Ending.NOT_GATED,
        "test_regressed": Outcome.REGRESSED,
        "test_open": Outcome.INCONCLUSIVE,
        "test_broken": Ending.FAILED,
        "test_silent": Ending.SKIPPED,
        "test_new": Outcome.NO_BASELINE,
        "test_fragile": Ending.FAILED,
        "test_expected": Ending.SKIPPED,
        "test_elsewhere": Ending.SKIPPED,
        "test_gone": Outcome.VANISHED,
    }
    failed = {name for name, result in results.items() if result.failed}
    assert failed == {"test_regressed", "test_broken", "test_fragile"}
    assert "slower" in results["test_regressed"].text
    assert results["test_broken"].text == "RuntimeError: half a pair: \udc80"
    assert any("raise RuntimeError" in line for line in results["test_broken"].traceback)
    assert results["test_fragile"].text == "RuntimeError: the file is gone"
    assert results["test_silent"].text == "not today"
    assert results["test_expected"].text == "expected to fail: known"
    assert "h200" in results["test_elsewhere"].text.lower()
    assert len(results["test_regressed"].runs) == 2
    assert len(results["test_regressed"].baseline) == 3
    assert results["test_step"].throughput > 0
    assert results["test_step"].line > 0
    assert results["test_step"].file == "test_suite.py"


def test_results_name_command_host_and_environment(session, results):
    assert session.exit_status == pytest.ExitCode.TESTS_FAILED
    assert "--junitxml=out.xml" in session.command
    assert session.host == os.uname().nodename
    assert session.findings  # of the doctor
    assert session.environments[results["test_step"].environment].identity["cpu_model"]


def test_files_are_written_and_named(ran, shared):
    ran.stdout.fnmatch_lines(["report: *r.html", "report: *also.md", "report: *r.md", "json: *results.json"])
    assert "test_step" in shared.path("out/r.md").read_text()
    assert shared.path("out/r.html").read_text().startswith("<!doctype html>")


def test_credentials_of_the_command_line_are_not_written_or_printed(ran, shared):
    ran.stdout.fnmatch_lines(["*Record one with:", "*--accel-record"])
    names = ("out/results.json", "out/r.md", "out/r.html", "out.xml", "stdout.txt")
    for text in (shared.path(name).read_text(errors="replace") for name in names):
        assert "hunter2" not in text
        assert "secret@" not in text


@pytest.mark.parametrize(
    ("owner", "broken", "line", "status"),
    [
        (page, "render_summary", "--accel-report: *fault of pytest-accel*", pytest.ExitCode.TESTS_FAILED),
        (outputs, "_make_folder", "the history was not written: *fault of pytest-accel*", pytest.ExitCode.OK),
        (outputs.Outputs, "examine", "*fault of pytest-accel*", pytest.ExitCode.OK),
    ],
)
def test_fault_of_an_output_loses_neither_table_nor_verdict(bench, monkeypatch, owner, broken, line, status):
    def fail(*_, **__):
        raise KeyError("no such thing")

    monkeypatch.setattr(owner, broken, fail)
    bench.benchmarks("test_step")
    result = bench.run("--accel-report=r.md")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["test_step*NO-BASELINE*", "*= 1 no baseline in *"])
    result.stdout.fnmatch_lines([line])
    assert result.ret == status


class TestHistory:
    def test_history_keeps_every_session_that_measured(self, bench):
        bench.benchmarks("test_step")
        bench.run()
        bench.run()
        history = History(bench.path(".accel/history.sqlite"))
        assert len(history.sessions()) == 2
        assert bench.path(".accel/.gitignore").read_text() == "*\n"

    def test_history_is_not_written_where_nothing_was_measured_or_it_is_off(self, bench):
        bench.benchmarks("test_step")
        bench.run("--accel-history=off").assert_outcomes(passed=1)
        bench.run("--collect-only")
        bench.run("--benchmark-disable").assert_outcomes(passed=1)
        assert not bench.path(".accel").exists()

    @pytest.mark.parametrize(
        ("file", "arguments", "said"),
        [
            ("history.sqlite", ["--accel-history=history.sqlite"], "*history.sqlite*"),
            (".accel", [], "*\n*name another file (--accel-history)*"),  # where its folder belongs
        ],
    )
    def test_history_that_cannot_be_written_is_noted_without_failing(self, bench, file, arguments, said):
        bench.benchmarks("test_step")
        text = "this is no database, and it is long enough to be seen as such"
        bench.path(file).write_text(text)
        result = bench.run(*arguments)
        result.assert_outcomes(passed=1)
        assert result.ret == pytest.ExitCode.OK
        result.stdout.fnmatch_lines(f"the history was not written: {said}".splitlines())
        assert bench.path(file).read_text() == text


class TestFiles:
    @pytest.mark.parametrize("missing", ["plotly", "jinja2"])
    def test_report_without_its_libraries_is_refused_with_the_remedy(self, bench, monkeypatch, missing):
        bench.benchmarks("test_step")
        monkeypatch.setattr(outputs, "find_spec", lambda name: None if name == missing else name)
        bench.refuses(f"*needs {missing}: pip install {missing}.", "--accel-report=r.html")

    def test_file_that_cannot_be_written_fails_the_session_and_loses_no_other(self, bench):
        bench.write(
            """
            def test_step(accel):
                measure(accel)
                pathlib.Path("out").rename("moved")
                pathlib.Path("out").write_text("in the way")
            """
        )
        result = bench.run("--accel-json=out/r.json", "--accel-report=r.md")
        result.assert_outcomes(passed=1)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines(["report: *r.md", "--accel-json: *out/r.json: *"])

    @pytest.mark.parametrize("arguments", [["-k", "nothing"], ["test_plain.py"]])
    def test_session_without_benchmarks_replaces_results_of_an_older_one(self, bench, arguments):
        bench.benchmarks("test_step")
        bench.pytester.makepyfile(test_plain="def test_plain():\n    pass\n")
        bench.path("r.json").write_text("of yesterday")
        bench.run("--accel-json=r.json", *arguments)
        assert read_results(bench.path("r.json")).results == ()


class TestUnfinishedSession:
    """What `--accel-json` holds while a session goes on, and when it was killed."""

    def test_killed_session_leaves_results_that_can_be_accepted(self, bench):
        bench.write(
            """
            def test_first(accel):
                measure(accel)

            def test_second(accel):
                os.kill(os.getpid(), 9)
            """
        )
        bench.path("r.json").write_text("of yesterday")
        assert bench.run_apart("--accel-json=r.json").ret == -9
        session = read_results(bench.path("r.json"))
        assert session.exit_status == pytest.ExitCode.INTERRUPTED
        assert session.remarks == (outputs.NOT_ENDED,)
        first, second = session.results
        assert (first.status, len(first.runs)) == (Outcome.NO_BASELINE, 1)
        assert (second.status, len(second.runs)) == (Ending.NOT_MEASURED, 0)
        accept = ["baseline", "accept", str(bench.path("r.json")), "--reason", "what there is"]
        assert cli.main([*accept, "--baselines", str(bench.path("kept"))]) == 0

    def test_unwritable_intermediate_results_are_noted_once(self, bench, monkeypatch):
        write = outputs.write_results

        def fails_on_the_way(path, results):
            if results.exit_status == pytest.ExitCode.INTERRUPTED:
                raise OSError("no space is left")
            write(path, results)

        monkeypatch.setattr(outputs, "write_results", fails_on_the_way)
        bench.benchmarks("test_first", "test_second")
        result = bench.run("--accel-json=r.json")
        assert result.ret == pytest.ExitCode.OK
        said = [line for line in result.outlines if "no space is left" in line]
        assert said == ["the results so far were not written: no space is left"]
        assert len(read_results(bench.path("r.json")).results) == 2

    def test_run_is_judged_before_it_is_written(self, bench):
        """On a clock that only the steps move: a loss between half the tolerance and the whole stays open."""
        bench.virtual_clock()
        bench.write(
            """
            def test_step(accel, clock):
                clock.step_s = 0.00104
                measure(accel, clock.step)
                if len(pathlib.Path("pids-test_step").read_text().split()) == 3:
                    os.kill(session_pid(), 9)
            """
        )
        bench.virtual_baseline(test_step=0.001)
        assert bench.run_apart("--accel-json=r.json").ret == -9
        (result,) = read_results(bench.path("r.json")).results
        assert [verdict.runs for verdict in result.verdicts] == [len(result.runs)] == [2]

    def test_short_runs_are_not_each_written(self, bench, monkeypatch):
        written, ticks = [], iter(range(1000))
        monkeypatch.setattr(outputs, "write_results", lambda _, results: written.append(results.exit_status))
        clock = types.SimpleNamespace(monotonic=lambda: float(next(ticks)))  # as if all took a second
        monkeypatch.setattr(outputs, "time", clock)
        bench.benchmarks(*(f"test_{number}" for number in range(6)))
        bench.run("--accel-json=r.json", "--collect-only")
        assert written == []
        bench.run("--accel-json=r.json")
        assert written == [2, 2, 0]


class TestGitHub:
    def test_step_summary_is_written_without_options(self, bench, monkeypatch):
        bench.benchmarks("test_step")
        bench.baseline(test_step=bench.FASTER)
        bench.path("step.md").write_text("of the step before\n")
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(bench.path("step.md")))
        monkeypatch.setenv("GITHUB_SHA", "0123abcd")
        bench.run("--accel-json=r.json")
        summary = bench.path("step.md").read_text()
        assert summary.startswith("of the step before\n")
        assert "test\\_step" in summary or "test_step" in summary
        assert read_results(bench.path("r.json")).revision == "0123abcd"
