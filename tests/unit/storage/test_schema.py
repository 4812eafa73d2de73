"""The baseline file: what is written can be read, and every fault names its place and its remedy."""

import dataclasses
import json
import pickle
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


text = st.text(max_size=8)
finite = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(min_value=1.1e-9, max_value=9e6)
scalars = st.none() | st.booleans() | st.integers(-(10**15), 10**15) | finite | text
environments = st.builds(
    Environment,
    identity=st.dictionaries(text, text, max_size=3),
    context=st.dictionaries(text, text, max_size=3),
)


@st.composite
def files(draw) -> BaselineFile:
    known = {each.key: each for each in draw(st.lists(environments, min_size=1, max_size=3))}
    runs = st.builds(
        Run,
        session=text,
        rounds_s=st.lists(positive, min_size=1, max_size=8).map(tuple),
        steps_per_round=st.integers(1, 1000),
        environment=st.sampled_from(sorted(known)),
        first_step_s=st.none() | positive,
        warmup_s=st.none() | st.just(0.0) | positive,
        peak_memory_bytes=st.none() | st.integers(0, 2**45),
        loss=st.none() | finite,
        metrics=st.dictionaries(text, st.floats(-1e30, 1e30), max_size=3),
        rank_step_s=st.lists(positive, max_size=3).map(tuple),
    )
    ledger = st.builds(
        LedgerEntry,
        at=st.datetimes().map(lambda moment: moment.isoformat() + "+00:00"),
        action=st.sampled_from(["record", "update"]),
        reason=text.map(lambda reason: f"because {reason}"),
        runs=st.integers(1, 10),
        session=text,
    )
    entries = st.builds(
        BaselineEntry,
        configuration=st.dictionaries(text, scalars, max_size=4),
        work_per_step=positive,
        unit=text,
        tolerance=st.none() | st.floats(min_value=0.001, max_value=0.5),
        runs=st.lists(runs, min_size=1, max_size=3).map(tuple),
        ledger=st.lists(ledger, max_size=3).map(tuple),
    )
    node_ids = st.text(string.printable, max_size=10)
    return BaselineFile(
        platform=draw(text),
        suite=draw(text),
        environments=known,
        benchmarks=draw(st.dictionaries(node_ids, entries, max_size=3)),
    )


class TestRoundTrip:
    @pytest.mark.parametrize("path", sorted(BASELINES.glob("h200/*.json")), ids=lambda path: path.stem)
    def test_committed_baseline_is_rewritten_byte_for_byte(self, path):
        text = path.read_text(encoding="utf-8")
        assert render(parse(text, str(path))) == text

    @settings(max_examples=60)
    @given(file=files())
    def test_what_is_written_is_read_back_and_not_rounded_again(self, file):
        once = parse(render(file), WHERE)
        assert (once.platform, once.suite, once.environments) == (
            file.platform,
            file.suite,
            file.environments,
        )
        assert once.benchmarks.keys() == file.benchmarks.keys()
        for key, entry in file.benchmarks.items():
            found = once.benchmarks[key]
            assert (found.configuration, found.unit, found.ledger) == (
                entry.configuration,
                entry.unit,
                entry.ledger,
            )
            times = [run.rounds_s for run in entry.runs]
            assert [run.rounds_s for run in found.runs] == [pytest.approx(each, rel=1e-6) for each in times]
        assert render(once) == render(file)
        assert parse(render(once), WHERE) == once


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

    def test_error_survives_pickling(self):
        error = BaselineError(WHERE, "platform", "bad", "Do this.")
        again = pickle.loads(pickle.dumps(error))
        assert str(again) == str(error) == f"{WHERE}: platform: bad\nDo this."
