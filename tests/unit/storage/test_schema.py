"""The baseline file: what is written can be read, and every fault names its place and its remedy."""

from __future__ import annotations

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
    rounded,
)
from pytest_accel.storage.files import decode_text

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
    def test_a_run_keeps_its_rounds_on_one_line(self):
        lines = [line.strip() for line in GOOD.splitlines()]
        assert '"rounds_s": [0.011, 0.012, 0.0125, 0.011, 0.0111, 0.0112],' in lines
        assert GOOD.endswith("}\n")

    def test_keys_are_sorted_at_every_level(self):
        def check(value):
            if isinstance(value, dict):
                assert list(value) == sorted(value)
                for each in value.values():
                    check(each)
            elif isinstance(value, list):
                for each in value:
                    check(each)

        check(json.loads(GOOD))

    def test_an_appended_run_changes_only_its_own_lines(self):
        file = a_file()
        entry = file.benchmarks[NODE]
        longer = render(a_file(runs=(*entry.runs, a_run(session="s4"))))
        old, new = GOOD.splitlines(), longer.splitlines()
        gone = [line for line in old if line not in new]
        assert gone == []
        assert len(new) - len(old) == len(render(a_file()).splitlines()) - len(
            render(a_file(runs=entry.runs[:2])).splitlines()
        )

    def test_floats_have_seven_digits(self):
        text = render(a_file(runs=(a_run(rounds_s=(0.12345678901234,)),)))
        assert "[0.1234568]" in text

    def test_what_is_absent_is_not_written(self):
        text = render(
            a_file(
                tolerance=None,
                runs=(
                    a_run(first_step_s=None, warmup_s=None, peak_memory_bytes=None, loss=None, metrics={}),
                ),
            )
        )
        for key in (
            "tolerance",
            "first_step_s",
            "warmup_s",
            "peak_memory_bytes",
            "loss",
            "metrics",
            "rank_step_s",
        ):
            assert key not in text

    def test_the_hash_is_that_of_the_rounded_work(self):
        file = a_file(work_per_step=1 / 3)
        assert parse(render(file), WHERE).benchmarks[NODE].work_per_step == rounded(1 / 3)

    @pytest.mark.parametrize(
        "other",
        [
            {"configuration": {"batch_size": 64}},
            {"work_per_step": 33.0},
            {"unit": "tokens"},
        ],
    )
    def test_another_configuration_work_or_unit_is_another_hash(self, other):
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


def as_stored(value):
    """The value with every measured float rounded as rendering rounds it."""
    match value:
        case Run():
            return dataclasses.replace(
                value,
                rounds_s=tuple(map(rounded, value.rounds_s)),
                first_step_s=None if value.first_step_s is None else rounded(value.first_step_s),
                warmup_s=None if value.warmup_s is None else rounded(value.warmup_s),
                loss=None if value.loss is None else rounded(value.loss),
                metrics={name: rounded(figure) for name, figure in value.metrics.items()},
                rank_step_s=tuple(rounded(seconds) for seconds in value.rank_step_s),
            )
        case BaselineEntry():
            return dataclasses.replace(
                value,
                work_per_step=rounded(value.work_per_step),
                tolerance=None if value.tolerance is None else rounded(value.tolerance),
                runs=tuple(map(as_stored, value.runs)),
                anchor=tuple(map(as_stored, value.anchor)),
            )
        case BaselineFile():
            return dataclasses.replace(
                value, benchmarks={node: as_stored(entry) for node, entry in value.benchmarks.items()}
            )


class TestRoundTrip:
    @pytest.mark.parametrize("path", sorted(BASELINES.glob("h200/*.json")), ids=lambda path: path.stem)
    def test_committed_baseline_is_rewritten_byte_for_byte(self, path):
        text = path.read_text(encoding="utf-8")
        assert render(parse(text, str(path))) == text

    @settings(max_examples=60)
    @given(file=files())
    def test_what_is_written_is_read_back(self, file):
        assert parse(render(file), WHERE) == as_stored(file)

    @settings(max_examples=60)
    @given(file=files())
    def test_reading_and_writing_changes_no_byte(self, file):
        rendered = render(file)
        assert render(parse(rendered, WHERE)) == rendered

    @settings(max_examples=100)
    @given(cut=st.integers(0, len(GOOD) - 3))
    def test_no_truncated_file_is_ever_read(self, cut):
        with pytest.raises(BaselineError):
            parse(GOOD[:cut], WHERE)

    @settings(max_examples=100)
    @given(garbage=st.text() | st.recursive(scalars, st.lists).map(json.dumps))
    def test_garbage_is_one_clear_error(self, garbage):
        with pytest.raises(BaselineError) as caught:
            parse(garbage, WHERE)
        assert str(caught.value).startswith(WHERE)

    @settings(max_examples=300)
    @given(
        at=st.integers(0, len(GOOD) - 1),
        byte=st.sampled_from('"{}[],:0-9eNx\\ \n') | st.characters(codec="utf-8"),
    )
    def test_a_damaged_character_is_an_error_or_another_valid_file(self, at, byte):
        damaged = GOOD[:at] + byte + GOOD[at + 1 :]
        try:
            file = parse(damaged, WHERE)
        except BaselineError as error:
            fault = error
        else:
            assert parse(render(file), WHERE) == as_stored(file)
            return
        assert fault.file == WHERE
        assert fault.problem
        assert fault.remedy


# Each fault: what it does to a good file, the place that the error must name, what it must say.
RUN = f'benchmarks["{NODE}"].runs[2]'


def on_entry(change):
    def damage(content):
        change(content["benchmarks"][NODE])

    return damage


def on_run(change):
    return on_entry(lambda entry: change(entry["runs"][2]))


def setting(key, value):
    return lambda content: content.__setitem__(key, value)


def without(key):
    return lambda content: content.pop(key)


def first_round(value):
    return on_run(lambda run: run["rounds_s"].__setitem__(0, value))


def renamed(old, new):
    return lambda content: content.__setitem__(new, content.pop(old))


CONTENT_FAULTS = {
    "negative time": (first_round(-0.5), f"{RUN}.rounds_s[0]", "-0.5 is not between 1e-09"),
    "zero time": (first_round(0), f"{RUN}.rounds_s[0]", "0.0 is not between 1e-09"),
    "absurdly short time": (first_round(1e-300), f"{RUN}.rounds_s[0]", "1e-300 is not between"),
    "absurdly long time": (first_round(1e300), f"{RUN}.rounds_s[0]", "1e+300 is not between"),
    "absurd metric": (
        on_run(setting("metrics", {"energy_j": 1e300})),
        f"{RUN}.metrics['energy_j']",
        "1e+300 is beyond",
    ),
    "NaN time": (first_round(float("nan")), f"{RUN}.rounds_s[0]", "NaN is not a finite number"),
    "infinite time": (first_round(float("inf")), f"{RUN}.rounds_s[0]", "Infinity is not a finite number"),
    "text as time": (first_round("0.01"), f"{RUN}.rounds_s[0]", '"0.01" where a number is expected'),
    "true as time": (first_round(True), f"{RUN}.rounds_s[0]", "true where a number is expected"),
    "null as time": (first_round(None), f"{RUN}.rounds_s[0]", "null where a number is expected"),
    "no rounds": (on_run(setting("rounds_s", [])), f"{RUN}.rounds_s", "at least 1"),
    "rounds no list": (on_run(setting("rounds_s", 0.01)), f"{RUN}.rounds_s", "where a list is expected"),
    "zero steps": (on_run(setting("steps_per_round", 0)), f"{RUN}.steps_per_round", "less than 1"),
    "broken steps": (on_run(setting("steps_per_round", 1.5)), f"{RUN}.steps_per_round", "whole number"),
    "true steps": (on_run(setting("steps_per_round", True)), f"{RUN}.steps_per_round", "whole number"),
    "huge integer": (on_run(setting("steps_per_round", 10**30)), f"{RUN}.steps_per_round", "whole number"),
    "negative warm-up": (on_run(setting("warmup_s", -1)), f"{RUN}.warmup_s", "-1.0 is not between 0"),
    "NaN loss": (on_run(setting("loss", float("nan"))), f"{RUN}.loss", "finite"),
    "zero time of a rank": (
        on_run(setting("rank_step_s", [0.1, 0])),
        f"{RUN}.rank_step_s[1]",
        "0.0 is not between",
    ),
    "metric as text": (
        on_run(setting("metrics", {"energy_j": "x"})),
        f'{RUN}.metrics["energy_j"]',
        "where a number is expected",
    ),
    "unknown environment": (
        on_run(setting("environment", "0123456789ab")),
        f"{RUN}.environment",
        "not among the environments",
    ),
    "misspelt key": (
        on_run(renamed("rounds_s", "round_s")),
        RUN,
        '"round_s" is unknown here; did you mean "rounds_s"?',
    ),
    "foreign key": (on_run(setting("qqq", 1)), RUN, '"qqq" is unknown'),
    "missing key": (on_run(without("session")), RUN, '"session" is missing'),
    "no runs": (on_entry(setting("runs", [])), f'benchmarks["{NODE}"].runs', "1 to 10"),
    "too many runs": (
        on_entry(lambda entry: entry["runs"].extend(entry["runs"] * 3)),
        f'benchmarks["{NODE}"].runs',
        "12 runs; a baseline has 1 to 10",
    ),
    "run no object": (
        on_entry(lambda entry: entry["runs"].__setitem__(2, 7)),
        RUN,
        "where an object is expected",
    ),
    "negative work": (
        on_entry(setting("work_per_step", -1)),
        f'benchmarks["{NODE}"].work_per_step',
        "is not in 0 < work",
    ),
    "tolerance in percent": (
        on_entry(setting("tolerance", 5)),
        f'benchmarks["{NODE}"].tolerance',
        "between 0 and 1",
    ),
    "nested configuration": (
        on_entry(setting("configuration", {"a": [1]})),
        f'benchmarks["{NODE}"].configuration["a"]',
        "a list where text",
    ),
    "edited configuration": (
        on_entry(lambda entry: entry["configuration"].__setitem__("batch_size", 64)),
        f'benchmarks["{NODE}"].configuration_hash',
        "changed by hand",
    ),
    "unknown action": (
        on_entry(lambda entry: entry["ledger"][0].__setitem__("action", "delete")),
        f'benchmarks["{NODE}"].ledger[0].action',
        "none of record, update",
    ),
    "update without reason": (
        on_entry(lambda entry: entry["ledger"][0].__setitem__("action", "update")),
        f'benchmarks["{NODE}"].ledger[0].reason',
        "without a reason",
    ),
    "local time": (
        on_entry(lambda entry: entry["ledger"][0].__setitem__("at", "2026-01-31T09:30:00")),
        f'benchmarks["{NODE}"].ledger[0].at',
        "UTC",
    ),
    "no time": (
        on_entry(lambda entry: entry["ledger"][0].__setitem__("at", "yesterday")),
        f'benchmarks["{NODE}"].ledger[0].at',
        "UTC",
    ),
    "edited environment": (
        lambda content: content["environments"][ENVIRONMENT.key]["context"].__setitem__("torch", "2.11"),
        f'environments["{ENVIRONMENT.key}"]',
        "changed by hand",
    ),
    "fact as number": (
        lambda content: content["environments"][ENVIRONMENT.key]["context"].__setitem__("torch", 2.1),
        f'environments["{ENVIRONMENT.key}"].context["torch"]',
        "2.1 where text is expected",
    ),
    "half a surrogate pair": (setting("platform", "\ud800"), "platform", "surrogate"),
    "platform no text": (setting("platform", 1), "platform", "where text is expected"),
    "benchmarks as list": (setting("benchmarks", []), "benchmarks", "a list where an object is expected"),
    "missing top key": (without("suite"), "top level", '"suite" is missing'),
    "no schema version": (without("schema_version"), "top level", "not a baseline file"),
    "schema version as text": (setting("schema_version", "1"), "schema_version", "whole number"),
    "schema version true": (setting("schema_version", True), "schema_version", "whole number"),
    "older schema": (setting("schema_version", 0), "schema_version", "0 is no schema"),
}

TEXT_FAULTS = {
    "empty": ("", "", "empty"),
    "white space": (" \n", "", "empty"),
    "torn in the middle": (GOOD[: len(GOOD) // 2], "line", "cut off"),
    "torn at the end": (GOOD[:-3], "line", "cut off"),
    "written twice": (GOOD + GOOD, "line", "not JSON: Extra data"),
    "not JSON": ("hello: world", "line 1, column 1", "not JSON"),
    "comma too many": (GOOD.replace("0.0112]", "0.0112,]", 1), "line", "not JSON"),
    "byte order mark": ("\ufeff" + GOOD, "line 1, column 1", "not JSON"),
    "merge conflict": (GOOD.replace("{\n", "{\n<<<<<<< HEAD\n", 1), "line 2, column 1", "merge conflict"),
    "a list": ("[]", "top level", "a list where an object is expected"),
    "a number": ("1", "top level", "where an object is expected"),
    "overflowing number": (GOOD.replace("[0.011", "[1e400", 1), "rounds_s[0]", "not a finite number"),
    "a million digits": (GOOD.replace("[0.011", "[" + "9" * 10**6, 1), "rounds_s[0]", "not a finite number"),
    "deep nesting": ("[" * 200_000, "", "nested more than 50 levels"),
    "deep nesting of objects": ('{"a":' * 200_000, "", "nested more than 50 levels"),
    "duplicate benchmark": (
        GOOD.replace(f'"{NODE}": {{', f'"{NODE}": 1, "{NODE}": {{', 1),
        "benchmarks",
        f'"{NODE}" appears twice',
    ),
    "duplicate key in a run": (
        GOOD.replace('"loss":', '"loss": 1, "loss":', 1),
        f'benchmarks["{NODE}"].runs[0]',
        '"loss" appears twice',
    ),
    "duplicate key at the top": (
        GOOD.replace('"platform":', '"platform": "x", "platform":', 1),
        "top level",
        '"platform" appears twice',
    ),
    "duplicate fact": (
        GOOD.replace('"torch":', '"torch": "1", "torch":', 1),
        f'environments["{ENVIRONMENT.key}"].context',
        '"torch" appears twice',
    ),
}


def assert_restorable(error: BaselineError, place: str, words: str) -> None:
    assert error.file == WHERE
    assert place in error.place
    assert words in error.problem
    assert f"git checkout -- {WHERE}" in error.remedy
    assert "--accel-update --accel-reason" in error.remedy
    assert str(error).startswith(WHERE)


class TestFaults:
    @pytest.mark.parametrize(("damage", "place", "words"), CONTENT_FAULTS.values(), ids=CONTENT_FAULTS)
    def test_bad_content_names_its_place(self, damage, place, words):
        content = json.loads(GOOD)
        damage(content)
        with pytest.raises(BaselineError) as caught:
            parse(json.dumps(content), WHERE)
        assert caught.value.place == place
        assert_restorable(caught.value, place, words)

    @pytest.mark.parametrize(("text", "place", "words"), TEXT_FAULTS.values(), ids=TEXT_FAULTS)
    def test_bad_text_names_its_place(self, text, place, words):
        with pytest.raises(BaselineError) as caught:
            parse(text, WHERE)
        assert_restorable(caught.value, place, words)

    def test_a_newer_schema_asks_for_an_upgrade_and_for_nothing_else(self):
        newer = json.dumps({"schema_version": 2, "what": "ever"})
        with pytest.raises(BaselineError) as caught:
            parse(newer, WHERE)
        assert caught.value.place == "schema_version"
        assert "2 is newer" in caught.value.problem
        assert caught.value.remedy.startswith("Upgrade pytest-accel")

    def test_other_encodings_name_the_byte(self):
        data = GOOD.replace("Example", "Ex°mple").encode("latin-1")
        with pytest.raises(BaselineError) as caught:
            decode_text(data, WHERE, BaselineError)
        assert_restorable(caught.value, f"byte {data.index(0xB0)}", "not UTF-8 (byte 0xb0)")

    def test_a_path_with_spaces_is_quoted_in_the_remedy(self):
        with pytest.raises(BaselineError, match=r"git checkout -- 'my baselines/x\.json'"):
            parse("", "my baselines/x.json")

    def test_an_error_survives_pickling(self):
        error = BaselineError(WHERE, "platform", "bad", "Do this.")
        again = pickle.loads(pickle.dumps(error))
        assert str(again) == str(error) == f"{WHERE}: platform: bad\nDo this."
