"""Baselines: missing, stale, recorded, updated, unreadable and vanished ones."""

import json

import pytest

from pytest_accel.stats.results import Ending
from pytest_accel.storage.results import read_results

REASON = "--accel-reason=a new driver"


# --- none, stale, foreign -------------------------------------------------------------------------


def test_missing_baseline_passes_and_the_command_that_records_is_printed(bench):
    bench.benchmarks("test_step", "test_new")
    bench.baseline(test_step=bench.SAME)
    result = bench.run(bench.TOLERANT, "-v", "-m", "cpu and not slow", "--accel-slowdown=1%")
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "*::test_new NO-BASELINE*",
            "test_new * NO-BASELINE *",
            f"No baseline on {bench.template.platform} for 1 of 2 benchmarks in {bench.path('baselines')}. Record one with:",
            "    pytest test_suite.py::test_new -m 'cpu and not slow' -p * --accel-record",
        ]
    )


def test_missing_baseline_fails_by_option(bench):
    bench.benchmarks("test_step")
    result = bench.run("--accel-missing-baseline=fail")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["NO-BASELINE  test_step (cpu): baselines of * hold no test_step; record it with --accel-record"]
    )


def test_stale_baseline_fails_once_with_what_changed_and_takes_no_further_runs(bench):
    bench.write("def test_step(accel):\n    measure(accel, work=1000, configuration={'batch': 2})\n")
    bench.baseline(test_step=bench.SAME)
    result = bench.run()
    result.assert_outcomes(failed=1)
    # At the failure, and not again below the table.
    (line,) = [line for line in result.outlines if line.startswith("STALE-BASELINE  ")]
    changed = "the benchmark changed since its baseline (work per step 2000 -> 1000, batch 2 appeared); record it anew"
    assert changed in line.replace("2000.0", "2000")
    result = bench.run("--accel-record=1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the benchmark changed*--accel-update*", "*(1 run) is kept in *.json."])
    assert len(bench.entry("test_step")["runs"]) == 3


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


RECORDED = """
    @pytest.fixture(scope="module")
    def model():
        yield
        note("order", "torn down")

    @pytest.fixture(scope="session")
    def kept(tmp_path_factory):
        file = tmp_path_factory.mktemp("kept") / "file"
        file.touch()
        yield file
        assert file.exists()

    @pytest.fixture
    def leaky():
        yield
        raise OSError("leaked")

    def test_plain(model, kept):
        pass

    def test_failing():
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

    def test_stored(accel):
        note("order", "measured")
        measure(accel)

    def test_new(accel, tmp_path, cache):
        cache.set("mine", 1)
        measure(accel)
    """


@pytest.fixture(scope="module")
def recorded(shared):
    """A session that records whatever can be."""
    shared.write(RECORDED)
    shared.baseline(test_stored=shared.SAME)
    shared.path("pytest.ini").write_text("[pytest]\naddopts = --junitxml=out.xml\n")
    return shared.run_apart(
        *("--accel-record=1", "--accel-reason=one more", "--accel-tolerance=7%", "--benchmark-json=out.json"),
        *("--accel-json=r.json", "-rs", f"--basetemp={shared.path('base')}", "--cache-clear", "--lfnf=all"),
    )


def test_recording_appends_to_stored_runs_with_a_ledger(recorded, shared):
    recorded.assert_outcomes(failed=5, skipped=2, passed=3)
    entry = shared.entry("test_stored")
    assert len(entry["runs"]) == 4
    before, after = entry["ledger"]
    assert (after["action"], after["runs"], after["reason"]) == ("record", 1, "one more")
    assert len({run["session"] for run in entry["runs"]}) == 2
    assert before["session"] != after["session"] == entry["runs"][-1]["session"]
    assert entry["tolerance"] == 0.07
    results = {result.name: result for result in read_results(shared.path("r.json")).results}
    assert results["test_stored"].status is Ending.RECORDED
    assert len(results["test_stored"].runs) == 1


def test_recording_reports_failures_and_skips_and_leaves_them_out(recorded, shared):
    for line in (
        "*failed in a fresh process:*ZeroDivisionError*",
        "*the result is wrong*",
        "*failed in a fresh process: OSError: leaked*",
        "*measured nothing*accel.measure*",
        "*no such library*",
        "*not today*",
    ):
        recorded.stdout.fnmatch_lines([line])
    assert list(shared.load_baseline()["benchmarks"]) == [
        "test_suite.py::test_new",
        "test_suite.py::test_stored",
    ]


def test_fixtures_of_plain_tests_are_torn_down_before_processes_start(recorded, shared):
    """What they hold, memory of the device above all, would be missing in the processes."""
    assert shared.path("order").read_text().splitlines() == ["torn down", "measured"]


def test_workers_write_no_file_of_the_session_and_remove_none(recorded, shared):
    """pytest empties --basetemp when it starts."""
    names = [case.get("name") for case in shared.junit().iter("testcase")]
    assert names[:2] == ["test_plain", "test_failing"]
    assert len(names) == 10
    out = shared.path("out.json")
    assert not out.exists() or not out.read_text() or shared.json()["benchmarks"] == []
    assert list(shared.path("base").glob("kept*/file"))
    failed = shared.run_apart("--lf", "--collect-only", "-q")
    failed.stdout.fnmatch_lines(["*::test_failing", "*::test_broken"])


def test_every_run_is_a_process_and_runs_before_a_failed_one_are_kept(bench, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    bench.write(
        """
        def test_step(accel):
            measure(accel)

        def test_second_fails(accel):
            measure(accel)
            assert len(pathlib.Path("pids-test_second_fails").read_text().split()) < 2
        """
    )
    result = bench.run("--accel-record=2")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        ["*what was measured (1 run) is kept in *.json.", "test_step * recorded 2 runs, ± * %*"]
    )
    assert len(bench.entry("test_step")["runs"]) == 2
    first, second = bench.processes("test_step")
    assert first != second
    (kept,) = tmp_path.glob("pytest-accel-unsaved-*.json")
    (result,) = read_results(kept).results
    assert len(result.runs) == 1
    assert list(bench.load_baseline()["benchmarks"]) == ["test_suite.py::test_step"]


def test_update_replaces_a_stale_baseline_and_leaves_other_benchmarks(bench):
    bench.write(
        """
        def test_step(accel):
            measure(accel, configuration={"batch": 2})

        def test_failing(accel):
            measure(accel)
            assert False
        """
    )
    bench.baseline(test_step=bench.FASTER, test_failing=bench.SAME, test_other=bench.SAME)
    (before,), others = bench.entry("test_step")["ledger"], ("test_failing", "test_other")
    stored = [bench.entry(name) for name in others]
    bench.run("--accel-update", "--accel-record=1", REASON).assert_outcomes(passed=1, failed=1)
    entry = bench.entry("test_step")
    assert entry["configuration"] == {"batch": 2}
    (run,) = entry["runs"]
    assert run["session"] == entry["ledger"][-1]["session"]
    assert entry["ledger"][0] == before
    assert (entry["ledger"][1]["action"], entry["ledger"][1]["reason"]) == ("update", "a new driver")
    assert [bench.entry(name) for name in others] == stored
    bench.run(bench.TOLERANT, "-k", "test_step").assert_outcomes(passed=1, deselected=1)


# --- files that cannot be used --------------------------------------------------------------------


def test_bad_file_is_one_clear_error_before_anything_is_measured(bench):
    bench.benchmarks("test_step")
    bench.baseline(test_step=bench.SAME)
    torn = bench.baseline_path.read_text()[:-100]
    bench.baseline_path.write_text(torn)
    result = bench.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line, *_) = errors = [line for line in result.errlines if line]
    assert str(bench.baseline_path) in line
    assert "not JSON" in line
    assert len(errors) == 2  # what is wrong and where; what to do
    assert not any("Traceback" in line for line in [*result.errlines, *result.outlines])
    assert not bench.processes("test_step")
    assert bench.baseline_path.read_text() == torn


def test_bad_file_of_another_suite_or_without_benchmarks_does_not_matter(bench):
    bench.benchmarks("test_step")
    bench.baseline(test_step=bench.SAME)
    bench.pytester.makepyfile(test_plain="def test_plain():\n    pass\n")
    bench.baseline_path.with_name("other.json").write_text("{")
    bench.run(bench.TOLERANT).assert_outcomes(passed=2)
    bench.baseline_path.write_text("{")
    bench.run("test_plain.py").assert_outcomes(passed=1)


# --- vanished -------------------------------------------------------------------------------------


OFF = "--benchmark-disable"  # nothing need be measured
GONE = "test_suite.py::test_gone"
MOVED = "test_suite.py::test_moved"  # it is marked with another platform than before
IN_FOLDER = "elsewhere/test_suite.py::test_step"
IN_FILE = "test_other.py::test_step"  # a file that is gone, with its baselines


@pytest.fixture
def vanished(bench):
    bench.write(
        """
        pytestmark = []

        @pytest.mark.cpu
        def test_step(accel):
            measure(accel)

        @pytest.mark.gh200
        def test_moved(accel):
            measure(accel)
        """
    )
    bench.baseline(**dict.fromkeys(("test_step", "test_moved", "test_gone"), bench.SAME))
    content = bench.load_baseline()
    entry = content["benchmarks"][GONE]
    content["benchmarks"][IN_FOLDER] = entry
    bench.save_baseline(content)
    other = bench.baseline_path.with_name("other.json")
    other.write_text(json.dumps({**content, "suite": "other", "benchmarks": {IN_FILE: entry}}))
    return bench


@pytest.mark.parametrize(
    ("arguments", "gone"),
    [
        (["-m", "cpu"], {GONE, MOVED, IN_FOLDER, IN_FILE}),
        (["test_suite.py"], {GONE, MOVED}),
        (["test_suite.py::test_step"], set()),
        (["-k", "test_step"], set()),
        (["--lf"], set()),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_stored_benchmark_that_was_selected_and_not_found_has_vanished(vanished, arguments, gone):
    result = vanished.run(OFF, *arguments)
    assert result.ret == pytest.ExitCode.OK
    lines = [line for line in result.outlines if line.startswith("VANISHED")]
    assert {line.split()[1].rstrip(":") for line in lines} == gone
    assert all(": is stored in the baseline and was not found; " in line for line in lines)
    assert all(" edit --remove " in line for line in lines)


def test_vanished_benchmark_fails_by_option_in_junit_too(bench):
    """No benchmark is left to notice it: `-m` names the platform."""
    bench.write("def test_plain():\n    pass\n")
    bench.baseline(test_gone=bench.SAME)
    result = bench.run("--accel-vanished=fail", "-m", "cpu", "--junitxml=out.xml")
    result.assert_outcomes(passed=1, failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    (failure,) = bench.testcase("test_gone").findall("failure")
    assert "is stored in the baseline and was not found" in failure.text


# --- the root directory, at which node ids begin -------------------------------------------------------


def test_file_of_results_that_exists_does_not_move_the_root_directory(bench, monkeypatch):
    bench.benchmarks("test_step")
    project = bench.path("project")
    project.mkdir()
    bench.path("test_suite.py").rename(project / "test_suite.py")
    bench.path("tox.ini").unlink()
    monkeypatch.chdir(project)
    for _ in range(2):
        result = bench.run("test_suite.py", "--accel-json", "../out/results.json")
        assert f"rootdir: {project}" in result.outlines
    assert [each["benchmark"] for each in bench.json("out/results.json")["results"]] == [
        "test_suite.py::test_step"
    ]


def test_baseline_of_another_root_directory_is_named_with_the_remedy(bench):
    bench.benchmarks("test_step", "test_new")
    bench.baseline(test_step=bench.SAME)
    elsewhere = ("--rootdir=..", "--accel-history=off", "-pno:cacheprovider", "--accel-missing-baseline=fail")
    result = bench.run(*elsewhere)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            f"note: 1 benchmark without a baseline: {bench.baseline_path} holds one, *: --rootdir={bench.folder}"
        ]
    )
