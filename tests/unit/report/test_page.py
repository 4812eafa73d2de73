"""What the page says, and that nothing from outside can become a part of it; how it looks is tests/browser's to see."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from pytest_accel.commands.selecting import by_keyword
from pytest_accel.report.page import ReportError, document, plotly, read_plotly_js, render_page, write_page
from pytest_accel.report.page.details import details, keyword, rerun
from pytest_accel.report.page.headline import verdict_of
from pytest_accel.report.page.metrics import failed_metrics, metric
from pytest_accel.report.page.plots import past, rounds, thinned
from pytest_accel.report.page.rows import picture
from pytest_accel.report.page.session_plots import energies, scalings, session_plots, sweeps
from pytest_accel.report.terminal import changed, explain
from pytest_accel.report.verdicts import VERDICTS
from pytest_accel.stats.changepoints import trend
from pytest_accel.stats.quantities import percent, si
from pytest_accel.stats.results import Ending, ReferenceFigure
from pytest_accel.stats.verdict import Estimate, Outcome, Verdict
from pytest_accel.storage.reference_values import Figure
from tests.support.results import (
    FINDINGS,
    HOSTILE,
    a_sweep,
    hostile,
    make_result,
    make_session,
    nights,
    scaled,
)

LIBRARY = b"window.Plotly = {};"


class Read(HTMLParser):
    """The page as a browser reads it: texts outside scripts, scripts, and the elements that there are."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.texts, self.scripts, self.tags, self.attributes, self.policy = [], [], [], [], ""
        self.inside = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        found = dict(attrs)
        self.inside = tag if tag in {"script", "style"} else ""
        if tag == "script":
            self.scripts.append([found, ""])
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"]

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1][1] += data
        elif not self.inside:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split()).replace("\u00a0", " ")

    @property
    def data(self) -> dict:
        return json.loads(next(text for attributes, text in self.scripts if attributes.get("id") == "data"))


def read(*results, **more) -> Read:
    return Read(render_page(make_session(results, **more), plotly_js=LIBRARY))


# --- the headline ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "exit_status", "tone", "text"),
    [
        ([Outcome.OK, Outcome.OK], 0, "good", "All 2 benchmarks ok"),
        ([Outcome.OK, Ending.SKIPPED], 0, "good", "1 benchmark ok; 1 skipped"),
        ([Ending.RECORDED], 0, "good", "1 benchmark recorded"),
        ([Outcome.OK, Outcome.REGRESSED], 1, "bad", "1 of 2 benchmarks failed"),
        ([Outcome.OK, Outcome.INCONCLUSIVE], 0, "warn", "None failed; 1 of 2 benchmarks needs attention"),
        ([Outcome.OK, Outcome.VANISHED], 0, "warn", "None failed; 1 of 2 benchmarks needs attention"),
        ([Ending.SKIPPED, Ending.SKIPPED], 0, "warn", "Nothing was measured: 2 skipped"),
        ([], 0, "warn", "Nothing was measured: no benchmark was found"),
        ([Outcome.OK], 2, "bad", "The session ended with status 2: it was interrupted"),
        ([], 5, "bad", "The session ended with status 5: no tests were collected"),
    ],
)
def test_the_headline_is_green_only_where_something_was_measured_and_all_is_well(
    statuses, exit_status, tone, text
):
    session = make_session([make_result(status) for status in statuses], exit_status=exit_status)
    verdict = verdict_of(session)
    assert (verdict.tone, verdict.text) == (tone, text)


def test_a_failed_session_without_a_failed_benchmark_is_not_green():
    assert verdict_of(make_session([make_result()], exit_status=1)).tone == "bad"


def test_the_headline_says_by_how_much_how_surely_and_what_changed():
    result = make_result(Outcome.REGRESSED)
    page = read(result)
    assert result.text in page.text
    assert "cuDNN 9.10.2 → 9.19.0" in page.text
    assert "note: rank 2" in page.text


def test_the_headline_has_the_figures_of_both_sides():
    result = make_result(Outcome.REGRESSED)
    numbers = f"{si(result.baseline_throughput)} → {si(result.throughput)} images/s"
    page = read(result)
    assert f"gh200 {numbers} {result.text}" in page.text
    assert page.data["details"][0]["numbers"] == numbers
    table = page.data["table"]
    place = [column["key"] for column in table["columns"]].index("baseline")
    assert table["rows"][0]["cells"][place] == [si(result.baseline_throughput), result.baseline_throughput]


SAME = "Nothing in the recorded environment changed since the baseline."


@pytest.mark.parametrize("status", [Outcome.REGRESSED, Outcome.INCONCLUSIVE])
def test_that_nothing_changed_is_said_where_one_would_look_for_it(status):
    assert SAME in read(make_result(status, changes=())).text
    assert SAME not in read(make_result(status)).text
    assert SAME not in read(make_result(changes=())).text
    assert SAME not in read(make_result(Ending.FAILED, changes=())).text


def test_the_doctor_has_a_word_in_the_headline_where_something_is_amiss():
    told = "Doctor : GPU 0 power limit: 550 W, below its default of 700 W; governor: schedutil"
    assert told in read(make_result(Outcome.REGRESSED)).text
    assert told in read(make_result(Outcome.INCONCLUSIVE)).text
    assert told not in read(make_result()).text
    many = tuple({**FINDINGS[0], "of": f"GPU {number}"} for number in range(8))
    assert "; and 5 more" in read(make_result(Outcome.REGRESSED), findings=many).text


def test_what_would_decide_an_open_question_is_the_verdicts_own_word():
    result = make_result(Outcome.INCONCLUSIVE)
    attention = read(result).text.partition("Needs attention")[2]
    assert f"{result.name} {result.text}" in attention


def test_a_change_that_concerns_some_failures_only_says_of_how_many():
    one = make_result(Outcome.REGRESSED, name="test_a")
    other = make_result(Outcome.REGRESSED, name="test_b", changes=())
    assert "cuDNN 9.10.2 → 9.19.0 (1 of 2)" in read(one, other).text


def test_many_failures_are_counted_and_the_first_ones_named():
    page = read(*(make_result(Outcome.REGRESSED, name=f"test_{i}") for i in range(9)))
    assert "9 of 9 benchmarks failed" in page.text
    assert "and 3 more, first in the table below" in page.text


def test_what_needs_attention_has_a_command_for_all_of_its_kind():
    page = read(
        make_result(Outcome.NO_BASELINE, name="test_a"),
        make_result(Outcome.NO_BASELINE, name="test_b"),
        make_result(),
    )
    names = "bench_suites/test_cnn.py::test_a bench_suites/test_cnn.py::test_b"
    assert f"pytest {names} -m 'gh200 or gh200x4' --accel-record" in page.text


def a_reference(**more):
    known = {"id": "olivia/x", "source": "Olivia", "platform": "gh200", "metric": "throughput"}
    return ReferenceFigure(**{**known, "unit": "images/s", "value": 9000.0, "ratio": 0.74, **more})


SHORTFALL = "6,714 images/s is 25.4 % below the 9,000 of olivia/x"


def test_what_is_off_its_reference_says_so_once():
    missed = a_reference(gated=True, shortfall=SHORTFALL, expected=True, source="pyproject.toml")
    result = make_result()
    result = replace(
        result,
        status=Ending.FAILED,
        failed=True,
        references=(a_reference(differs="batch size 256 there, 32 here", flags=("approximate",)), missed),
        text=SHORTFALL,
        details=(result.text,),
    )
    page = read(result)
    assert "1 of 1 benchmark failed" in page.text
    assert page.text.count(SHORTFALL) == 1
    (found,) = page.data["details"]
    said = json.dumps(found, ensure_ascii=False).replace("\u00a0", " ")
    assert said.count(SHORTFALL) == 1
    assert said.count(result.details[0]) == 1
    assert [line[0] for line in found["lines"]] == ["FAILED", "ok"]
    assert [each["gate"] for each in found["expected"]] == ["missed"]
    assert [each["doubts"] for each in found["published"]] == ["batch size 256 there, 32 here; approximate"]
    cells = dict(
        zip(
            (c["key"] for c in page.data["table"]["columns"]),
            page.data["table"]["rows"][0]["cells"],
            strict=True,
        )
    )
    assert cells["published"] == ["0.74 x gh200", 0.74, "batch size 256 there, 32 here"]
    assert cells["expected"] == ["0.74 x", 0.74, ""]
    assert page.data["table"]["rows"][0]["tone"] == "good"  # against its baseline it is well
    assert "numbers" not in found


def test_a_regression_that_is_off_its_reference_too_says_both():
    result = make_result(Outcome.REGRESSED, references=(a_reference(shortfall=SHORTFALL, gated=True),))
    found = details(replace(result, details=(SHORTFALL,)), [])
    assert [line[0] for line in found["lines"]] == ["REGRESSED", "FAILED"]
    assert "note" not in found


def test_every_end_of_a_benchmark_has_a_look():
    assert set(VERDICTS) == {*Outcome, *Ending}
    signs = {look.icon for look in VERDICTS.values()}
    template = document._asset("page.html")
    assert all(f'id="i-{sign}"' in template for sign in signs)


# --- the table and the details -----------------------------------------------------------------------------


def test_rows_come_with_what_fails_first_and_the_greatest_loss_first():
    ordinary, failed = make_result(name="test_a"), make_result(Ending.FAILED, name="test_b")
    lost = [make_result(Outcome.REGRESSED, name=f"test_{i}") for i in range(3)]
    rows = read(ordinary, failed, *lost).data["table"]["rows"]
    losses = [
        result.verdict.slowdown.point for result in sorted(lost, key=lambda r: -r.verdict.slowdown.point)
    ]
    change = [column["key"] for column in read(*lost).data["table"]["columns"]].index("change")
    assert [row["cells"][change][1] for row in rows[:3]] == losses
    assert [row["name"] for row in rows[3:]] == ["test_b", "test_a"]


def test_cells_say_what_the_terminal_says():
    result = make_result(Outcome.REGRESSED)
    table = read(result).data["table"]
    cells = {
        column["key"]: cell for column, cell in zip(table["columns"], table["rows"][0]["cells"], strict=True)
    }
    assert cells["verdict"][0] == "REGRESSED"
    assert cells["throughput"] == [f"{si(result.throughput)} images/s", result.throughput]
    assert cells["change"][0] == changed(result.verdict.slowdown.point)
    assert cells["mfu"][0] == percent(result.metrics["mfu"])


def test_a_column_without_a_value_is_left_out():
    keys = [column["key"] for column in read(make_result(Ending.SKIPPED)).data["table"]["columns"]]
    assert keys == ["verdict", "benchmark", "platform", "suite"]


def test_the_picture_of_a_change_has_slower_to_the_left_and_stays_inside():
    def of(low, point, high):
        found = Estimate(point=point, low=low, high=high)
        return picture(Verdict(outcome=Outcome.OK, tolerance=0.05, slowdown=found))

    assert of(-0.01, 0.0, 0.01) == [0.467, 0.5, 0.533, 0.333, 0.667]
    assert of(0.5, 0.7, 0.9)[:3] == [0.0, 0.0, 0.0]
    assert of(-9.0, -8.0, -7.0)[:3] == [1.0, 1.0, 1.0]
    assert picture(Verdict(outcome=Outcome.NO_BASELINE, tolerance=0.05)) is None


DOCTOR = "pytest-accel doctor"


@pytest.mark.parametrize(
    ("status", "ends"),
    [
        (Outcome.OK, [""]),
        (Outcome.REGRESSED, ["", DOCTOR, ' --accel-update --accel-reason "why it may stay so"']),
        (Outcome.IMPROVED, ["", DOCTOR, ' --accel-update --accel-reason "why it may stay so"']),
        (Outcome.NO_BASELINE, ["", " --accel-record"]),
        (Outcome.INCONCLUSIVE, ["", DOCTOR]),  # noise that no more baseline runs outweigh
        (Outcome.INVALID, ["", DOCTOR]),
    ],
)
def test_commands_are_what_one_would_type_next(status, ends):
    result = make_result(status, name="test_x[it's]")
    again = "pytest 'bench_suites/test_cnn.py::test_x[it'\"'\"'s]' -m 'a or b'"
    found = details(result, ["bench_suites", "-m", "a or b", "-x"]).get("commands", [])
    assert [text for _, text in found] == [end if end == DOCTOR else again + end for end in ends]


def test_what_has_a_history_is_asked_since_when():
    result = make_result(Outcome.REGRESSED, name="test_x[a, b not c]")
    found = dict(details(result, [], has_past=True)["commands"])
    assert found["See since when"] == "pytest-accel history changes -k 'test_x[a and b and c]'"
    assert "See since when" not in dict(details(result, [])["commands"])
    assert by_keyword(keyword(result.name))(result.benchmark)


@pytest.mark.parametrize(("stored", "end"), [(5, "--accel-record"), (8, "--accel-record=2"), (10, "doctor")])
def test_more_baseline_runs_are_offered_where_the_verdict_says_that_they_help(stored, end):
    result = make_result(
        Outcome.INCONCLUSIVE, text="1.0 % slower: record more baseline runs with --accel-record"
    )
    full = replace(result, baseline=(result.baseline * 2)[:stored])
    assert details(full, [])["commands"][-1][1].endswith(end)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("mfu", 0.312, ("MFU", "31.2 %")),
        ("energy_per_step_j", 21.5, ("energy per step", "21.50 J")),
        ("host_cpu_s_per_step", 2.13e-5, ("host cpu per step", "21.3 us")),
        ("epoch_s", 61.0, ("epoch", "61 s")),
        ("epoch_s", 0.0, ("epoch s", "0")),
        ("loader_efficiency", 0.9, ("loader efficiency", "90.0 %")),
        ("my_score", 12.0, ("my score", "12")),
        ("temperature_c", 61.0, ("peak temperature", "61 °C")),
        ("tdp_share", 0.93, ("tdp share", "93.0 %")),
        ("gb_per_s", 3.0, ("gb per s", "3")),
    ],
)
def test_a_metric_is_shown_in_the_unit_that_its_name_carries(name, value, shown):
    assert metric(name, value) == shown


def test_a_vanished_benchmark_is_not_measured_again_but_taken_out():
    found = details(make_result(Outcome.VANISHED, name="test_x[1]"), [])["commands"]
    assert [text for _, text in found] == [
        "pytest-accel baseline prune --benchmark 'bench_suites/test_cnn.py::test_x[1]'"
    ]


@pytest.mark.parametrize("command", [["-m", "gh200"], ["-mgh200"]])
def test_a_benchmark_is_measured_again_as_the_platform_it_was(command):
    assert rerun([make_result(name="test_a")], command).endswith(" -m gh200")
    assert rerun([make_result(name="test_a")], ["--maxfail=1", "-m"]).endswith("::test_a")


def test_a_benchmark_of_the_wheel_is_measured_again_from_the_wheel():
    command = ["--pyargs", "pytest_accel.suites", "-m", "gh200"]
    found = rerun([make_result(name="test_a"), make_result(name="test_b")], command)
    module = "pytest_accel.suites.test_cnn"
    assert found == f"pytest --pyargs {module}::test_a {module}::test_b -m gh200"
    assert "--pyargs" not in rerun([make_result(name="test_a")], ["--pyargs", "mine.suites"])


def fed(**more):
    """Faster than its baseline so far, and fed by a third less of what it could take: the metric decided."""
    result = make_result(name="test_fed")
    open_question = replace(result.verdict, outcome=Outcome.INCONCLUSIVE, wants_another_run=True)
    share = Verdict(
        outcome=Outcome.REGRESSED,
        tolerance=0.05,
        of="loader_efficiency",
        slowdown=Estimate(point=0.323, low=0.3, high=0.34),
        looks=2,
        baseline_runs=5,
    )

    def with_share(runs, *shares):
        return tuple(
            replace(run, metrics={**run.metrics, "loader_efficiency": each})
            for run, each in zip(runs, shares, strict=True)
        )

    return replace(
        result,
        status=Outcome.REGRESSED,
        failed=True,
        text=f"loader_efficiency: {explain(share)}",
        details=(explain(open_question),),
        runs=with_share(result.runs * 3, 0.9, 0.98, 0.99),
        baseline=with_share(result.baseline, 1.4, 1.5, 1.52, 1.53, 1.6),
        verdicts=(open_question, share),
        **more,
    )


def test_where_a_metric_decided_the_row_and_the_headline_are_about_it():
    result = fed()
    page = read(result, findings=())
    (row,) = page.data["table"]["rows"]
    place = [column["key"] for column in page.data["table"]["columns"]].index("change")
    assert row["cells"][place] == ["loader efficiency 32.3 % lower", 0.323, "152.0 % → 98.0 %"]
    assert row["picture"] == picture(result.verdicts[1])
    (found,) = page.data["details"]
    assert found["numbers"] == "loader efficiency 152.0 % → 98.0 %"
    assert "test_fed gh200 loader efficiency 152.0 % → 98.0 % loader_efficiency: 32.3 % lower" in page.text
    assert page.text.count(result.text) == 1


def test_a_question_that_another_verdict_ended_is_not_asked():
    result = fed()
    found = json.dumps(details(result, []))
    assert "INCONCLUSIVE" not in found
    assert "one run decides nothing" not in found
    still_open = replace(result, status=Outcome.INCONCLUSIVE, failed=False, text=result.details[0])
    assert "one run decides nothing" in details(still_open, [])["lines"][0][3]


def test_an_open_metric_is_what_an_inconclusive_benchmark_is_explained_by():
    result = fed()
    ok = replace(result.verdicts[0], outcome=Outcome.OK, wants_another_run=False)
    share = replace(result.verdicts[1], outcome=Outcome.INCONCLUSIVE, wants_another_run=True)
    result = replace(
        result, status=Outcome.INCONCLUSIVE, failed=False, verdicts=(ok, share), text=explain(ok), details=()
    )
    assert details(result, [])["lines"][0][3].startswith("loader_efficiency: 32.3")


def test_of_energy_the_limit_lies_above():
    grown = Estimate(point=0.08, low=0.06, high=0.1)
    energy = Verdict(outcome=Outcome.REGRESSED, tolerance=0.05, slowdown=grown, of="energy_per_step_j")
    result = make_result(Outcome.REGRESSED)
    stored = tuple(replace(run, metrics={"energy_per_step_j": 36.0}) for run in result.baseline)
    result = replace(result, baseline=stored, verdicts=(result.verdicts[0], energy))
    plot = failed_metrics(result)[-1]
    assert (plot["title"], plot["limit"]) == ("energy", pytest.approx(36.0 * 1.05))


def test_a_metric_that_failed_has_its_runs_drawn():
    (plot,) = failed_metrics(fed())
    assert plot["now"] == [(0.9, "90.0 %"), (0.98, "98.0 %"), (0.99, "99.0 %")]
    assert plot["limit"] == pytest.approx(1.52 * 0.95)
    assert len(plot["then"]) == 5
    assert failed_metrics(replace(fed(), failed=False)) == []
    assert failed_metrics(make_result(Outcome.REGRESSED)) == []


def test_a_traceback_is_one_text_and_says_nothing_twice():
    lines = ("    def test_x():", "", ">       raise ValueError", "E       ValueError")
    result = make_result(Ending.FAILED, details=(*lines, make_result(Ending.FAILED).text))
    assert details(result, [])["note"] == "\n".join(lines)


def test_one_that_broke_when_it_was_torn_down_says_so_and_not_that_it_is_well():
    result = make_result(failed=True, details=("torn down: OSError: gone", "conftest.py:3: OSError"))
    page = read(result)
    assert "FAILED test_cnn[resnet50-bf16-256] gh200" in page.text
    assert page.text.count("torn down: OSError: gone") == 1
    (found,) = page.data["details"]
    assert [line[0] for line in found["lines"]] == ["FAILED", "ok"]
    assert found["note"] == "conftest.py:3: OSError"


def test_steps_that_drifted_are_in_sight():
    result = make_result(steady=False)
    page = read(result)
    assert page.data["table"]["rows"][0]["unsteady"] is True
    assert page.data["details"][0]["lines"][1][0] == "note"
    assert [text for _, text in page.data["details"][0]["commands"]][1:] == [DOCTOR]


def test_a_loss_that_the_host_may_have_caused_says_so():
    result = make_result(Outcome.REGRESSED)
    last = result.runs[-1]
    slow_host = replace(last, metrics={**last.metrics, "launch_s": last.step_time_s})
    for each, words in (
        (result, ["REGRESSED"]),
        (replace(result, runs=(*result.runs[:-1], slow_host)), ["REGRESSED", "note"]),
    ):
        assert [line[0] for line in read(each).data["details"][0]["lines"]] == words


def test_a_long_traceback_keeps_its_end_and_says_how_much_is_gone():
    result = make_result(Ending.FAILED, details=("a" * 9000 + "the end",))
    note = details(result, [])["note"]
    assert note.endswith("the end")
    assert "5,007 characters left out" in note


def test_the_doctors_problems_are_in_sight_and_what_nobody_tells_is_not_ok():
    untold = {
        "group": "cpu",
        "subject": "governor",
        "level": "ok",
        "text": "no cpufreq",
        "remedy": "",
        "known": False,
    }
    page = read(make_result(), findings=(*FINDINGS, untold))
    doctor = page.text[page.text.index("Doctor") :]
    assert doctor.index("power limit") < doctor.index("2 ok, 1 not told") < doctor.index("ECC")
    assert "sudo nvidia-smi -i 0 -pl 700" in doctor
    assert "not told governor" in doctor


def test_a_credential_on_the_command_line_is_not_passed_on():
    page = read(make_result(), command=("bench_suites", "--token=ghp_0123456789abcdefABCDEF0123456789"))
    assert "ghp_" not in page.text
    assert "<redacted>" in page.text


# --- plots --------------------------------------------------------------------------------------------------


def test_rounds_are_throughputs_of_both_sides_with_intervals_around_them():
    result = make_result(Outcome.REGRESSED)
    found = rounds(result, 60)
    assert [len(found["now"]), len(found["then"])] == [3, 5]
    low, point, high = found["now_interval"]
    assert low < point < high
    assert point == pytest.approx(result.throughput, rel=1e-5)
    assert found["then_interval"][1] == pytest.approx(result.baseline_throughput, rel=1e-5)
    assert found["tolerance"] == 0.05
    assert rounds(make_result(Ending.SKIPPED), 60) is None


def test_thinning_keeps_both_ends():
    assert thinned(range(100), 3) == [0, 50, 99]
    assert thinned(range(3), 3) == range(3)
    assert thinned(range(9), 1) == range(1)


def series(result, count=60, **more):
    made = nights(result, **more)[-count:]
    return trend([SimpleNamespace(at=at, session="s", revision="", throughput=v) for at, v in made])


def test_history_knows_where_it_changed_and_shares_its_nights():
    result, shared = make_result(), {}
    found = past(result, series(result, step_at=41), shared)
    (change,) = found["changes"]
    assert change["index"] == 41
    assert change["text"].endswith("slower")
    assert len(shared) == len(found["nights"]) == 60
    past(make_result(name="test_other"), series(result), shared)
    assert len(shared) == 60
    assert past(result, series(result, 1), {}) is None
    assert past(result, None, {}) is None


def test_what_is_too_short_to_say_is_not_called_unchanged():
    result = make_result()
    assert past(result, series(result, 11), {})["unchanged"].startswith("too short to say")
    assert past(result, series(result, 12, step_at=None), {})["unchanged"] == "no change"


def test_a_session_that_the_history_does_not_count_says_why():
    result = make_result()
    slowed = tuple(replace(run, metrics={"slowdown_felt": 0.3}) for run in result.runs)
    assert past(result, series(result), {})["left_out"] == ""
    assert "slowed on purpose" in past(replace(result, runs=slowed), series(result), {})["left_out"]
    assert "not valid" in past(replace(result, status=Outcome.INVALID), series(result), {})["left_out"]


def test_a_sweep_is_drawn_with_the_published_figures_that_stand_beside_it():
    (plot,) = sweeps(a_sweep(), ())
    assert plot["title"] == "Throughput over batch size: resnet50 train"
    (line,) = plot["lines"]
    assert [size for size, _, _ in line["points"]] == [16, 32, 64, 128, 256, 512, 1024]
    assert [curve["name"] for curve in plot["published"]] == [
        "gh200 (CARAML, ResNet50)",
        "a100 (CARAML, ResNet50)",
    ]
    assert plot["published"][0]["points"][-1][2] == "approximate"


def figure(
    size: int, value: float, *, model: str = "resnet50", platform: str = "gc200", unit: str = "images/s"
) -> Figure:
    return Figure(
        id=f"caraml/{model}/{size}/{platform}",
        table="1",
        row=str(size),
        platform=platform,
        workload=f"{model} training",
        configuration={"model": model, "batch_size": size},
        metric="throughput",
        unit=unit,
        value=value,
    )


def test_a_whole_published_curve_is_drawn_once_behind_its_model():
    beside = a_sweep()[0].references[0].value
    figures = [
        figure(16, 1827.7),
        figure(4096, 1891.6),
        figure(16, 9.0, model="vit"),
        figure(32, 9.0, model="vit"),
    ]
    figures += [figure(16, beside, platform="gh200"), figure(8, 900.0, platform="gh200")]
    one = replace(a_sweep()[0], references=a_sweep()[0].references[:1])
    (plot,) = sweeps([one, replace(a_sweep()[1], references=())], figures)
    names = {curve["name"]: [size for size, _, _ in curve["points"]] for curve in plot["published"]}
    assert names == {
        "gc200 (caraml, resnet50 training)": [16, 4096],
        "gh200 (caraml, resnet50 training)": [8, 16],
    }


def test_lines_of_one_workload_are_told_apart_by_what_differs():
    results = [
        replace(each, configuration={**each.configuration, "precision": precision})
        for each in a_sweep()
        for precision in ("bf16", "fp16")
    ]
    (plot,) = sweeps(results, ())
    assert [line["name"] for line in plot["lines"]] == ["gh200, precision=bf16", "gh200, precision=fp16"]


def test_scaling_begins_at_the_smaller_platform():
    (plot,) = scalings(scaled())
    assert [[x, y] for x, y, _ in plot["lines"][0]["points"]] == [[1, 1.0], [4, 0.93]]


def test_energy_is_compared_within_one_unit_only():
    tokens = make_result(name="test_gpt", unit="tokens")
    assert energies([make_result(), tokens]) == []
    (plot,) = energies([make_result(), make_result(name="test_other"), tokens])
    assert (plot["unit"], len(plot["points"])) == ("images", 2)


def test_nothing_is_said_where_there_is_nothing_to_plot():
    assert session_plots([make_result(Ending.SKIPPED), make_result(configuration={})], ()) == []
    assert 'id="plots"' not in render_page(make_session([make_result(Ending.SKIPPED)]), plotly_js=LIBRARY)


# --- one file, and nothing from outside in it ------------------------------------------------------------


def test_the_page_asks_for_nothing_and_runs_its_own_scripts_only():
    page = read(make_result())
    runnable = [text for attributes, text in page.scripts if "type" not in attributes]
    (script,) = runnable
    hashes = {
        f"'sha256-{base64.b64encode(hashlib.sha256(s).digest()).decode()}'"
        for s in (script.encode(), LIBRARY)
    }
    directives = {name: set(rest) for name, *rest in (part.split() for part in page.policy.split(";"))}
    assert directives["script-src"] == hashes
    assert directives["default-src"] == {"'none'"}
    assert not {"link", "img", "iframe", "base", "form"} & set(page.tags)
    assert not {name for name in page.attributes if name.startswith("on") or name in {"src", "style"}}
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", script)
    packed = next(text for attributes, text in page.scripts if attributes.get("id") == "library")
    assert gzip.decompress(base64.b64decode(packed)) == LIBRARY


def test_hostile_names_are_text_and_survive_as_they_are():
    text = render_page(
        make_session(hostile(), remarks=HOSTILE, host=HOSTILE[0], revision=HOSTILE[1]), plotly_js=LIBRARY
    )
    page = Read(text)
    assert not {"b", "img"} & set(page.tags)
    assert len(page.scripts) == 3
    assert {row["name"] for row in page.data["table"]["rows"]} == {f"test_x[{name}]" for name in HOSTILE}
    assert HOSTILE[0] in page.text
    assert "$plotly $data" in unescape(text)
    text.encode("utf-8")


def test_half_a_surrogate_pair_does_not_break_the_page():
    page = render_page(
        make_session([make_result(Outcome.REGRESSED, name="test_\ud800", text="\udfff")]), plotly_js=LIBRARY
    )
    page.encode("utf-8")
    assert Read(page).data["table"]["rows"][0]["name"] == "test_\ud800"


def test_the_same_session_gives_the_same_page():
    assert render_page(make_session(), plotly_js=LIBRARY) == render_page(make_session(), plotly_js=LIBRARY)


def test_a_page_that_grows_too_large_draws_less_and_says_so(monkeypatch):
    session = make_session([make_result(Outcome.REGRESSED, name=f"test_{i}", rounds=60) for i in range(20)])
    whole = render_page(session, plotly_js=LIBRARY)
    assert Read(whole).data["thinned"] == ""
    monkeypatch.setattr(document, "MAX_BYTES", int(len(whole) * 0.7))
    smaller = render_page(session, plotly_js=LIBRARY)
    assert len(smaller) < 0.7 * len(whole)
    assert "rounds of a run are drawn" in Read(smaller).data["thinned"]
    monkeypatch.setattr(document, "MAX_BYTES", 1)
    least = Read(render_page(session, plotly_js=LIBRARY)).data
    assert "left out" in least["thinned"]
    assert len(least["table"]["rows"]) == 20
    assert least["rounds"] == [None] * 20


# --- the library, and the file ---------------------------------------------------------------------------


def test_without_plotly_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(plotly, "find_spec", lambda name: None)
    with pytest.raises(ReportError, match=r"pip install 'pytest-accel\[report\]'"):
        read_plotly_js()


def test_a_plotly_without_its_script_is_named(monkeypatch, tmp_path):
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(plotly, "find_spec", lambda name: found)
    with pytest.raises(ReportError, match="has no script"):
        read_plotly_js()


def test_a_history_and_studies_that_cannot_be_read_cost_their_plots_alone(monkeypatch, tmp_path):
    monkeypatch.setattr("pytest_accel.report.page.writing.read_plotly_js", lambda: LIBRARY)
    (tmp_path / "history.sqlite").write_text("no database")
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "nrp.json").write_text("{")
    out = tmp_path / "deep" / "report.html"
    write_page(
        out,
        make_session([make_result()]),
        history=tmp_path / "history.sqlite",
        published=tmp_path / "published",
    )
    said = Read(out.read_text()).text
    assert "1 benchmark ok" in said
    assert "history.sqlite" in said
    assert "nrp.json" in said


def test_no_history_is_no_problem(monkeypatch, tmp_path):
    monkeypatch.setattr("pytest_accel.report.page.writing.read_plotly_js", lambda: LIBRARY)
    write_page(
        tmp_path / "report.html", make_session([make_result()], remarks=()), history=tmp_path / "none.sqlite"
    )
    assert 'class="remark"' not in (tmp_path / "report.html").read_text()
