"""The HTML page: its content, its size, and that no text from outside becomes markup. tests/browser tests its look."""

import base64
import gzip
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from pytest_accel.report import page as document
from pytest_accel.report.page import read_plotly_js, render_page, write_report
from pytest_accel.report.page.plots import past, rounds, sweeps
from pytest_accel.report.page.rows import picture
from pytest_accel.report.terminal import changed, line_of
from pytest_accel.report.verdicts import VERDICTS, headline_of
from pytest_accel.stats.causes import Cause
from pytest_accel.stats.gate import Estimate, Outcome, Verdict
from pytest_accel.stats.quantities import si
from pytest_accel.stats.results import Ending, ReferenceFigure, ReportLine
from tests.support.kernels import lost_attention
from tests.support.results import FINDINGS, a_sweep, make_result, make_session, nights

LIBRARY = b"window.Plotly = {};"


class Read(HTMLParser):
    """The page as a browser reads it: texts outside scripts, scripts and elements."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.texts, self.scripts, self.tags = [], [], []
        self.ids: set[str] = set()
        self.inside = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        found = dict(attrs)
        self.ids.add(found.get("id", ""))
        self.inside = tag if tag in {"script", "style"} else ""
        if tag == "script":
            self.scripts.append([found, ""])

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

    def cells(self, row: int = 0) -> dict:
        table = self.data["table"]
        keys = (column["key"] for column in table["columns"])
        return dict(zip(keys, table["rows"][row]["cells"], strict=True))


def read(*results, **more) -> Read:
    return Read(render_page(make_session(results, **more), plotly_js=LIBRARY))


def details(result) -> dict:
    (found,) = read(result).data["details"]
    return found


def words(result) -> list[str]:
    return [line[0] for line in details(result)["lines"]]


# --- the headline -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "exit_status", "tone", "text"),
    [
        ([Outcome.OK, Outcome.OK], 0, "good", "2 benchmarks: 2 ok"),
        ([Outcome.OK, Ending.SKIPPED], 0, "good", "2 benchmarks: 1 ok, 1 skipped"),
        ([Ending.RECORDED], 0, "good", "1 benchmark: 1 recorded"),
        ([Outcome.OK, Ending.NOT_GATED], 0, "warn", "None failed; 1 of 2 benchmarks needs attention"),
        ([Outcome.OK, Outcome.REGRESSED], 1, "bad", "1 of 2 benchmarks failed"),
        ([Outcome.OK, Outcome.VANISHED], 0, "warn", "None failed; 1 of 2 benchmarks needs attention"),
        ([Ending.SKIPPED, Ending.SKIPPED], 0, "warn", "Nothing was measured: 2 skipped"),
        ([], 0, "warn", "Nothing was measured: no benchmark was found"),
        ([Outcome.OK], 2, "bad", "The session ended with status 2: it was interrupted"),
        (
            [Outcome.OK],
            1,
            "bad",
            "No benchmark failed, but the session did: another test, or a figure it was to reach",
        ),
    ],
)
def test_headline_is_green_only_where_something_was_measured_and_all_is_fine(
    statuses, exit_status, tone, text
):
    session = make_session([make_result(status) for status in statuses], exit_status=exit_status)
    headline = headline_of(session)
    assert (headline.tone, headline.text) == (tone, text)


def test_headline_shows_figures_of_both_sides_the_verdict_and_what_changed():
    result = make_result(Outcome.REGRESSED)
    page = read(result)
    numbers = f"{si(result.baseline_throughput)} → {si(result.throughput)} images/s"
    assert f"gh200 {numbers} {result.text}" in page.text
    assert "cuDNN 9.10.2 → 9.19.0" in page.text
    assert "note: rank 2" in page.text
    assert page.cells()["baseline"] == [si(result.baseline_throughput), result.baseline_throughput]
    other = make_result(Outcome.REGRESSED, name="test_b", changes=())
    assert "cuDNN 9.10.2 → 9.19.0 (1 of 2)" in read(result, other).text


def test_unchanged_environment_is_reported_below_a_loss():
    same = "Nothing in the recorded environment changed since the baseline."
    assert same in read(make_result(Outcome.REGRESSED, changes=())).text
    assert same in read(make_result(Outcome.INCONCLUSIVE, changes=())).text
    assert same not in read(make_result(Outcome.REGRESSED)).text
    assert same not in read(make_result(changes=())).text
    assert same not in read(make_result(Ending.FAILED, changes=())).text


def test_doctor_problems_are_in_the_headline_of_a_loss():
    line = "Doctor : GPU 0 power limit: 550 W, below its default of 700 W; governor: schedutil"
    assert line in read(make_result(Outcome.REGRESSED)).text
    assert line not in read(make_result()).text
    many = tuple({**FINDINGS[0], "of": f"GPU {number}"} for number in range(8))
    assert "; and 5 more" in read(make_result(Outcome.REGRESSED), findings=many).text


def test_first_failures_are_shown_and_the_others_unfold():
    page = read(*(make_result(Outcome.REGRESSED, name=f"test_{i}") for i in range(9)))
    assert "9 of 9 benchmarks failed" in page.text
    shown, _, unfolded = page.text.partition("and 3 more")
    assert (shown.count("(at least"), unfolded.count("(at least")) == (6, 3)


def test_attention_group_has_one_explanation_one_command_and_every_name():
    page = read(make_result(), *(make_result(Outcome.NO_BASELINE, name=f"test_{name}") for name in "abcde"))
    names = " ".join(f"bench_suites/test_cnn.py::test_{name}" for name in "abcde")
    assert f"pytest {names} -m 'gh200 or gh200x4' --accel-record" in page.text
    said = page.text.partition("Needs attention")[2].partition("pytest ")[0]
    assert "Record it with --accel-record. test_a , test_b , test_c and 2 more test_d , test_e" in said
    assert said.count("Nothing is stored for it") == 1


def test_inconclusive_results_are_grouped_by_what_would_decide_them():
    noisy = make_result(Outcome.INCONCLUSIVE)
    many = [replace(noisy, benchmark=f"test_cnn.py::test_{number}") for number in range(5)]
    cut_short = replace(noisy.verdict, wants_another_run=True, runs=2)
    interrupted = make_result(name="test_cut", status=Outcome.INCONCLUSIVE)
    interrupted = replace(interrupted, verdicts=(cut_short,), lines=(line_of(cut_short),))
    upgraded = make_result(Outcome.INCONCLUSIVE, name="test_upgraded", text="too noisy: --blocks 9")
    said = read(*many, interrupted, upgraded).text.partition("Needs attention")[2]
    said = said.partition("Benchmarks")[0]
    assert said.count(VERDICTS[Outcome.INCONCLUSIVE].meaning) == 1
    assert (
        said.count("Quieten the machine (pytest-accel doctor), or tolerate what its noise resolves: test_0")
        == 1
    )
    assert "and 2 more test_3" in said
    assert said.count(noisy.text.rpartition(": ")[0]) == 5
    assert "Another run may decide it, and it was not measured again: test_cut " in said
    assert "test_upgraded too noisy: --blocks 9" in said


def test_text_between_backticks_is_code_and_nothing_else_is_markup():
    finding = {**FINDINGS[0], "remedy": "`nvidia-smi -pl 700` as root, not `<b>` or a lone ` sign"}
    result = make_result(Ending.FAILED, text="`step` said `<i>no</i>`")
    text = render_page(make_session([result], findings=(finding,), remarks=("`a` b",)), plotly_js=LIBRARY)
    for code in ("nvidia-smi -pl 700", "&lt;b&gt;", "step", "&lt;i&gt;no&lt;/i&gt;", "a"):
        assert f"<code>{code}</code>" in text
    assert "or a lone ` sign" in text


def test_every_outcome_of_the_page_is_explained_on_it():
    results = [make_result(status) for status in (Outcome.REGRESSED, Outcome.OK, Ending.SKIPPED)]
    page = read(*results)
    explained = page.text.partition(" Outcomes ")[2]
    for result in results:
        row = VERDICTS[result.status]
        assert f"{row.word} {row.meaning}" in explained
        assert f"about-{result.status.value}" in page.ids
    assert VERDICTS[Outcome.INVALID].meaning not in explained


def test_unknown_findings_are_not_counted_as_ok():
    unknown = {"group": "cpu", "subject": "governor", "level": "ok", "text": "no cpufreq", "known": False}
    page = read(make_result(), findings=(*FINDINGS, unknown))
    doctor = page.text[page.text.index("Doctor") :]
    assert doctor.index("power limit") < doctor.index("2 ok, 1 unknown") < doctor.index("ECC")
    assert "sudo nvidia-smi -i 0 -pl 700" in doctor


def test_credential_on_the_command_line_is_redacted():
    page = read(make_result(), command=("bench_suites", "--token=ghp_0123456789abcdefABCDEF0123456789"))
    assert "ghp_" not in page.text
    assert "<redacted>" in page.text


def test_loss_with_kernel_tables_has_a_waterfall_and_its_table():
    result = lost_attention()
    found = details(result)["kernels"]
    (first, then_ms), *bars, (last, now_ms) = found["bars"]
    assert (first, last) == ("baseline", "now")
    assert sum(value for _, value in bars) == pytest.approx(now_ms - then_ms)
    assert found["rows"][0][0] == "attention backward"
    assert "kernels" not in details(make_result(Outcome.REGRESSED))


def test_failure_on_top_has_its_first_cause_with_its_share():
    result = make_result(Outcome.REGRESSED)
    assert "explains" not in read(result).text
    cause = Cause(
        kind="kernels", text="softmax 1 ms -> 1.5 ms a step", explained=result.verdict.slowdown.point
    )
    assert "softmax 1 ms -> 1.5 ms a step: explains" in read(replace(result, causes=(cause,))).text


# --- the table and the details --------------------------------------------------------------------------


def test_cells_have_the_terminals_text_and_a_value_to_sort_by():
    result = make_result(Outcome.REGRESSED)
    cells = read(result).cells()
    assert cells["verdict"][0] == "REGRESSED"
    assert cells["throughput"] == [f"{si(result.throughput)} images/s", result.throughput]
    assert cells["change"][0] == changed(result.verdict.slowdown.point)
    assert list(read(make_result(Ending.SKIPPED)).cells()) == ["verdict", "benchmark", "platform", "suite"]


def test_picture_of_a_change_has_worse_to_the_left_and_stays_inside():
    def of(low, point, high):
        found = Estimate(point=point, low=low, high=high)
        return picture(Verdict(outcome=Outcome.OK, tolerance=0.05, slowdown=found))

    assert of(-0.01, 0.0, 0.01) == [0.467, 0.5, 0.533, 0.333, 0.667]
    assert of(0.5, 0.7, 0.9)[:3] == [0.0, 0.0, 0.0]
    assert of(-9.0, -8.0, -7.0)[:3] == [1.0, 1.0, 1.0]
    assert picture(Verdict(outcome=Outcome.NO_BASELINE, tolerance=0.05)) is None


SHORTFALL = "6,714 images/s is 25.4 % below the 9,000 of olivia/x"


def a_reference(**more):
    known = {"id": "olivia/x", "source": "Olivia", "platform": "gh200", "metric": "throughput"}
    return ReferenceFigure(**{**known, "unit": "images/s", "value": 9000.0, "ratio": 0.74, **more})


def test_missed_reference_is_reported_once_and_beside_the_verdict():
    missed = a_reference(gated=True, shortfall=SHORTFALL, expected=True, source="pyproject.toml")
    result = make_result()
    references = (a_reference(differs="batch size 256 there, 32 here", flags=("approximate",)), missed)
    shortfall = ReportLine(text=SHORTFALL, status=Ending.FAILED)
    result = replace(
        result, status=Ending.FAILED, failed=True, references=references, lines=(shortfall, *result.lines)
    )
    page = read(result)
    assert page.text.count(SHORTFALL) == 1
    found = details(result)
    assert json.dumps(found, ensure_ascii=False).replace("\u00a0", " ").count(SHORTFALL) == 1
    assert words(result) == ["FAILED", "ok"]
    assert [each["gate"] for each in found["references"]] == ["", "missed"]
    assert found["references"][0]["doubts"] == "batch size 256 there, 32 here; approximate"
    assert page.cells()["reference"] == ["0.74 x gh200", 0.74, ""]
    assert page.data["table"]["rows"][0]["tone"] == "good"  # against its baseline it is fine
    assert "numbers" not in found


def decided_by_a_metric(**more):
    """Its throughput is an open question, and a metric regressed."""
    result = make_result(name="test_fed")
    open_question = replace(result.verdict, outcome=Outcome.INCONCLUSIVE, wants_another_run=True)
    share = Verdict(
        outcome=Outcome.REGRESSED,
        tolerance=0.05,
        of="loader_efficiency",
        slowdown=Estimate(point=0.323, low=0.3, high=0.34),
        runs=2,
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
        lines=(line_of(share),),
        runs=with_share(result.runs * 3, 0.9, 0.98, 0.99),
        baseline=with_share(result.baseline, 1.4, 1.5, 1.52, 1.53, 1.6),
        verdicts=(open_question, share),
        **more,
    )


def test_metric_that_decided_is_what_row_and_headline_show():
    result = decided_by_a_metric()
    page = read(result, findings=())
    assert page.cells()["change"] == ["loader_efficiency 32.3 % lower", 0.323, "1.52 → 0.98"]
    assert page.data["table"]["rows"][0]["picture"] == picture(result.verdicts[1])
    assert "test_fed gh200 loader_efficiency 1.52 → 0.98 loader_efficiency: 32.3 % lower" in page.text
    assert page.text.count(result.text) == 1


def test_traceback_is_one_text():
    lines = ("    def test_x():", "", ">       raise ValueError", "E       ValueError")
    result = make_result(Ending.FAILED, traceback=lines)
    assert details(result)["note"] == "\n".join(lines)


def test_failed_teardown_is_a_failure_beside_a_good_verdict():
    torn = ReportLine(text="torn down: OSError: gone", status=Ending.FAILED)
    result = make_result(failed=True, traceback=("conftest.py:3: OSError",))
    result = replace(result, lines=(torn, *result.lines))
    page = read(result)
    assert "FAILED test_cnn[resnet50-bf16-256] gh200" in page.text
    assert page.text.count("torn down: OSError: gone") == 1
    assert words(result) == ["FAILED", "ok"]
    assert details(result)["note"] == "conftest.py:3: OSError"


def test_notes_are_lines_and_drifting_steps_a_badge():
    result = make_result(steady=False, notes=("steps still drifted",))
    assert read(result).data["table"]["rows"][0]["unsteady"] is True
    assert words(result) == ["ok", "note"]


# --- plots ----------------------------------------------------------------------------------------------


def test_rounds_are_throughputs_of_both_sides_with_intervals():
    result = make_result(Outcome.REGRESSED)
    found = rounds(result)
    long = rounds(make_result(Outcome.REGRESSED, rounds=90))
    assert {len(run["rounds"]) for run in long["now"]} == {40}
    assert [len(found["now"]), len(found["then"])] == [3, 5]
    low, point, high = found["now_interval"]
    assert low < point < high
    assert point == pytest.approx(result.throughput, rel=1e-5)
    assert found["then_interval"][1] == pytest.approx(result.baseline_throughput, rel=1e-5)
    assert rounds(make_result(Ending.SKIPPED)) is None


def series(result, count=60, **more):
    made = nights(result, **more)[-count:]
    return [SimpleNamespace(at=at, session="s", revision="", throughput=v) for at, v in made]


def test_history_shows_where_it_changed_and_shares_its_nights():
    result, shared = make_result(), {}
    found = past(result, series(result, step_at=41), shared)
    (change,) = found["changes"]
    assert (change["index"], change["text"].split()[-1]) == (41, "slower")
    past(make_result(name="test_other"), series(result), shared)
    assert len(shared) == len(found["nights"]) == 60
    assert past(result, series(result, 1), {}) is None
    assert past(result, (), {}) is None


def test_sweep_is_drawn_with_the_published_figures_beside_it():
    (plot,) = sweeps(a_sweep())
    assert plot["title"] == "Throughput over batch size: resnet50 train"
    (line,) = plot["lines"]
    sizes = [16, 32, 64, 128, 256, 512, 1024]
    assert [[size for size, _, _ in line[side]] for side in ("points", "then")] == [sizes, sizes]
    stored = [each.baseline_throughput for each in a_sweep()]
    assert [value for _, value, _ in line["then"]] == pytest.approx(stored, rel=1e-5)
    (plot,) = sweeps(
        [replace(each, baseline=()) if each.name.endswith("[16]") else each for each in a_sweep()]
    )
    assert [size for size, _, _ in plot["lines"][0]["then"]] == sizes[1:]
    (plot,) = sweeps(a_sweep())
    assert [curve["name"] for curve in plot["published"]] == [
        "gh200 (CARAML, ResNet50)",
        "a100 (CARAML, ResNet50)",
    ]
    assert plot["published"][0]["points"][-1][2] == "approximate"
    other = [replace(each, configuration={**each.configuration, "precision": "fp16"}) for each in a_sweep()]
    (plot,) = sweeps([*a_sweep(), *other])
    assert [line["name"] for line in plot["lines"]] == ["gh200, precision=bf16", "gh200, precision=fp16"]


def test_page_without_a_sweep_has_no_plots_across_benchmarks():
    assert 'id="plots"' not in render_page(make_session([make_result(Ending.SKIPPED)]), plotly_js=LIBRARY)


# --- one file, and nothing from outside in it -----------------------------------------------------------


def test_page_requests_nothing():
    page = read(make_result())
    (script,) = (text for attributes, text in page.scripts if "type" not in attributes)
    assert not {"link", "img", "iframe", "base", "form"} & set(page.tags)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", script)
    packed = next(text for attributes, text in page.scripts if attributes.get("id") == "library")
    assert gzip.decompress(base64.b64decode(packed)) == LIBRARY


def test_markup_in_a_text_stays_a_text():
    name = "</script><script>x</script>"
    page = read(make_result(Outcome.REGRESSED, name=f"test_x[{name}]", text="<b>&lt;"), host="<img src=x>")
    assert not {"b", "img"} & set(page.tags)
    assert len(page.scripts) == 3
    assert page.data["table"]["rows"][0]["name"] == f"test_x[{name}]"
    assert all(text in page.text for text in ("<b>&lt;", "<img src=x>"))


# --- the libraries, and the file ------------------------------------------------------------------------


def test_missing_library_is_reported_with_its_remedy(monkeypatch):
    monkeypatch.setattr(document, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"The page needs jinja2 and plotly: pip install jinja2 plotly"):
        read_plotly_js()


def test_unreadable_history_costs_its_plots_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(document, "read_plotly_js", lambda: LIBRARY)
    (tmp_path / "history.sqlite").write_text("no database")
    out = tmp_path / "deep" / "report.html"
    session = make_session([make_result()], remarks=())
    write_report(out, session, history=tmp_path / "history.sqlite")
    assert all(part in Read(out.read_text()).text for part in ("1 benchmark: 1 ok", "history.sqlite"))
    write_report(out, session, history=tmp_path / "none.sqlite")
    assert 'class="remark"' not in out.read_text()
