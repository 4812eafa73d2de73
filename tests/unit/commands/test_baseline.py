"""`pytest-accel baseline` from its command line."""

import json
import shutil
from pathlib import Path

import pytest

from pytest_accel import cli
from pytest_accel.stats.gate import Outcome
from pytest_accel.storage.baselines import BaselineStore
from tests.support.stored import KEY, OTHER, baseline, result, results_file, runs

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
        assert rows["test_cnn[resnet50]"][1].startswith("provisional")
        assert "3.0 %" in " ".join(rows["test_cnn[resnet50]"])
        assert "provisional: fewer than 5 runs or 3 sessions" in text
        assert "environment" in text
        assert "device NVIDIA H200" in text
        assert "ledger 2026-01-31T09:30:00+00:00 record 5 runs, session s1: first (test_" in text

    def test_a_tolerance_that_the_noise_cannot_hold_is_said(self, command):
        baseline(Path("baselines"), "t.py::noisy", stored=runs(noise=0.05))
        row = next(line for line in command("show").splitlines() if line.startswith("noisy"))
        assert row.split()[1:4] == ["provisional,", "too", "noisy"]

    def test_platform_by_its_beginning(self, command):
        for path in Path("baselines/h200").iterdir():
            path.write_text(path.read_text().replace('"platform": "h200"', '"platform": "h200-nvl"'))
        shutil.move("baselines/h200", "baselines/h200-nvl")
        assert "test_cnn[resnet50]" in command("show", "h200")
        assert "tolerance 8.0 %" in command("edit", "h200", "--tolerance", "8%")
        assert "has no baselines of the platform 'h20'" in command("show", "h20", status=2)

    def test_ledger_is_in_the_order_of_time_and_of_what_was_chosen(self, command):
        baseline(Path("baselines"), "t.py::test_mlp", suite="cnn")
        command("edit", "--remove", "test_mlp", "--reason", "gone")  # now
        baseline(Path("baselines"), action="update", reason="later", replace=True)
        ledger = [
            line.split()[2]
            for line in command("show", "h200", "-k", "not gpt").splitlines()
            if "ledger" in line
        ]
        assert ledger == ["record", "update", "remove"]
        assert "test_mlp" not in command("show", "-k", "resnet50")

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
            (["a100"], "has no baselines of the platform 'a100'"),
            (["-k", "nope"], "matches -k 'nope'"),
            (["--baselines", "x"], "x: holds no baselines"),
        ],
    )
    def test_nothing_there(self, command, arguments, said):
        assert said in command("show", *arguments, status=2)

    def test_all_were_removed(self, command):
        command("edit", "--remove", KEY, "--remove", OTHER, "--reason", "gone")
        said = "There are no baselines in baselines. Record them with `pytest --accel-record`"
        assert said in command("show", status=2)


class TestAccept:
    def test_fresh_runs_with_a_reason(self, command):
        results_file(Path("r.json"), result())
        text = command("accept", "r.json")
        assert "would add 5 runs" in text
        assert "Nothing was written. Write it with --reason" in text
        assert len(stored()[KEY].runs) == 5
        assert "added 5 runs, it has 10" in command("accept", "r.json", "--reason", "more nights")
        assert stored()[KEY].ledger[-1].reason == "more nights"
        assert command("show", "--check") == "Checked 2 files: no fault.\n"

    def test_refused_benchmark_is_1_and_leaves_the_others(self, command):
        before = Path("baselines/h200/gpt.json").read_bytes()
        results_file(Path("r.json"), result(), result(OTHER, suite="gpt", status=Outcome.REGRESSED))
        assert f"REFUSED  {OTHER}: these runs were found regressed" in command("accept", "r.json", status=1)
        assert len(stored()[KEY].runs) == 5
        assert "--accel-update" in command("accept", "r.json", "--reason", "x", status=1)
        assert len(stored()[KEY].runs) == 10
        assert Path("baselines/h200/gpt.json").read_bytes() == before
        assert "skipped, its runs are stored" in command("accept", "r.json", "--reason", "x", "-k", "cnn")
        assert "no benchmark that -k 'zzz' chooses" in command("accept", "r.json", "-k", "zzz", status=2)

    def test_replace(self, command):
        results_file(Path("r.json"), result(batch_size=512))
        assert "--replace" in command("accept", "r.json", "--reason", "x", status=1)
        command("accept", "r.json", "--reason", "x", "--replace")
        assert stored()[KEY].configuration == {"batch_size": 512}


class TestEdit:
    def test_edit_is_shown_first_and_written_with_a_reason(self, command):
        arguments = ("edit", "--anchor", "set", "-k", "resnet50")
        assert "Nothing was changed. Write it with --reason" in command(*arguments)
        assert "anchor set to its" in command(*arguments, "--reason", "release 1.4")
        assert stored()[KEY].anchor == stored()[KEY].runs
        assert "anchor runs" in command("show")
        assert command(*arguments, "--reason", "x") == "There is nothing to change.\n"

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--anchor", "clear"], "There is nothing to change."),
            (["h200", "--tolerance", "8%"], "tolerance 8.0 %, 3.0 % before"),
            (["--tolerance", "default"], "tolerance 5.0 %, 3.0 % before"),
            (["--tolerance", "auto", "--noisy"], "left at 3.0 %: provisional (1 session of 3)"),
        ],
    )
    def test_options_choose_the_edit(self, command, arguments, said):
        assert said in command("edit", *arguments, "--reason", "x")

    @pytest.mark.parametrize("text", ["0", "loose", "150%"])
    def test_bad_tolerance_is_refused(self, command, text):
        before = Path("baselines/h200/cnn.json").read_bytes()
        error = command("edit", "--tolerance", text, "--reason", "x", status=2)
        assert repr(text) in error
        assert "Or auto, or default." in error
        assert Path("baselines/h200/cnn.json").read_bytes() == before

    def test_one_benchmark_is_removed_by_its_id(self, command):
        text = command("edit", "--remove", KEY, "--reason", "renamed")
        assert f"h200/cnn.json  {KEY}: benchmark removed, 5 runs" in text
        assert stored() == {}
        assert OTHER in stored("gpt")
        (removed,) = BaselineStore(Path("baselines")).read("h200", "cnn").removed
        assert (removed.benchmark, removed.reason) == (KEY, "renamed")
        assert "Did you mean" in command("edit", "--remove", OTHER[:-3], status=2)
        name = OTHER.partition("::")[2]
        assert f"{OTHER}: benchmark removed" in command("edit", "--remove", name)
        baseline(Path("baselines"), f"bench_suites/test_a.py::{name}", suite="a")
        assert f"Write bench_suites/test_a.py::{name} or {OTHER}." in command(
            "edit", "--remove", name, status=2
        )

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ([], "Choose one of"),
            (["--remove", "x", "--anchor", "set"], "Choose one of"),
        ],
    )
    def test_wrong_usage(self, command, arguments, said):
        assert said in command("edit", *arguments, status=2)


class TestCheck:
    def test_our_own_baselines_have_no_fault(self, command):
        folder = str(Path(__file__).parents[3] / "baselines")
        assert command("show", "--check", "--baselines", folder).endswith("no fault.\n")

    def test_every_bad_file_is_a_fault(self, command):
        Path("baselines/h200/gpt.json").write_text("{")
        shutil.copytree("baselines/h200", "baselines/h2000")
        text = command("show", "--check", status=1)
        assert text.count("    Restore it from git") == 3  # the two copies are not of their folder
        assert "no platform of the catalogue is named h2000" in text
        assert "5 faults" in text

    def test_control_characters_in_names_are_escaped(self, command):
        baseline(Path("baselines"), "t.py::x\n::error::y\x1b[31m", suite="bad", stored=runs(metrics=SLOWED))
        for text in (command("show", "--check", status=1), command("show")):
            assert "\x1b" not in text

    def test_empty_folder_is_not_green(self, command):
        Path("empty").mkdir()
        assert "nothing to check" in command("show", "--check", "--baselines", "empty", status=2)
