"""`pytest-accel compare` from its command line: what it prints, and with what it leaves."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_accel import cli
from pytest_accel.stats.results import Ending
from tests.support.stored import CAPPED, OTHER, UPGRADED, baseline, result, results_file, runs


@pytest.fixture
def compare(tmp_path, monkeypatch, capsys):
    """Run it in a project with a baseline of an H200."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ACCEL_BASELINES", raising=False)
    baseline(tmp_path / "baselines")

    def run(*arguments, status=0):
        try:
            found = cli.main(["compare", *arguments])
        except SystemExit as refused:  # by argparse
            found = refused.code
        out, err = capsys.readouterr()
        assert found == status, err or out
        return err if status == 2 else out + err

    return run


def slower(**more):
    return result(measured=runs(step_s=0.0125, session="s2", environment=UPGRADED, **more))


class TestExitStatus:
    def test_a_regression_is_1_only_where_asked(self, compare):
        results_file(Path("after.json"), slower())
        assert "REGRESSED" in compare("h200", "after.json")
        assert "REGRESSED" in compare("h200", "after.json", "--fail-on-regression", status=1)

    def test_the_same_runs_are_0(self, compare):
        shutil.copytree("baselines/h200", "copy")
        assert "same runs" in compare("h200", "copy", "--fail-on-regression")

    @pytest.mark.parametrize(
        "after",
        [
            result(OTHER, suite="gpt"),
            result(platform="a100"),
            result(batch_size=512),
            result(measured=runs(session="c", environment=CAPPED)),
        ],
        ids=["other benchmark", "other platform", "other configuration", "other machine"],
    )
    def test_nothing_judged_is_not_green(self, compare, after):
        results_file(Path("after.json"), after)
        text = compare("h200", "after.json", "--fail-on-regression", status=1)
        assert "--fail-on-regression: 0 judged" in text
        assert "so the check fails" in text
        compare("h200", "after.json")

    @pytest.mark.parametrize("measured", [runs(1, session="s2"), ()], ids=["measured", "unmeasured"])
    def test_what_failed_is_not_green(self, compare, measured):
        baseline(Path("baselines"), OTHER)
        fine = result(OTHER, measured=runs(session="s2"))
        results_file(Path("after.json"), fine, result(measured=measured, status=Ending.FAILED))
        text = compare("h200", "after.json", "--fail-on-regression", status=1)
        assert "note: test_cnn[resnet50]: not judged: it failed" in text
        assert "1 judged, 1 failed or went unmeasured, so the check fails" in text
        assert "INCONCLUSIVE" not in text

    def test_what_failed_before_it_had_a_place_is_not_green(self, compare):
        baseline(Path("baselines"), OTHER)
        nowhere = replace(result(measured=(), status=Ending.FAILED), platform="", disk_name="")
        results_file(Path("after.json"), result(OTHER, measured=runs(session="s2")), nowhere)
        assert "it failed" in compare("h200", "after.json", "--fail-on-regression", status=1)

    def test_what_is_missing_is_not_green(self, compare):
        baseline(Path("baselines"), OTHER)
        results_file(Path("after.json"), result(measured=runs(session="s2")))
        text = compare("h200", "after.json", "--fail-on-regression", status=1)
        assert "1 judged, 1 missing from the later set" in text
        assert "note: test_gpt[117m]: not judged: it is missing there" in text
        compare("h200", "after.json", "--fail-on-regression", "-k", "cnn")
        compare("h200", "after.json")

    def test_how_many_were_not_judged_is_said(self, compare):
        baseline(Path("baselines"), OTHER)
        other = result(OTHER, measured=runs(session="s2"), batch_size=512)
        results_file(Path("after.json"), result(measured=runs(session="s2")), other)
        text = compare("h200", "after.json", "--fail-on-regression")
        assert "--fail-on-regression: 1 judged, 1 not judged, for the reasons above" in text

    def test_a_tolerance_of_ones_own(self, compare):
        results_file(Path("after.json"), slower())
        text = compare("h200", "after.json", "--tolerance", "50%", "--fail-on-regression")
        assert re.search(r"NOT-GATED \d+\.\d % slower", text), "a tolerance above 20 % is no gate"
        assert "leaves no room" in compare("h200", "after.json", "--tolerance", "0", status=2)
        assert "is not a fraction" in compare("h200", "after.json", "--tolerance", "much", status=2)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["nope"], "'nope' is nothing to compare"),
            (["h200", "h200"], "named twice"),
            ([""], "'' is nothing to compare. Platforms in baselines: h200"),
            (["h200", "-k", "nope"], "selects none"),
            (["h200", "-k", "((("], "is no expression"),
            (["h200", "--metric", "nope"], "nothing here has it"),
        ],
    )
    def test_users_errors_are_2_and_one_line(self, compare, arguments, said):
        text = compare(*arguments, status=2)
        assert text.startswith("pytest-accel compare: ")
        assert said in text
        assert "Traceback" not in text


class TestPlatformByItsBeginning:
    def test_the_only_one_is_meant(self, compare):
        shutil.move("baselines/h200", "baselines/kept")
        file = Path("baselines/kept/cnn.json")
        file.write_text(file.read_text().replace('"platform": "h200"', '"platform": "h200-nvl"'))
        shutil.move("baselines/kept", "baselines/h200-nvl")
        assert compare("h200", "--metric", "time") == compare("h200-nvl", "--metric", "time")
        shutil.copytree("baselines/h200-nvl", "baselines/h200-pcie")
        assert "several of 'h200': h200-nvl, h200-pcie\nName one of them." in compare("h200", status=2)
