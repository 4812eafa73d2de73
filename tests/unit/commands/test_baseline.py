"""`pytest-accel baseline` from its command line."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_accel import cli
from pytest_accel.stats.environment import Environment
from pytest_accel.stats.verdict import Outcome
from pytest_accel.storage.baselines import BaselineStore
from tests.support.stored import KEY, OTHER, UPGRADED, baseline, result, results_file, runs

SLOWED = {"slowdown_felt": 0.1}


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run one in a project with baselines of an H200."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ACCEL_BASELINES", raising=False)
    baseline(tmp_path / "baselines", tolerance=0.03)
    baseline(tmp_path / "baselines", OTHER, suite="gpt", stored=runs(2))

    def run(*arguments, status=0):
        found = cli.main(["baseline", *arguments])
        out, err = capsys.readouterr()
        assert found == status, err or out
        return err if status == 2 else out

    return run


def stored(suite="cnn"):
    return BaselineStore(Path("baselines")).read("h200", suite).benchmarks


class TestShow:
    def test_runs_noise_resolution_and_ledger(self, command):
        text = command("show")
        rows = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith("test_")}
        assert rows["test_cnn[resnet50]"][1:3] == ["5", "1"]
        assert "3.0 %" in " ".join(rows["test_cnn[resnet50]"])
        assert "provisional: 2 runs of 5, 1 session of 3" in " ".join(rows["test_gpt[117m]"])
        assert "environment" in text
        assert "device NVIDIA H200" in text
        assert "ledger 2026-01-31T09:30:00+00:00 record 5 runs, session s1: first (1 benchmark)" in text

    def test_a_tolerance_that_the_noise_cannot_hold_is_said(self, command):
        baseline(Path("baselines"), "t.py::noisy", stored=runs(noise=0.05))
        row = next(line for line in command("show").splitlines() if line.startswith("noisy"))
        assert "too noisy for its tolerance" in row

    def test_enough_runs_of_enough_sessions_are_ok(self, command):
        for session in ("s2", "s3"):
            baseline(Path("baselines"), stored=runs(1, session=session))
        row = next(
            line for line in command("show", "h200", "-k", "cnn").splitlines() if line.startswith("test_cnn")
        )
        assert row.split()[1:3] == ["7", "3"]
        assert "provisional" not in row

    def test_json(self, command):
        (found,) = json.loads(command("show", "h200", "-k", "cnn", "--json"))
        assert found["benchmark"] == KEY
        assert found["throughput_low"] < found["throughput"] < found["throughput_high"]
        assert found["tolerance"] == 0.03
        assert found["resolution"] > found["noise"] > 0
        assert found["ledger"][0]["action"] == "record"

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["a100"], "has no baselines of it"),
            (["-k", "nope"], "fits -k 'nope'"),
            (["--baselines", "x"], "x"),
        ],
    )
    def test_nothing_there(self, command, arguments, said):
        assert said in command("show", *arguments, status=2)


class TestDiff:
    def test_what_moved_and_why(self, command):
        shutil.copytree("baselines", "old")
        slow = runs(step_s=0.0125, session="s2", environment=UPGRADED)
        baseline(
            Path("baselines"),
            stored=slow,
            environments=[UPGRADED],
            action="update",
            reason="new driver",
            replace=True,
        )
        text = command("diff", "./old", "h200")
        assert f"re-recorded  h200  {KEY}: 25," in text
        assert "(20" in text.splitlines()[0] or "(19" in text.splitlines()[0]
        assert "% slower), +5 runs, -5 runs" in text
        assert "environment: driver 570.124.06 -> 580.159.04, torch 2.10.0 -> 2.11.0" in text
        assert "update 5 runs, session s2: new driver" in text
        command("diff", "./old", "h200", "--exit-code", status=1)

    def test_nothing_moved(self, command):
        shutil.copytree("baselines", "old")
        assert command("diff", "./old", "./baselines", "--exit-code") == "Nothing differs.\n"

    @pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
    def test_a_revision_against_now(self, command):
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
            subprocess.run([*git, *words], check=True, timeout=30)
        baseline(Path("baselines"), "t.py::new", suite="other")
        assert "added  h200  t.py::new" in command("diff", "git:HEAD", "h200")

    def test_results_are_no_baselines(self, command):
        results_file(Path("r.json"), result())
        assert "pytest-accel compare" in command("diff", "./r.json", "h200", status=2)


class TestAccept:
    def test_fresh_runs_with_a_reason(self, command):
        results_file(Path("r.json"), result())
        assert "added 5 runs, it has 10" in command("accept", "r.json", "--reason", "more nights")
        assert stored()[KEY].ledger[-1].reason == "more nights"
        assert command("verify").endswith("no fault.\n")

    def test_refusals_are_2_and_change_nothing(self, command):
        before = Path("baselines/h200/cnn.json").read_bytes()
        results_file(Path("r.json"), result(status=Outcome.REGRESSED))
        assert "--reason" in command("accept", "r.json", status=2)
        assert "--accel-update" in command("accept", "r.json", "--reason", "x", status=2)
        assert "no benchmark that -k 'zzz' chooses" in command(
            "accept", "r.json", "--reason", "x", "-k", "zzz", status=2
        )
        assert Path("baselines/h200/cnn.json").read_bytes() == before

    def test_k_chooses(self, command):
        bad = result(OTHER, suite="gpt", status=Outcome.REGRESSED)
        results_file(Path("r.json"), result(), bad)
        command("accept", "r.json", "--reason", "x", status=2)
        command("accept", "r.json", "--reason", "x", "-k", "cnn")
        assert len(stored()[KEY].runs) == 10
        assert len(stored("gpt")[OTHER].runs) == 2

    def test_another_machine_than_the_folders(self, command):
        cpu = Environment(identity={"cpu_model": "Intel Xeon (6-207)"}, context={})
        measured = runs(session="c", environment=cpu)
        results_file(Path("r.json"), result("t.py::c", measured=measured), environments=[cpu])
        assert "another machine (Intel Xeon (6-207))" in command(
            "accept", "r.json", "--reason", "x", status=2
        )
        baseline(Path("baselines"), "t.py::c", stored=measured, environments=[cpu])
        assert "t.py::c: its runs are of another machine" in command("verify", status=1)

    def test_replace(self, command):
        results_file(Path("r.json"), result(batch_size=512))
        assert "--replace" in command("accept", "r.json", "--reason", "x", status=2)
        command("accept", "r.json", "--reason", "x", "--replace")
        assert stored()[KEY].configuration == {"batch_size": 512}


class TestAnchor:
    def test_takes_the_stored_runs(self, command):
        assert "anchor set to its" in command(
            "anchor", "--reason", "release 1.4", "-k", KEY.partition("::")[2]
        )
        assert stored()[KEY].anchor == stored()[KEY].runs
        assert "anchor of 5 runs" in command("show")
        assert (
            command("anchor", "--reason", "x", "-k", KEY.partition("::")[2])
            == "There is nothing to change.\n"
        )

    def test_needs_a_reason_and_a_benchmark(self, command):
        assert "--reason" in command("anchor", status=2)
        assert "fits -k 'nobody'" in command("anchor", "--reason", "x", "-k", "nobody", status=2)


class TestTolerance:
    def test_moves_with_a_reason(self, command):
        name = KEY.partition("::")[2]
        assert "8.0 % is stored, 3.0 % before" in command("tolerance", "8%", "--reason", "x", "-k", name)
        assert stored()[KEY].tolerance == 0.08
        assert "tolerance 5 runs, session s1: x" in command("show")
        assert "5.0 % is stored" in command("tolerance", "default", "h200", "--reason", "x", "-k", name)
        assert stored()[KEY].tolerance is None

    def test_auto_of_noisy_ones(self, command):
        text = command("tolerance", "auto", "--noisy", "--reason", "x")
        assert "left at 3.0 %: provisional (1 session of 3)" in text

    @pytest.mark.parametrize("told", ["0", "loose", "150%"])
    def test_what_is_no_tolerance(self, command, told):
        before = Path("baselines/h200/cnn.json").read_bytes()
        text = command("tolerance", told, "--reason", "x", status=2)
        assert repr(told) in text
        assert "Or auto, or default." in text
        assert Path("baselines/h200/cnn.json").read_bytes() == before

    def test_needs_a_reason_and_a_benchmark(self, command):
        assert "--reason" in command("tolerance", "8%", status=2)
        assert "fits -k 'nobody'" in command("tolerance", "8%", "--reason", "x", "-k", "nobody", status=2)


class TestPrune:
    def test_nothing_happens_without_yes(self, command):
        before = Path("baselines/h200/cnn.json").read_bytes()
        text = command("prune", "--keep", "3")
        assert "its oldest 2 runs" in text
        assert "Do it with --yes" in text
        assert Path("baselines/h200/cnn.json").read_bytes() == before
        command("prune", "--keep", "3", "--yes")
        assert len(stored()[KEY].runs) == 3
        assert stored()[KEY].ledger[-1].action == "prune"
        assert "nothing to prune" in command("prune", "--keep", "3", "--yes")

    def test_vanished_ones_by_what_pytest_collects(self, command):
        Path("list.txt").write_text(
            "bench_suites/test_cnn.py::test_cnn[resnet18]\n\n1 test collected in 0.1s\n"
        )
        Path("bench_suites").mkdir()
        for name in ("gpt", "cnn"):
            Path(f"bench_suites/test_{name}.py").touch()
        text = command("prune", "--vanished", "--collected", "list.txt", "--yes", "--reason", "renamed")
        assert f"h200/cnn.json  {KEY}: the benchmark, 5 runs" in text
        assert stored() == {}
        assert OTHER in stored("gpt"), "its file was not listed, and is there"
        removed = BaselineStore(Path("baselines")).read("h200", "cnn").removed
        assert [(each.benchmark, each.reason) for each in removed] == [(KEY, "renamed")]

    def test_from_a_folder_below_the_root(self, command, monkeypatch):
        for path in ("bench_suites/test_gpt.py", "bench_suites/deep/test_x.py"):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).touch()
        Path("bench_suites/test_cnn.py").write_text("def test_cnn(model): 'resnet50'")
        Path("pytest.ini").write_text("[pytest]\n")
        Path("list.txt").write_text("bench_suites/deep/test_x.py::test_x\n")
        monkeypatch.chdir("bench_suites")
        told = ("--vanished", "--collected", "../list.txt", "--baselines", "../baselines")
        assert command("prune", *told) == "There is nothing to prune.\n"

    def test_one_by_name(self, command):
        command("prune", "--benchmark", KEY, "--yes")
        assert stored() == {}
        assert "Did you mean" in command("prune", "--benchmark", OTHER[:-3], status=2)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--vanished"], "go together"),
            (["--collected", "x"], "go together"),
            (["--vanished", "--collected", "x"], "cannot be read"),
            (["--yes", "--dry-run"], "choose one"),
            (["a100", "--keep", "1"], "has no baselines of it"),
        ],
    )
    def test_wrong_usage(self, command, arguments, said):
        assert said in command("prune", *arguments, status=2)


class TestVerify:
    def test_good(self, command):
        text = command("verify")
        assert "provisional  h200/gpt.json" in text
        assert text.endswith(
            "Looked at 2 files (2 benchmarks, 7 runs) and 0 published (0 figures): no fault.\n"
        )

    def test_bad(self, command):
        for suite in ("cnn", "gpt"):
            Path(f"baselines/h200/{suite}.json").write_text("{")
        text = command("verify", status=1)
        assert text.count("FAULT  ") == 2
        assert "2 faults" in text

    def test_names_are_shown_and_not_obeyed(self, command):
        baseline(Path("baselines"), "t.py::x\n::error::y\x1b[31m", suite="bad", stored=runs(metrics=SLOWED))
        for text in (command("verify", status=1), command("show")):
            assert not any(line.lstrip().startswith("::") for line in text.splitlines())
            assert "\x1b" not in text

    def test_our_own(self, command):
        assert command("verify", str(Path(__file__).parents[3] / "baselines")).endswith("no fault.\n")

    def test_a_name_that_no_platform_has(self, command):
        shutil.copytree("baselines/h200", "baselines/h2000")
        assert "no platform of the catalogue has that name" in command("verify", status=1)

    def test_nothing_to_verify_is_not_green(self, command):
        Path("empty").mkdir()
        assert "nothing in it to verify" in command("verify", "empty", status=2)
        assert "is no folder" in command("verify", "nope", status=2)
