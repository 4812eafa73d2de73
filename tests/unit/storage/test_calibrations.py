"""Calibrations beside baselines: read strictly, written whole, and in nobody's way."""

from __future__ import annotations

import json
import subprocess

import pytest

from pytest_accel.stats.calibration import Conditions, calibrate
from pytest_accel.storage.baselines import BaselineStore
from pytest_accel.storage.calibrations import CalibrationStore, parse, render
from pytest_accel.storage.gathering import find
from pytest_accel.storage.reading import BaselineError
from pytest_accel.storage.verifying import verify
from tests.support.calibrated import calibration, entry
from tests.support.stored import H200, KEY, OTHER, UPGRADED, baseline


@pytest.fixture
def root(tmp_path):
    return tmp_path / "baselines"


@pytest.fixture
def path(root):
    return root / "h200" / "calibration" / "cnn.json"


class TestStore:
    def test_keeps_all_of_it(self, root, path):
        made = calibration(root)
        assert path.is_file()
        kept = CalibrationStore(root).read("h200", "cnn").benchmarks[KEY]
        assert (kept.at, kept.session, kept.configuration_hash) == (made.at, "s1", "0123456789ab")
        assert kept.figures.false_alarms == made.figures.false_alarms
        assert kept.conditions == made.conditions == Conditions(budget_s=5.0, threads=1)
        assert kept.figures.noise == pytest.approx(made.figures.noise)

    def test_what_it_keeps_can_be_computed_again(self, root):
        calibration(root)
        kept = CalibrationStore(root).read("h200", "cnn").benchmarks[KEY]
        again = calibrate(kept.runs, draws=20)
        assert again.noise == pytest.approx(kept.figures.noise, rel=1e-4)
        assert again.false_alarms == kept.figures.false_alarms

    def test_one_from_before_conditions_were_kept_is_read(self, root, path):
        calibration(root, conditions=None)
        assert '"conditions"' not in path.read_text()
        assert CalibrationStore(root).read("h200", "cnn").benchmarks[KEY].conditions is None

    def test_finds_all_of_them(self, root):
        assert list(CalibrationStore(root).files()) == []
        for platform in ("h200", "a100"):
            calibration(root, platform=platform)
        found = CalibrationStore(root)
        assert [file.platform for file in found.files()] == ["a100", "h200"]
        assert [file.platform for file in found.files("h200")] == ["h200"]
        assert list(found.files("gh200")) == []

    def test_without_draws(self, root):
        calibration(root, count=6)
        assert CalibrationStore(root).read("h200", "cnn").benchmarks[KEY].figures.false_alarms is None

    def test_a_newer_one_takes_the_place_of_the_older_and_of_no_other(self, root):
        calibration(root, noise=0.1)
        calibration(root, OTHER)
        newer = calibration(root, noise=0.001, environment=UPGRADED)
        file = CalibrationStore(root).read("h200", "cnn")
        assert set(file.benchmarks) == {KEY, OTHER}
        assert file.benchmarks[KEY].figures.noise == pytest.approx(newer.figures.noise)
        assert set(file.environments) == {H200.key, UPGRADED.key}
        calibration(root, OTHER, environment=UPGRADED)
        assert set(CalibrationStore(root).read("h200", "cnn").environments) == {UPGRADED.key}

    def test_nothing_is_none(self, root):
        assert CalibrationStore(root).read("h200", "cnn") is None

    def test_one_fact_a_line_in_a_fixed_order(self, root, path):
        calibration(root)
        text = path.read_text()
        assert render(parse(text, "x")) == text
        lines = [line.strip() for line in text.splitlines()]
        assert sum(line.startswith('"rounds_s": [') for line in lines) == 12
        names = list(json.loads(text)["benchmarks"][KEY])
        assert names == sorted(names)


class TestFaults:
    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda top: top.update(kind="results"), 'top level: "kind" is not "calibration"'),
            (lambda top: top.update(schema_version=2), "top level: .schema_version. is not 1"),
            (lambda top: top.update(extra=1), 'the key "extra" is unknown here'),
            (lambda top: top["benchmarks"][KEY].pop("noise"), 'the key "noise" is missing'),
            (lambda top: top["benchmarks"][KEY].update(noise="much"), "where a number is expected"),
            (lambda top: top["benchmarks"][KEY].update(detectable_loss=5), "is not a fraction"),
            (lambda top: top["benchmarks"][KEY].update(at="today"), "is not a moment in UTC"),
            (
                lambda top: top["benchmarks"][KEY]["runs"].__delitem__(slice(5, None)),
                "5 runs; a calibration has 6",
            ),
            (lambda top: top["benchmarks"][KEY]["false_alarms"].update(gate=21), "gate: 21 of 20 draws"),
            (lambda top: top["benchmarks"][KEY]["conditions"].update(threads=0), "threads"),
            (lambda top: top["environments"].clear(), "is not among the environments of this file"),
            (lambda top: top.update(platform="a100"), "was it copied or renamed?"),
        ],
    )
    def test_are_named_with_the_remedy(self, root, path, change, said):
        calibration(root)
        top = json.loads(path.read_text())
        change(top)
        path.write_text(json.dumps(top))
        with pytest.raises(BaselineError, match=said) as caught:
            CalibrationStore(root).read("h200", "cnn")
        assert "--accel-update" not in str(caught.value)
        assert "alibrate" in caught.value.remedy or "Upgrade" in caught.value.remedy

    def test_a_bad_value_does_not_reach_the_disk(self, root, path):
        calibration(root)
        before = path.read_text()
        with pytest.raises(BaselineError, match="Nothing was written"):
            calibration(root, at="yesterday")
        assert path.read_text() == before

    def test_what_cannot_be_written_is_said(self, root):
        root.mkdir()
        (root / "h200").write_text("in the way")
        with pytest.raises(BaselineError, match="cannot be written"):
            calibration(root)


class TestInNobodysWay:
    def test_verify_reads_it_and_finds_nothing_wrong(self, root):
        baseline(root)
        calibration(root)
        report = verify(root)
        assert (report.files, report.calibrations, report.faults, report.remarks) == (1, 1, (), ())

    def test_verify_finds_its_faults(self, root, path):
        baseline(root)
        calibration(root)
        path.write_text("{}")
        (fault,) = verify(root).faults
        assert "this is no file of calibrations" in str(fault)
        assert "--accel-calibrate" in fault.remedy

    def test_sets_of_baselines_are_the_same_with_it(self, root):
        baseline(root)
        before = find(f"file:{root}", root).sides
        calibration(root)
        calibration(root, suite="gpt", platform="a100")  # calibrated, and not yet recorded
        for name in (f"file:{root}", "platform:h200", "h200"):
            assert [side.entries for side in find(name, root).sides] == [side.entries for side in before]

    def test_a_platform_that_is_only_calibrated_has_no_baselines(self, root):
        calibration(root)
        with pytest.raises(ValueError, match="holds no baselines"):
            find("platform:h200", root)

    def test_revisions_are_the_same_with_it(self, root, monkeypatch):
        baseline(root)
        calibration(root)
        monkeypatch.chdir(root.parent)
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "x")):
            subprocess.run(["git", *words], check=True)
        assert [file.suite for file in find("git:HEAD", root).files] == ["cnn"]

    def test_recording_goes_on_beside_it(self, root):
        calibration(root)
        baseline(root)
        assert BaselineStore(root).read("h200", "cnn") is not None
        assert CalibrationStore(root).read("h200", "cnn") is not None


def test_is_shown_with_its_baseline(root, monkeypatch, capsys):
    from pytest_accel import cli

    baseline(root)
    made = calibration(root)
    monkeypatch.chdir(root.parent)
    monkeypatch.delenv("PYTEST_ACCEL_BASELINES", raising=False)
    assert cli.main(["baseline", "show"]) == 0
    name = KEY.partition("::")[2]
    assert f"calibrated 2026-02-01 {name}: 12 runs, noise " in capsys.readouterr().out
    assert cli.main(["baseline", "show", "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["calibration"]["detectable_loss"] == pytest.approx(made.figures.detectable_loss)
    assert shown["calibration"]["false_alarms"]["draws"] == 20
    assert shown["calibration"]["conditions"] == {"budget_s": 5.0, "threads": 1}


def test_entry_helper_is_noisy_enough():
    """The tests of the session rely on it: 3 % of noise resolve no default tolerance."""
    assert entry(noise=0.03).figures.detectable_loss > 0.05 > entry(noise=0.001).figures.detectable_loss
