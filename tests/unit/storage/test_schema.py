"""The baseline file: what is written can be read, and every fault names its place and its remedy."""

import dataclasses
import json
from pathlib import Path

import pytest

from pytest_accel.stats.environment import Environment
from pytest_accel.stats.run import Run
from pytest_accel.storage.baselines import (
    BaselineEntry,
    BaselineError,
    BaselineFile,
    LedgerEntry,
    configuration_hash,
    parse,
    render,
)
from tests.support.damage import ABSENT, damaged

BASELINES = Path(__file__).parents[3] / "baselines"
WHERE = "baselines/cpu/small.json"
NODE = "test_x[cpu]"
ENVIRONMENT = Environment(identity={"cpu_model": "Example"}, context={"torch": "2.10.0"})


def a_run(**changes) -> Run:
    values = {
        "session": "s1",
        "rounds_s": (0.011, 0.012, 0.0125, 0.011, 0.0111, 0.0112),
        "steps_per_round": 10,
        "environment": ENVIRONMENT.key,
        "first_step_s": 1.5,
        "warmup_s": 2.0,
        "peak_memory_bytes": 123456789,
        "loss": 2.302585,
        "metrics": {"energy_j": 12.5},
    }
    return Run(**{**values, **changes})


def a_file(**changes) -> BaselineFile:
    entry = BaselineEntry(
        configuration={"batch_size": 32, "compile": False, "lr": 0.1, "model": "resnet18", "note": None},
        work_per_step=32.0,
        unit="images",
        tolerance=0.05,
        runs=(a_run(), a_run(session="s2"), a_run(session="s3")),
        ledger=(
            LedgerEntry(at="2026-01-31T09:30:00+00:00", action="record", reason="", runs=3, session="s1"),
        ),
    )
    return BaselineFile(
        platform="cpu",
        suite="small",
        environments={ENVIRONMENT.key: ENVIRONMENT},
        benchmarks={NODE: dataclasses.replace(entry, **changes)},
    )


GOOD = render(a_file())


class TestRendering:
    def test_run_keeps_its_rounds_on_one_line(self):
        lines = [line.strip() for line in GOOD.splitlines()]
        assert '"rounds_s": [0.011, 0.012, 0.0125, 0.011, 0.0111, 0.0112],' in lines

    def test_appended_run_changes_only_its_own_lines(self):
        longer = render(a_file(runs=(*a_file().benchmarks[NODE].runs, a_run(session="s4"))))
        assert [line for line in GOOD.splitlines() if line not in longer.splitlines()] == []

    def test_numbers_have_seven_digits_and_absent_values_are_left_out(self):
        run = Run(session="s1", rounds_s=(0.12345678901234,), steps_per_round=1, environment=ENVIRONMENT.key)
        content = json.loads(render(a_file(tolerance=None, runs=(run,))))
        entry = content["benchmarks"][NODE]
        assert entry["runs"] == [
            {"session": "s1", "rounds_s": [0.1234568], "steps_per_round": 1, "environment": ENVIRONMENT.key}
        ]
        assert "tolerance" not in entry

    @pytest.mark.parametrize(
        "other", [{"configuration": {"batch_size": 64}}, {"work_per_step": 33.0}, {"unit": "tokens"}]
    )
    def test_other_configuration_work_or_unit_has_another_hash(self, other):
        same = {"configuration": {"batch_size": 32}, "work_per_step": 32.0, "unit": "images"}
        assert configuration_hash(**same) == configuration_hash(**same)
        assert configuration_hash(**same) != configuration_hash(**{**same, **other})


class TestRoundTrip:
    @pytest.mark.parametrize("path", sorted(BASELINES.glob("h200/*.json")), ids=lambda path: path.stem)
    def test_committed_baseline_is_rewritten_byte_for_byte(self, path):
        text = path.read_text(encoding="utf-8")
        assert render(parse(text, str(path))) == text


ENTRY = f'benchmarks["{NODE}"]'
RUN = f"{ENTRY}.runs[2]"
ROUND = f"{RUN}.rounds_s[0]"
FACT = f'environments["{ENVIRONMENT.key}"].context["torch"]'
# Each fault: a place, the value there, and what the error says; a fourth is the place that the error names.
CONTENT_FAULTS = [
    (ROUND, -0.5, "-0.5 is not between 1e-09"),
    (ROUND, 1e300, "1e+300 is not between"),
    (f"{RUN}.rounds_s", [], "at least 1"),
    (f"{RUN}.steps_per_round", 0, "less than 1"),
    (f"{RUN}.warmup_s", -1, "-1.0 is not between 0"),
    (f"{RUN}.rank_step_s", [0.1, 0], "0.0 is not between", f"{RUN}.rank_step_s[1]"),
    (f'{RUN}.metrics["energy_j"]', 1e300, "1e+300 is beyond", f"{RUN}.metrics['energy_j']"),
    (f"{RUN}.environment", "0123456789ab", "not among the environments"),
    (f"{RUN}.round_s", [1], '"round_s" is unknown here. Did you mean', RUN),
    (f"{ENTRY}.runs", [], "1 to 10"),
    (
        f"{ENTRY}.runs",
        [json.loads(GOOD)["benchmarks"][NODE]["runs"][0]] * 12,
        "12 runs; a baseline has 1 to 10",
    ),
    (f"{ENTRY}.work_per_step", -1, "is not in 0 < work"),
    (f"{ENTRY}.tolerance", 5, "between 0 and 1"),
    (f"{ENTRY}.configuration.batch_size", 64, "changed by hand", f"{ENTRY}.configuration_hash"),
    (f"{ENTRY}.configuration_hash", ABSENT, "changed by hand"),
    (f"{ENTRY}.ledger[0].action", "delete", "none of record, update"),
    (f"{ENTRY}.ledger[0].action", "update", "without a reason", f"{ENTRY}.ledger[0].reason"),
    (f"{ENTRY}.ledger[0].at", "2026-01-31T09:30:00", "UTC"),
    (FACT, "2.11", "changed by hand", f'environments["{ENVIRONMENT.key}"]'),
    ("suite", ABSENT, '"suite" is missing', "top level"),
    ("schema_version", ABSENT, "not a baseline file", "top level"),
    ("schema_version", "1", "whole number"),
    ("schema_version", 0, "0 is not the schema"),
]
TEXT_FAULTS = [
    (" \n", "line", "not JSON: Expecting value"),
    (GOOD[: len(GOOD) // 2], "line", "not JSON"),
    (GOOD + GOOD, "line", "not JSON: Extra data"),
    ("hello: world", "line 1, column 1", "not JSON"),
    (GOOD.replace("0.0112]", "0.0112,]", 1), "line", "not JSON"),
    ("\ufeff" + GOOD, "line 1, column 1", "not JSON"),
    (GOOD.replace("{\n", "{\n<<<<<<< HEAD\n", 1), "line 2, column 1", "merge conflict"),
    ("[]", "top level", "not a baseline file"),
]


class TestFaults:
    def test_results_among_baselines_are_named_as_such(self):
        with pytest.raises(
            BaselineError, match=r"results of --accel-json, no baseline\nMove the file elsewhere"
        ):
            parse(json.dumps({"kind": "accel-session", "schema_version": 2}), WHERE)

    def check(self, text: str, place: str, says: str) -> BaselineError:
        with pytest.raises(BaselineError) as caught:
            parse(text, WHERE)
        assert says in caught.value.problem
        assert place in caught.value.place
        assert f"git checkout -- {WHERE}" in caught.value.remedy
        assert "--accel-update --accel-reason" in caught.value.remedy
        assert str(caught.value).startswith(WHERE)
        return caught.value

    @pytest.mark.parametrize("fault", CONTENT_FAULTS, ids=lambda fault: f"{fault[0]} {fault[2]}")
    def test_bad_value_is_reported_at_its_place(self, fault):
        place, value, says, *reported = fault
        expected = (reported or [place])[0]
        error = self.check(json.dumps(damaged(json.loads(GOOD), place, value)), expected, says)
        assert error.place == expected

    @pytest.mark.parametrize(("text", "place", "says"), TEXT_FAULTS, ids=range(len(TEXT_FAULTS)))
    def test_bad_text_is_reported_at_its_place(self, text, place, says):
        self.check(text, place, says)

    def test_newer_schema_asks_for_an_upgrade_and_for_nothing_else(self):
        with pytest.raises(BaselineError, match="2 is not the schema") as caught:
            parse(json.dumps({"schema_version": 2, "what": "ever"}), WHERE)
        assert caught.value.place == "schema_version"
        assert caught.value.remedy.startswith("Upgrade pytest-accel")

    def test_path_with_spaces_is_quoted_in_the_remedy(self):
        with pytest.raises(BaselineError, match=r"git checkout -- 'my baselines/x\.json'"):
            parse("", "my baselines/x.json")
