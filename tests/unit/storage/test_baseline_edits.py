"""Edits and checks of baselines: accepted runs, anchors, tolerances, pruning, and faults of a folder."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_accel.stats.baseline_quality import NO_GATE, auto_tolerance, baseline_quality
from pytest_accel.stats.gate import Outcome, Verdict
from pytest_accel.stats.quantities import percent
from pytest_accel.stats.results import Ending
from pytest_accel.storage.baseline_edits import (
    accept,
    check_baselines,
    edit_baselines,
    remove,
    set_anchor,
    set_tolerance,
)
from pytest_accel.storage.baselines import BaselineError, BaselineStore, render
from tests.support.stored import CAPPED, H200, KEY, OTHER, UPGRADED, baseline, result, results_of, runs

AT = "2026-02-01T10:00:00+00:00"
PUBLISHED = Path(__file__).parents[3] / "baselines" / "published"


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path / "baselines"


def stored(root, key=KEY, suite="cnn"):
    return BaselineStore(root).read("h200", suite).benchmarks[key]


def file_of(root):
    return BaselineStore(root).read("h200", "cnn")


def edit(root, change, reason="release 1.4"):
    """Edit the only file; return the lines without its name."""
    lines = edit_baselines(BaselineStore(root), [file_of(root)], change, reason=reason, at=AT)
    return [line.removeprefix("h200/cnn.json  ") for line in lines]


class TestEdits:
    @pytest.mark.parametrize("change", [set_anchor(), set_tolerance(0.08), remove({KEY})])
    def test_edit_without_a_reason_writes_nothing(self, root, change):
        baseline(root)
        before = (root / "h200" / "cnn.json").read_bytes()
        assert len(edit(root, change, reason=" ")) == 1
        assert (root / "h200" / "cnn.json").read_bytes() == before

    def test_edit_is_applied_to_the_file_as_it_is_under_the_lock(self, root):
        baseline(root)
        earlier = file_of(root)
        baseline(root, stored=runs(2, session="meanwhile"))
        edit_baselines(BaselineStore(root), [earlier], set_tolerance(0.08), reason="x", at=AT)
        assert (len(stored(root).runs), stored(root).tolerance) == (7, 0.08)

    def test_removed_benchmark_leaves_a_line_and_no_environment(self, root):
        baseline(root)
        baseline(root, OTHER, stored=runs(environment=UPGRADED), environments=[UPGRADED])
        edit(root, remove({OTHER}), "renamed")
        file = file_of(root)
        assert list(file.benchmarks) == [KEY]
        assert [(each.benchmark, each.runs, each.reason) for each in file.removed] == [(OTHER, 5, "renamed")]
        assert set(file.environments) == {H200.key}


class TestAnchor:
    def test_anchor_is_todays_runs_with_a_line_in_the_ledger(self, root):
        baseline(root)
        assert edit(root, set_anchor()) == [f"{KEY}: anchor set to its 5 stored runs"]
        entry = stored(root)
        assert entry.anchor == entry.runs
        line = entry.ledger[-1]
        assert (line.action, line.reason, line.runs, line.at) == ("anchor", "release 1.4", 5, AT)
        assert edit(root, set_anchor()) == []
        assert len(stored(root).ledger) == 2

    def test_anchor_stays_when_the_baseline_is_updated(self, root):
        baseline(root)
        edit(root, set_anchor())
        before = stored(root).anchor
        fresh = runs(3, session="later", environment=UPGRADED, step_s=0.0105)
        baseline(root, stored=fresh, environments=(UPGRADED,), action="update", replace=True)
        assert stored(root).anchor == before
        assert H200.key in file_of(root).environments
        assert edit(root, set_anchor())[0] == f"{KEY}: anchor moved to its 3 stored runs"
        assert H200.key not in file_of(root).environments

    @pytest.mark.parametrize(("machine", "batch_size"), [(H200, 64), (CAPPED, 256)])
    def test_anchor_of_another_configuration_or_machine_goes(self, root, machine, batch_size):
        baseline(root)
        edit(root, set_anchor())
        fresh = {"stored": runs(session="later", environment=machine), "environments": (machine,)}
        baseline(root, **fresh, batch_size=batch_size, action="update", replace=True)
        assert stored(root).anchor == ()

    def test_anchor_is_cleared_with_a_reason(self, root):
        baseline(root)
        edit(root, set_anchor())
        assert edit(root, set_anchor(clear=True), "not wanted") == [f"{KEY}: anchor of 5 runs removed"]
        assert stored(root).anchor == ()
        assert stored(root).ledger[-1].reason == "not wanted"


def three_sessions(*, noise):
    return tuple(run for name in ("s1", "s2", "s3") for run in runs(2, session=name, noise=noise))


class TestTolerance:
    def test_auto_is_what_the_stored_runs_resolve(self, root):
        noisy = three_sessions(noise=0.04)
        baseline(root, stored=noisy)
        chosen = auto_tolerance(noisy)
        assert 0.05 < chosen < NO_GATE
        (line,) = edit(root, set_tolerance("auto"), "a shared host")
        assert line.startswith(f"{KEY}: tolerance {percent(chosen)}, 5.0 % before; its runs resolve ")
        entry = stored(root)
        assert (entry.tolerance, len(entry.runs)) == (chosen, 6)
        note = entry.ledger[-1]
        assert (note.action, note.reason, note.runs, note.at) == ("tolerance", "a shared host", 6, AT)
        assert edit(root, set_tolerance("auto")) == []
        assert not any(faults for _, faults in check_baselines(root))

    def test_only_noisy_benchmarks_are_changed_if_asked(self, root):
        baseline(root, stored=three_sessions(noise=0.001))
        baseline(root, f"{KEY}-noisy", stored=three_sessions(noise=0.04))
        (line,) = edit(root, set_tolerance("auto", noisy_only=True))
        assert line.startswith(f"{KEY}-noisy: ")
        assert stored(root).tolerance is None
        assert stored(root, f"{KEY}-noisy").tolerance > 0.05
        assert edit(root, set_tolerance("auto", noisy_only=True)) == []

    def test_auto_needs_enough_runs(self, root):
        baseline(root)  # five runs of one session
        before = (root / "h200" / "cnn.json").read_bytes()
        (line,) = edit(root, set_tolerance("auto"))
        assert line == f"{KEY}: left at 5.0 %: provisional (1 session of 3): record the rest first"
        assert (root / "h200" / "cnn.json").read_bytes() == before

    def test_number_and_default(self, root):
        baseline(root)
        assert edit(root, set_tolerance(0.05)) == []
        assert " 8.0 %, 5.0 % before" in edit(root, set_tolerance(0.08))[0]
        assert stored(root).tolerance == 0.08
        assert " 5.0 %, 8.0 % before" in edit(root, set_tolerance(None))[0]
        assert stored(root).tolerance is None
        edit(root, set_tolerance(0.123456789))
        assert edit(root, set_tolerance(0.123456789)) == [], "the file holds seven digits"

    def test_auto_refuses_noise_that_allows_no_gate_and_a_number_is_taken(self, root):
        wild = three_sessions(noise=0.3)
        baseline(root, stored=wild)
        (line,) = edit(root, set_tolerance("auto"))
        assert "left at 5.0 %" in line
        assert "too little for a gate" in line
        assert stored(root).tolerance is None
        assert edit(root, set_tolerance(0.6))[0].endswith("it catches a breakdown and nothing else")
        assert baseline_quality(wild, stored(root).tolerance).no_gate == "no gate: 60.0 % is tolerated"


REGRESSED = tuple(Verdict(outcome=each, tolerance=0.05) for each in (Outcome.OK, Outcome.REGRESSED))
REFUSED = {
    "metric": (result(status=Outcome.OK, verdicts=REGRESSED), "found regressed"),
    "configuration": (result(batch_size=512), r"the benchmark changed .*batch_size 256 -> 512.*--replace"),
    "machine": (
        result(measured=runs(session="f", environment=CAPPED)),
        r"another machine .*power limit.*--replace",
    ),
    "stored": (result(measured=(*runs(2), *runs(1, session="f"))), "2 of its 3 runs would be stored twice"),
    "twice": (
        result(measured=(*runs(2, session="f"), *runs(2, session="f"))),
        "2 of its 4 runs would be stored twice",
    ),
    "slowed": (
        result(measured=runs(session="f", metrics={"slowdown_felt": 0.1})),
        r"slowed on purpose \(10.0 %\)",
    ),
    "too many": (result(measured=runs(6, session="f")), "has 5 runs and would get 6 more.*--replace"),
    "more than a baseline has": (result(measured=runs(11, session="f")), "11 runs; a baseline has 1 to 10"),
    "failed": (result(status=Ending.FAILED), "it failed"),
    "invalid": (result(status=Outcome.INVALID), "it was invalid"),
    "does not fit": (result(status=Outcome.DOES_NOT_FIT), "it did not fit"),
    "skipped": (result(status=Ending.SKIPPED), "it was skipped"),
    "not measured": (result(status=Ending.NOT_MEASURED), "nothing says how it ended"),
    "mixed": (
        result(measured=(*runs(1, session="f"), *runs(1, session="f", seed=1, environment=CAPPED))),
        "of two machines",
    ),
}


class TestAccept:
    def take(self, root, *results, reason="new container", **more):
        found = accept(BaselineStore(root), results_of(*results), reason=reason, at=AT, **more)
        assert found.refused == []
        return [line.removeprefix("h200/") for line in found.done]

    def refused(self, root, *results, **more):
        """The only refusal; the file stays as it is."""
        before = [path.read_bytes() for path in root.rglob("*.json")]
        found = accept(BaselineStore(root), results_of(*results), reason="x", at=AT, **more)
        assert [path.read_bytes() for path in root.rglob("*.json")] == before
        assert found.done == []
        (line,) = found.refused
        return line

    def test_fresh_runs_are_added_with_a_line_in_the_ledger(self, root):
        baseline(root, tolerance=0.03)
        (said,) = self.take(root, result(status=Outcome.OK))
        entry = stored(root)
        assert said == f"cnn.json  {KEY}: added 5 runs, it has 10"
        assert [run.session for run in entry.runs] == ["s1"] * 5 + ["fresh"] * 5
        line = entry.ledger[-1]
        assert (line.action, line.reason, line.runs, line.at) == ("accept", "new container", 5, AT)
        assert entry.tolerance == 0.03

    def test_replace_keeps_the_ledger_and_the_tolerance(self, root):
        baseline(root, tolerance=0.03)
        changed = result(batch_size=512, status=Outcome.STALE_BASELINE, failed=True)
        self.take(root, changed, replace=True)
        entry = stored(root)
        assert entry.configuration == {"batch_size": 512}
        assert [line.action for line in entry.ledger] == ["record", "accept"]
        assert entry.tolerance == 0.03

    def test_replace_takes_a_part_of_the_stored_runs_and_skips_all_of_them(self, root):
        baseline(root)
        assert "skipped" in self.take(root, result(measured=runs()), replace=True)[0]
        assert "replaced its runs by 3 runs" in self.take(root, result(measured=runs()[:3]), replace=True)[0]
        assert len(stored(root).runs) == 3

    @pytest.mark.parametrize("reason", ["", "  "])
    def test_without_a_reason_nothing_is_written(self, root, reason):
        assert self.take(root, result(), reason=reason) == [f"cnn.json  {KEY}: would add 5 runs"]
        assert not root.exists()

    @pytest.mark.parametrize("outcome", [Outcome.REGRESSED, Outcome.IMPROVED])
    @pytest.mark.parametrize("replace", [False, True])
    def test_runs_that_a_verdict_chose_are_refused(self, root, outcome, replace):
        baseline(root)
        line = self.refused(root, result(status=outcome), replace=replace)
        assert f"found {outcome.value}" in line
        assert f"pytest '{KEY}' -m h200 --accel-update --accel-reason" in line

    @pytest.mark.parametrize(("bad", "said"), REFUSED.values(), ids=REFUSED)
    def test_unfit_runs_are_refused(self, root, bad, said):
        baseline(root)
        assert re.search(said, self.refused(root, bad))

    def test_refusal_and_failed_write_leave_the_others_and_can_be_repeated(self, root, monkeypatch):
        results = results_of(
            result(),
            result(OTHER, suite="gpt", measured=runs(session="g")),
            result("t.py::x", status=Ending.FAILED, measured=runs(session="h")),
        )
        real = BaselineStore.record

        def full(self, platform, suite, *more, **options):
            if suite == "gpt":
                raise BaselineError(
                    "gpt.json", "", "cannot be written: No space left on device", "Make room."
                )
            return real(self, platform, suite, *more, **options)

        monkeypatch.setattr(BaselineStore, "record", full)
        found = accept(BaselineStore(root), results, reason="x", at=AT)
        assert found.done == [f"h200/cnn.json  {KEY}: added 5 runs, it has 5"]
        assert found.refused == [
            f"{OTHER}: cannot be written: No space left on device. Make room.",
            "t.py::x: it failed. Correct it, and measure again.",
        ]
        monkeypatch.undo()
        again = accept(BaselineStore(root), results, reason="x", at=AT)
        assert [line.partition("]: ")[2] for line in again.done] == [
            "skipped, its runs are stored already",
            "added 5 runs, it has 5",
        ]
        assert len(stored(root).runs) == 5

    def test_control_characters_in_names_are_escaped(self, root):
        bad = "t.py::x\n::error::y\x1b[31m"
        (line,) = self.take(root, result(bad))
        assert r"t.py::x\n::error::y\x1b[31m" in line
        line = self.refused(root, result(bad, batch_size=512, measured=runs(session="g")))
        assert line.isprintable()


class TestCheck:
    def test_good_folder_has_no_fault(self, root):
        baseline(root)
        baseline(root, stored=runs(2, session="s2"))
        shutil.copytree(PUBLISHED, root / "published")
        found = dict(check_baselines(root))
        assert not any(found.values())
        assert len(found) == 1 + len(list(PUBLISHED.glob("*.json")))

    def test_every_bad_or_misplaced_file_has_its_fault(self, root):
        baseline(root)
        baseline(root, suite="gpt")
        good, path = root / "h200" / "cnn.json", root / "h200" / "edited.json"
        path.write_text(good.read_text().replace("256", "255", 1))
        (root / "h200" / "torn.json").write_text("{")
        (root / "a100").mkdir()
        shutil.copy(good, root / "a100")
        shutil.copy(good, root / "h200" / "gpt.json")
        shutil.copy(good, root)
        (root / "published").mkdir()
        (root / "published" / "study.json").write_text("{}")
        found = {
            path.relative_to(root).as_posix(): faults[0] for path, faults in check_baselines(root) if faults
        }
        problems = {name: fault.problem for name, fault in found.items()}
        assert "'h200' in the file of 'a100'" in problems.pop("a100/cnn.json")
        assert "'cnn' in the file of 'gpt'" in problems.pop("h200/gpt.json")
        assert "is not in the folder of a platform" in problems.pop("cnn.json")
        assert "has the hash" in problems.pop("h200/edited.json")
        assert "not JSON" in problems.pop("h200/torn.json")
        assert list(problems) == ["published/study.json"]
        assert all(fault.remedy for fault in found.values())

    def test_faults_that_no_schema_sees(self, root):
        baseline(root, stored=(*runs(2), *runs(2)))
        baseline(root, OTHER, stored=runs(metrics={"slowdown_felt": 0.1}))
        file = file_of(root)
        two = (*runs(1, session="m"), *runs(1, session="m", seed=1, environment=CAPPED))
        mixed = replace(file.benchmarks[KEY], runs=two, ledger=())
        known = {**file.environments, CAPPED.key: CAPPED}
        broken = replace(file, benchmarks={**file.benchmarks, "y.py::mixed": mixed}, environments=known)
        (root / "h200" / "cnn.json").write_text(render(broken))
        found = {
            (fault.place, fault.problem.partition(" (")[0])
            for _, faults in check_baselines(root)
            for fault in faults
        }
        assert found == {
            (KEY, "2 runs stored twice, which makes the noise look smaller than it is"),
            (OTHER, "it holds runs that were slowed on purpose"),
            ("y.py::mixed", "its runs are of two machines"),
        }
