"""Recording: refused runs, and the tolerance that is stored with them."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_accel.report.verdicts import REPLACE_RUNS
from pytest_accel.session.recording import record as record_runs
from pytest_accel.session.recording import refuse_disturbed
from pytest_accel.session.results import lines_of
from pytest_accel.stats.quantities import percent
from pytest_accel.storage.baselines import BaselineStore
from pytest_accel.storage.results import parse
from tests.support.measured import make_case
from tests.support.stored import KEY, runs

THROTTLED = SimpleNamespace(invalid="throttled")


def case(*, fair=0, disturbed=0, problem=""):
    return SimpleNamespace(
        label="test_step (h200)",
        problem=problem,
        measurements=[object()] * fair,
        disturbed=[THROTTLED] * disturbed,
        may_be_replaced=disturbed <= 2,
    )


@pytest.mark.parametrize(
    ("fair", "disturbed", "problem"),
    [
        (1, 0, ""),
        (5, 2, ""),
        (0, 0, ""),
        (4, 3, "test_step (h200): 3 runs were disturbed, the last one: throttled"),
        (0, 1, "test_step (h200): 1 run was disturbed, the last one: throttled"),
    ],
)
def test_disturbed_runs_refuse_a_recording_unless_they_were_replaced(fair, disturbed, problem):
    found = case(fair=fair, disturbed=disturbed)
    refuse_disturbed(found)
    assert found.problem.partition(". ")[0] == problem


def test_known_problem_of_a_case_is_kept():
    found = case(disturbed=3, problem="it failed")
    refuse_disturbed(found)
    assert found.problem == "it failed"


def test_unstorable_value_fails_the_test_and_keeps_the_runs(tmp_path):
    found = make_case(tmp_path, runs=runs(1), record=1)
    found.measurements[0] = replace(found.measurements[0], work_per_step=0.0)
    record_runs(found, BaselineStore(tmp_path), "s1")
    problem, kept = found.problem.splitlines()
    assert problem.endswith("cannot be stored: work_per_step: 0.0 is not in 0 < work <= 1e+18")
    path = Path(kept.removesuffix(".").rpartition(" ")[2])
    assert json.loads(path.read_text())["results"][0]["benchmark"] == KEY
    path.unlink()
    assert not (tmp_path / "h200").exists()


@pytest.mark.parametrize("has_room", [True, False])
def test_runs_reach_the_temporary_folder_or_the_screen(tmp_path, monkeypatch, has_room):
    folder = tmp_path / "temporary"
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    folder.mkdir() if has_room else folder.touch()
    found = make_case(tmp_path, runs=runs(1), record=2, update=True)
    record_runs(found, BaselineStore(tmp_path), "s1")
    files = list(tmp_path.rglob("pytest-accel-unsaved-*"))
    if has_room:
        (file,) = files
        assert f"what was measured (1 run) is kept in {file}. To store it: pytest-accel" in found.problem
        text = file.read_text()
    else:
        assert files == []
        _, text = found.problem.split("follows, since no temporary folder has room for it:\n")
    assert [each.benchmark for each in parse(text, "").results] == [KEY]


def test_recording_that_is_too_noisy_is_replaced_and_not_added_to(tmp_path):
    lines = {}
    for noise in (0.012, 0.2):
        found = make_case(tmp_path / str(noise), runs=runs(3, noise=noise), record=3)
        record_runs(found, BaselineStore(tmp_path / str(noise)), "s1")
        assert found.quality.too_noisy
        lines[noise] = "\n".join(line.text for line in lines_of(found))
    assert "record again on other days" in lines[0.012]  # which outweighs that noise
    assert REPLACE_RUNS not in lines[0.012]
    assert "record again" not in lines[0.2]
    assert lines[0.2].endswith(f"quieten the machine (pytest-accel doctor), and {REPLACE_RUNS}")


class TestAuto:
    @pytest.fixture
    def record(self, tmp_path):
        """Record so many runs where so many were asked for."""

        def record(measured, asked):
            found = make_case(tmp_path, runs=runs(measured), record=asked, tolerance="auto")
            record_runs(found, BaselineStore(tmp_path), "s1")
            stored = BaselineStore(tmp_path).read("h200", "cnn")
            return found, stored.benchmarks[KEY]

        return record

    def test_interrupted_recording_freezes_no_tolerance_and_its_completion_does(self, record):
        found, stored = record(1, asked=5)
        assert (len(stored.runs), stored.tolerance) == (1, None)
        assert "not frozen, the recording was not finished; its runs resolve 6.5 % so far" in found.frozen
        found, stored = record(4, asked=4)
        assert len(stored.runs) == 5
        assert 0.03 <= stored.tolerance < 0.06
        assert found.frozen.endswith("frozen in its baseline")

    def test_frozen_tolerance_stays_when_a_later_recording_is_interrupted(self, record):
        _, before = record(3, asked=3)
        found, stored = record(1, asked=5)
        assert stored.tolerance == before.tolerance
        assert found.frozen.startswith(f"tolerance auto: {percent(before.tolerance)} stays")
