"""Baselines: missing, stale, recorded, updated, unreadable and vanished ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pytest_accel.storage.baseline_edits import accept
from pytest_accel.storage.baselines import BaselineStore
from pytest_accel.storage.results import read_results

REASON = "--accel-reason=a new driver"


# --- none, stale, foreign -------------------------------------------------------------------------


class TestMissing:
    def test_benchmark_passes_and_the_command_that_records_is_printed(self, bench):
        bench.benchmarks("test_step")
        result = bench.run("-v", "-m", "cpu and not slow")
        result.assert_outcomes(passed=1)
        assert result.ret == pytest.ExitCode.OK
        result.stdout.fnmatch_lines(
            [
                "*::test_step NO-BASELINE*",
                "test_step * NO-BASELINE",
                f"No baseline on {bench.template.platform} for 1 of 1 benchmarks. Record one with:",
                "    *pytest -p benchmark -p accel * -v -m 'cpu and not slow' --accel-record",
            ]
        )

    def test_fails_by_option(self, bench):
        bench.benchmarks("test_step")
        result = bench.run("--accel-missing-baseline=fail")
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            ["NO-BASELINE  test_step (cpu): baselines of * hold no test_step; record it with --accel-record"]
        )

    def test_command_names_only_benchmarks_without_a_baseline(self, bench):
        bench.benchmarks("test_step", "test_new")
        bench.baseline(test_step=bench.SAME)
        result = bench.run(bench.TOLERANT, "--accel-slowdown=1%")
        result.assert_outcomes(passed=2)
        result.stdout.fnmatch_lines(
            [
                "No baseline on * for 1 of 2 benchmarks.*",
                "    *pytest * test_suite.py::test_new --accel-record",
            ]
        )


class TestStale:
    @pytest.fixture
    def stale(self, bench):
        bench.write("def test_step(accel):\n    measure(accel, work=1000, configuration={'batch': 2})\n")
        bench.baseline(test_step=bench.SAME)
        return bench

    def test_stale_baseline_fails_once_and_names_what_changed(self, stale):
        result = stale.run()
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            [
                (
                    "STALE-BASELINE  test_step (cpu): the benchmark changed since its baseline"
                    " (work per step 2000* -> 1000, batch 2 is new); record it anew with --accel-update*"
                )
            ]
        )
        # At the failure, and not again below the table.
        assert sum(line.startswith("STALE-BASELINE  ") for line in result.outlines) == 1

    def test_stale_baseline_warns_by_option_and_is_never_compared(self, stale):
        stale.baseline(test_step=stale.FASTER)
        result = stale.run("-v", "--accel-stale-baseline=warn", "--benchmark-json=out.json")
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["*::test_step STALE-BASELINE*", "STALE-BASELINE  test_step (cpu): *"])
        assert stale.accel_info()["verdict"]["slowdown"] is None
        assert len(stale.processes("test_step")) == 1

    def test_stale_baseline_takes_no_further_runs(self, stale):
        result = stale.run("--accel-record=1")
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            ["*the benchmark changed since its baseline*--accel-update*", "*(1 run) is kept in *.json."]
        )
        assert len(stale.entry("test_step")["runs"]) == 3


@pytest.mark.parametrize(("policy", "outcome"), [("fail", "failed"), ("warn", "passed")])
def test_baseline_of_another_machine_is_never_compared(bench, policy, outcome):
    bench.benchmarks("test_step")
    bench.baseline(test_step=bench.FASTER)
    bench.doctor_environment(lambda stored: stored["identity"].update(threads="64"))
    result = bench.run(f"--accel-stale-baseline={policy}")
    result.assert_outcomes(**{outcome: 1})
    result.stdout.fnmatch_lines(
        [
            (
                "STALE-BASELINE  test_step (cpu): the stored runs are of another machine (threads 64 -> 1)"
                " and are never compared;*"
            )
        ]
    )
    assert len(bench.processes("test_step")) == 1


# --- recording ------------------------------------------------------------------------------------


class TestRecording:
    def test_every_run_is_measured_in_a_process_of_its_own(self, bench):
        bench.benchmarks("test_step")
        result = bench.run("--accel-record=2")
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["test_step * recorded 2 runs, ± * %"])
        assert len(bench.entry("test_step")["runs"]) == 2
        first, second = bench.processes("test_step")
        assert first != second

    def test_recording_appends_to_stored_runs(self, bench):
        bench.benchmarks("test_step")
        bench.baseline(test_step=bench.SAME)
        bench.run("--accel-record=1", "--accel-reason=one more").assert_outcomes(passed=1)
        entry = bench.entry("test_step")
        assert len(entry["runs"]) == 4
        before, after = entry["ledger"]
        assert (after["action"], after["runs"], after["reason"]) == ("record", 1, "one more")
        assert len({run["session"] for run in entry["runs"]}) == 2
        assert before["session"] != after["session"] == entry["runs"][-1]["session"]

    def test_given_tolerance_is_recorded(self, bench):
        bench.benchmarks("test_step")
        bench.run("--accel-record=1", "--accel-tolerance=7%").assert_outcomes(passed=1)
        assert bench.entry("test_step")["tolerance"] == 0.07

    def test_more_than_ten_runs_are_refused_before_measuring(self, bench):
        bench.benchmarks("test_step")
        bench.baseline(test_step=[1.0] * 8)
        result = bench.run("--accel-record=5")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(
            ["*test_step (cpu): its baseline has 8 runs*--accel-record=2*--accel-update*"]
        )
        assert not bench.processes("test_step")

    def test_path_taken_for_the_number_of_runs_gets_the_remedy(self, bench):
        bench.benchmarks("test_step")
        result = bench.run("--accel-record", "test_suite.py")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["*Write --accel-record=5, or put paths before it.*"])

    def test_benchmarks_that_fail_or_skip_are_reported_as_such_and_not_recorded(self, bench):
        bench.write(
            """
            @pytest.fixture
            def leaky():
                yield
                raise OSError("leaked")

            def test_plain():
                assert False

            def test_broken(accel):
                measure(accel, lambda: 1 / 0)

            def test_wrong(accel):
                measure(accel)
                assert False, "the result is wrong"

            def test_leaky(accel, leaky):
                measure(accel)

            def test_silent(accel):
                pass

            def test_absent(accel):
                pytest.skip("no such library")

            @pytest.mark.skip(reason="not today")
            def test_marked(accel):
                measure(accel)

            def test_step(accel):
                measure(accel)
            """
        )
        result = bench.run("--accel-record=1", "-rs")
        result.assert_outcomes(failed=5, skipped=2, passed=1)
        for line in (
            "*failed in a fresh process:*ZeroDivisionError*",
            "*the result is wrong*",
            "*failed in a fresh process: OSError: leaked*",
            "*measured nothing*accel.measure*",
            "*no such library*",
            "*not today*",
        ):
            result.stdout.fnmatch_lines([line])
        assert list(bench.load_baseline()["benchmarks"]) == ["test_suite.py::test_step"]
        # Workers leave the failures of the session alone.
        bench.run("--lf", "--collect-only", "-q").stdout.fnmatch_lines(["*::test_plain", "*::test_broken"])

    def test_fixtures_of_plain_tests_are_torn_down_before_processes_start(self, bench):
        """What they hold, memory of the device above all, would be missing in the processes."""
        bench.write(
            """
            @pytest.fixture(scope="module")
            def model():
                yield
                note("order", "torn down")

            def test_plain(model):
                pass

            def test_step(accel):
                note("order", "measured")
                measure(accel)
            """
        )
        bench.run("--accel-record=1").assert_outcomes(passed=2)
        assert bench.path("order").read_text().splitlines() == ["torn down", "measured"]

    def test_workers_do_not_write_files_of_the_session(self, bench):
        bench.write("def test_plain():\n    pass\n\ndef test_step(accel):\n    measure(accel)\n")
        bench.pytester.makeini("[pytest]\naddopts = --junitxml=out.xml\n")
        bench.run("--accel-record=1", "--benchmark-json=out.json").assert_outcomes(passed=2)
        assert [case.get("name") for case in bench.junit().iter("testcase")] == ["test_plain", "test_step"]
        out = bench.path("out.json")
        assert not out.exists() or not out.read_text() or bench.json()["benchmarks"] == []

    def test_temporary_files_and_cache_of_the_session_survive_its_workers(self, bench):
        """pytest empties --basetemp when it starts."""
        bench.write(
            """
            @pytest.fixture(scope="session")
            def kept(tmp_path_factory):
                file = tmp_path_factory.mktemp("kept") / "file"
                file.touch()
                yield file
                assert file.exists()

            def test_plain(kept):
                pass

            def test_step(accel, tmp_path, cache):
                cache.set("mine", 1)
                measure(accel)
            """
        )
        result = bench.run(
            "--accel-record=1", f"--basetemp={bench.path('base')}", "--cache-clear", "--lfnf=all"
        )
        result.assert_outcomes(passed=2)
        assert list(bench.path("base").glob("kept*/file"))

    def test_unwritable_folder_fails_and_says_where_the_runs_are_kept(self, bench, monkeypatch, tmp_path):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        # A file where the folder belongs; later than at the start, where reading would already say so.
        bench.write(
            """
            def test_step(accel):
                measure(accel)
                pathlib.Path("baselines").write_text("in the way")
            """
        )
        result = bench.run("--accel-record=1")
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*cannot be written*", "*what was measured (1 run) is kept in *.json."])
        kept = Path(re.search(r"kept in (\S+\.json)", result.stdout.str())[1])
        store = BaselineStore(tmp_path / "elsewhere")
        (line,) = accept(store, read_results(kept), reason="disk was full", at="2026-02-01T10:00:00+00:00")
        assert line.endswith("test_suite.py::test_step: added 1 run, it has 1")

    def test_runs_before_one_that_fails_are_kept_and_not_recorded(self, bench, monkeypatch, tmp_path):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        bench.write(
            """
            def test_step(accel):
                measure(accel)
                assert len(pathlib.Path("pids-test_step").read_text().split()) < 2
            """
        )
        result = bench.run("--accel-record=2")
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*what was measured (1 run) is kept in *.json."])
        (kept,) = tmp_path.glob("pytest-accel-unsaved-*.json")
        (kept_result,) = read_results(kept).results
        assert len(kept_result.runs) == 1
        assert not bench.baseline_path.exists()

    @pytest.mark.parametrize("off", ["--benchmark-disable", "--benchmark-skip"])
    def test_recording_without_measuring_is_refused(self, bench, off):
        bench.benchmarks("test_step")
        result = bench.run("--accel-record=1", off)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"*{off} switches off what --accel-record records*"])

    def test_folder_that_cannot_be_written_is_said_before_measuring(self, bench):
        bench.benchmarks("test_step")
        bench.path("in-the-way").touch()
        result = bench.run("--accel-record=1", "--accel-baselines=in-the-way/here")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert not bench.processes("test_step")


class TestUpdating:
    @pytest.fixture
    def stored(self, bench):
        bench.benchmarks("test_step")
        bench.baseline(test_step=bench.FASTER)
        return bench

    def test_update_replaces_runs_keeps_the_ledger_and_leaves_other_benchmarks(self, stored):
        stored.benchmarks("test_step", "test_other")
        stored.baseline(test_step=stored.FASTER, test_other=stored.SAME)
        (before,), other = stored.entry("test_step")["ledger"], stored.entry("test_other")
        result = stored.run("--accel-update", "--accel-record=2", REASON, "-k", "test_step")
        result.assert_outcomes(passed=1, deselected=1)
        entry = stored.entry("test_step")
        assert len(entry["runs"]) == 2
        assert {run["session"] for run in entry["runs"]} == {entry["ledger"][-1]["session"]}
        assert entry["ledger"][0] == before
        assert (entry["ledger"][1]["action"], entry["ledger"][1]["reason"]) == ("update", "a new driver")
        assert stored.entry("test_other") == other

    def test_update_replaces_a_stale_baseline(self, stored):
        stored.write("def test_step(accel):\n    measure(accel, configuration={'batch': 2})\n")
        stored.run("--accel-update", "--accel-record=1", REASON).assert_outcomes(passed=1)
        assert stored.entry("test_step")["configuration"] == {"batch": 2}
        stored.run(stored.TOLERANT).assert_outcomes(passed=1)

    def test_failed_update_leaves_the_old_baseline(self, stored):
        stored.write("def test_step(accel):\n    measure(accel)\n    assert False\n")
        before = stored.load_baseline()
        stored.run("--accel-update", "--accel-record=1", REASON).assert_outcomes(failed=1)
        assert stored.load_baseline() == before


# --- files that cannot be used --------------------------------------------------------------------


FAULTS = [
    pytest.param(lambda text: text[: len(text) // 2], "*cut off*", id="torn"),
    pytest.param(
        lambda text: re.sub(r'("rounds_s": \[)[^,]+', r"\1NaN", text, count=1),
        "*.runs[[]0].rounds_s[[]0]: NaN is not a finite number*",
        id="NaN",
    ),
    pytest.param(
        lambda text: text.replace('"schema_version": 1', '"schema_version": 2'),
        "*schema_version: 2 is newer than this pytest-accel reads*",
        id="foreign schema",
    ),
]


@pytest.mark.parametrize(("damage", "complaint"), FAULTS)
def test_bad_file_is_one_clear_error_before_anything_is_measured(bench, damage, complaint):
    bench.benchmarks("test_step")
    bench.baseline(test_step=bench.SAME)
    bench.baseline_path.write_text(damage(bench.baseline_path.read_text()))
    result = bench.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line, *_) = errors = [line for line in result.errlines if line]
    assert str(bench.baseline_path) in line
    result.stderr.fnmatch_lines([complaint])
    assert len(errors) == 2  # what is wrong and where; what to do
    assert not any("Traceback" in line for line in [*result.errlines, *result.outlines])
    assert not bench.processes("test_step")


def test_bad_file_also_stops_recording(bench):
    bench.benchmarks("test_step")
    bench.baseline_path.parent.mkdir(parents=True)
    bench.baseline_path.write_text("{")
    result = bench.run("--accel-record=1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert bench.baseline_path.read_text() == "{"
    assert not bench.processes("test_step")


def test_bad_file_of_another_suite_does_not_matter(bench):
    bench.benchmarks("test_step")
    bench.baseline(test_step=bench.SAME)
    bench.baseline_path.with_name("other.json").write_text("{")
    bench.run(bench.TOLERANT).assert_outcomes(passed=1)


def test_bad_file_does_not_stop_a_run_without_benchmarks(bench):
    bench.write("def test_plain():\n    pass\n")
    bench.baseline_path.parent.mkdir(parents=True)
    bench.baseline_path.write_text("{")
    bench.run().assert_outcomes(passed=1)


def test_baselines_are_read_from_another_folder(bench):
    bench.benchmarks("test_step")
    bench.baseline(test_step=bench.SAME)
    bench.path("baselines").rename(bench.path("elsewhere"))
    result = bench.run(bench.TOLERANT, "--accel-baselines=elsewhere", "--accel-missing-baseline=fail")
    result.assert_outcomes(passed=1)


# --- vanished -------------------------------------------------------------------------------------


class TestVanished:
    @pytest.fixture
    def vanished(self, bench):
        bench.benchmarks("test_step")
        bench.baseline(test_step=bench.SAME, test_gone=bench.SAME)
        return bench

    def test_vanished_benchmark_is_reported(self, vanished):
        result = vanished.run(vanished.TOLERANT)
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(
            [
                "VANISHED  test_suite.py::test_gone: is stored in the baseline and was not found; *edit --remove test_suite.py::test_gone"
            ]
        )

    def test_vanished_benchmark_fails_by_option_in_junit_too(self, vanished):
        result = vanished.run(vanished.TOLERANT, "--accel-vanished=fail", "--junitxml=out.xml")
        result.assert_outcomes(passed=1, failed=1)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        (failure,) = vanished.testcase("test_gone").findall("failure")
        assert "is stored in the baseline and was not found" in failure.text

    @pytest.mark.parametrize(
        "selection",
        [
            ["test_suite.py::test_step"],
            ["-k", "test_step"],
            ["--ignore=elsewhere"],
            ["--deselect=x"],
            ["--lf"],
        ],
        ids=["node id", "-k", "--ignore", "--deselect", "--lf"],
    )
    def test_what_was_not_selected_has_not_vanished(self, vanished, selection):
        result = vanished.run(vanished.TOLERANT, "--accel-vanished=fail", *selection)
        assert result.ret == pytest.ExitCode.OK
        result.stdout.no_fnmatch_line("VANISHED*")

    def test_last_benchmark_that_is_gone_has_vanished(self, bench):
        """No benchmark is left to notice it: `-m` names the platform."""
        bench.write("def test_plain():\n    pass\n")
        bench.baseline(test_gone=bench.SAME)
        result = bench.run("--accel-vanished=fail", "-m", "cpu")
        result.assert_outcomes(passed=1, failed=1)

    def test_benchmark_that_lost_its_platform_has_vanished(self, bench):
        bench.write(
            """
            pytestmark = []

            @pytest.mark.cpu
            def test_step(accel):
                measure(accel)

            @pytest.mark.gh200
            def test_other(accel):
                measure(accel)
            """
        )
        bench.baseline(test_step=bench.SAME, test_other=bench.SAME)
        result = bench.run(bench.TOLERANT, "--accel-vanished=fail", "-m", "cpu")
        result.assert_outcomes(passed=1, failed=1, deselected=1)
        result.stdout.fnmatch_lines(["*VANISHED*test_other*"])

    def test_what_was_deselected_has_not_vanished(self, bench):
        bench.write(
            """
            def test_step(accel):
                measure(accel)

            @pytest.mark.filterwarnings("ignore")
            def test_other(accel):
                measure(accel)
            """
        )
        bench.baseline(test_step=bench.SAME, test_other=bench.SAME)
        result = bench.run(bench.TOLERANT, "--accel-vanished=fail", "-m", "cpu and not filterwarnings")
        result.assert_outcomes(passed=1, deselected=1)
        result.stdout.no_fnmatch_line("VANISHED*")

    def test_other_folder_has_not_vanished(self, bench):
        bench.benchmarks("test_step")
        bench.baseline(test_step=bench.SAME)
        content = bench.load_baseline()
        (entry,) = content["benchmarks"].values()
        content["benchmarks"]["elsewhere/test_suite.py::test_step"] = entry
        bench.save_baseline(content)
        result = bench.run(bench.TOLERANT, "--accel-vanished=fail", "test_suite.py")
        assert result.ret == pytest.ExitCode.OK

    def test_whole_suite_that_is_gone_has_vanished(self, bench):
        """A renamed file: its benchmarks are selected by the folder, and none is left."""
        bench.benchmarks("test_step")
        bench.baseline(test_step=bench.SAME)
        content = bench.load_baseline()
        (entry,) = content["benchmarks"].values()
        content["suite"] = "other"
        content["benchmarks"] = {"test_other.py::test_step": entry}
        bench.baseline_path.with_name("other.json").write_text(json.dumps(content))
        result = bench.run(bench.TOLERANT)
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["VANISHED  test_other.py::test_step:*"])
