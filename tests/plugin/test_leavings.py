"""What a session leaves behind: files that were asked for, and the history; nothing of it changes a verdict."""

from __future__ import annotations

import os

import pytest

from pytest_accel.core.results import Ending
from pytest_accel.core.verdict import Outcome
from pytest_accel.session import leavings  # here, so that runs in this process share it
from pytest_accel.store.history import History
from pytest_accel.store.results import read_results

ENDINGS = """
    import pytest

    def test_step(accel):
        measure(accel)

    def test_regressed(accel):
        measure(accel)

    def test_broken(accel):
        raise RuntimeError("the loader is empty")

    def test_silent(accel):
        pytest.skip("not today")

    def test_elsewhere(accel):
        measure(accel)
    test_elsewhere.pytestmark = [pytest.mark.h200]

    @pytest.mark.xfail(reason="known")
    def test_expected(accel):
        raise RuntimeError("as ever")

    def test_plain():
        pass
    """


@pytest.fixture
def results(bench):
    """Every way to end, in one session."""
    bench.write(ENDINGS.replace("test_elsewhere.pytestmark = [pytest.mark.h200]", ""))
    bench.baseline(test_step=bench.SAME, test_regressed=1e-3, test_gone=bench.SAME)
    ran = bench.run(bench.TOLERANT, "--accel-json=out/results.json", "--accel-looks=2")
    assert ran.ret == pytest.ExitCode.TESTS_FAILED
    return {result.name: result for result in read_results(bench.path("out/results.json")).results}


def test_every_benchmark_is_in_the_results_with_its_end(results):
    assert {name: result.status for name, result in results.items()} == {
        "test_step": Outcome.OK,
        "test_regressed": Outcome.REGRESSED,
        "test_broken": Ending.FAILED,
        "test_silent": Ending.SKIPPED,
        "test_elsewhere": Outcome.NO_BASELINE,
        "test_expected": Ending.SKIPPED,
        "test_gone": Ending.VANISHED,
    }
    assert {name for name, result in results.items() if result.failed} == {"test_regressed", "test_broken"}
    assert "slower" in results["test_regressed"].text
    assert results["test_broken"].text == "RuntimeError: the loader is empty"
    assert any("raise RuntimeError" in line for line in results["test_broken"].details)
    assert results["test_silent"].text == "not today"
    assert results["test_expected"].text == "expected to fail: known"
    assert len(results["test_regressed"].runs) == 2
    assert len(results["test_regressed"].baseline) == 3
    assert results["test_step"].throughput > 0
    assert results["test_step"].line > 0
    assert results["test_step"].file == "test_suite.py"


def test_a_session_knows_what_and_where_it_was(bench):
    bench.benchmarks("test_step")
    bench.run("--accel-json=results.json", "-k", "step")
    session = read_results(bench.path("results.json"))
    assert session.exit_status == 0
    assert session.command[-2:] == ("-k", "step")
    assert session.host == os.uname().nodename
    assert session.findings  # of the doctor
    (result,) = session.results
    assert session.environments[result.environment].identity["cpu_model"]


def test_hardware_that_is_missing_is_a_skip_in_the_results(bench):
    bench.write(
        """
        def test_elsewhere(accel):
            measure(accel)
        """
    )
    bench.path("test_suite.py").write_text(
        bench.path("test_suite.py").read_text().replace("mark.cpu", "mark.h200")
    )
    bench.run("--accel-json=results.json").assert_outcomes(skipped=1)
    (result,) = read_results(bench.path("results.json")).results
    assert result.status is Ending.SKIPPED
    assert "h200" in result.text.lower()


def test_recorded_runs_are_results_too(bench):
    bench.benchmarks("test_step")
    bench.run("--accel-record=2", "--accel-json=results.json").assert_outcomes(passed=1)
    (result,) = read_results(bench.path("results.json")).results
    assert result.status is Ending.RECORDED
    assert len(result.runs) == 2


class TestHistory:
    def test_every_session_that_measured_is_kept_beside_the_project(self, bench):
        bench.benchmarks("test_step")
        bench.run()
        bench.run()
        history = History(bench.path(".accel/history.sqlite"))
        assert len(history.sessions()) == 2
        assert bench.path(".accel/.gitignore").read_text() == "*\n"

    def test_nothing_is_kept_where_nothing_was_measured_or_none_is_wanted(self, bench):
        bench.benchmarks("test_step")
        bench.run("--accel-history=off").assert_outcomes(passed=1)
        bench.run("--collect-only")
        bench.run("--benchmark-disable").assert_outcomes(passed=1)
        assert not bench.path(".accel").exists()

    def test_one_that_cannot_be_written_is_said_and_costs_nothing(self, bench):
        bench.benchmarks("test_step")
        bench.path("history.sqlite").write_text(
            "this is no database, and it is long enough to be seen as such"
        )
        result = bench.run("--accel-history=history.sqlite")
        result.assert_outcomes(passed=1)
        assert result.ret == pytest.ExitCode.OK
        result.stdout.fnmatch_lines(["the history was not written: *history.sqlite*"])
        assert bench.path("history.sqlite").read_text().startswith("this is no database")


class TestFiles:
    def test_all_of_them_are_written_and_named(self, bench):
        bench.benchmarks("test_step")
        result = bench.run(
            *(
                f"--accel-{kind}=out/{name}"
                for kind, name in {
                    "json": "r.json",
                    "report": "r.html",
                    "summary": "r.md",
                    "metrics": "m.txt",
                }.items()
            )
        )
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["json: *r.json", "report: *r.html", "summary: *r.md", "metrics: *m.txt"])
        assert "test_step" in bench.path("out/r.md").read_text()
        assert bench.path("out/r.html").read_text().startswith("<!doctype html>")
        assert "test_step" in bench.path("out/m.txt").read_text()

    @pytest.mark.parametrize("option", ["report", "json", "summary", "metrics"])
    def test_a_folder_in_its_place_is_said_before_anything_is_measured(self, bench, option):
        bench.benchmarks("test_step")
        result = bench.run(f"--accel-{option}=.")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: --accel-{option}: * is a folder. Name a file in it."])
        assert not bench.processes("test_step")

    def test_without_plotly_a_report_is_refused_with_the_remedy(self, bench, monkeypatch):
        bench.benchmarks("test_step")
        monkeypatch.setattr(leavings, "find_spec", lambda _: None)
        result = bench.run("--accel-report=r.html")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["*pip install 'pytest-accel[[]report]'*"])

    def test_one_that_cannot_be_written_after_all_fails_the_session_and_loses_no_other(self, bench):
        bench.write(
            """
            def test_step(accel):
                measure(accel)
                pathlib.Path("out").write_text("in the way")
            """
        )
        result = bench.run("--accel-json=out/r.json", "--accel-summary=r.md")
        result.assert_outcomes(passed=1)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines(["--accel-json: *out/r.json: *", "summary: *r.md"])

    def test_fresh_processes_write_none(self, bench):
        bench.benchmarks("test_step")
        bench.baseline(test_step=bench.FASTER)
        bench.run("--accel-json=r.json").assert_outcomes(failed=1)
        (result,) = read_results(bench.path("r.json")).results
        assert len(result.runs) > 1


class TestGitHub:
    def test_its_summary_and_annotations_come_by_themselves(self, bench, monkeypatch):
        bench.benchmarks("test_step")
        bench.baseline(test_step=bench.FASTER)
        bench.path("step.md").write_text("of the step before\n")
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(bench.path("step.md")))
        monkeypatch.setenv("GITHUB_SHA", "0123abcd")
        result = bench.run("--accel-json=r.json")
        result.stdout.re_match_lines([r"^::error file=test_suite\.py,line=\d+.*slower"])
        summary = bench.path("step.md").read_text()
        assert summary.startswith("of the step before\n")
        assert "test\\_step" in summary or "test_step" in summary
        assert read_results(bench.path("r.json")).revision == "0123abcd"

    def test_elsewhere_there_are_none(self, bench):
        bench.benchmarks("test_step")
        bench.baseline(test_step=bench.FASTER)
        bench.run().stdout.no_fnmatch_line("::error*")
