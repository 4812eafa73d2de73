"""Markdown: failures first, nothing left out without a note, and no text from outside that becomes markup."""

import html
import os
import re
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_accel.report.markdown import (
    ITEMS,
    ROWS,
    STEP_BYTES,
    append_step_summary,
    code,
    fenced,
    prose,
    render_summary,
)
from pytest_accel.report.verdicts import needs_attention, status_word
from pytest_accel.stats.environment import Change
from pytest_accel.stats.gate import Estimate, Outcome, Verdict
from pytest_accel.stats.quantities import printable
from pytest_accel.stats.results import Ending, ReportLine
from tests.support.markdown_page import OURS, Page
from tests.support.results import HOSTILE, hostile, make_result, make_session, many

anything = st.text(max_size=60) | st.text(alphabet="`|\\<>*_[]()!#@$~&:-+=1. \n\tah/", max_size=40)


@pytest.mark.parametrize("status", [*Outcome, *Ending], ids=lambda status: status.value)
def test_every_status_is_shown_and_what_needs_attention_listed(status):
    result = replace(make_result(status), failed=False)
    page = render_summary(make_session([result]))
    assert status_word(result) in page
    assert needs_attention(result) == ("### Needs attention" in page)


def test_sections_of_a_whole_session():
    session = make_session()
    page = render_summary(session)
    lines = page.splitlines()
    failed, all_of_them = len(session.failures), len(session.results)
    assert lines[0].startswith(f"## {failed} of {all_of_them} benchmarks failed: 2 REGRESSED, ")
    first = next(line for line in lines if line.startswith("- "))
    assert first.startswith("- **REGRESSED** `test_")
    assert "run-to-run noise" in first
    order = ["### Changed since", "### Needs attention", "### The machine", "### Verdicts", "<details>"]
    places = [page.index(each) for each in [*order, "### Reproduce"]]
    assert places == sorted(places)
    assert re.search(r"<summary>\d+ ok, 1 skipped, 1 recorded</summary>", page)
    assert "needs 4 devices, this machine has 1" in page  # a skip is never without its reason
    assert "1.64 x CARAML, ResNet50 (gh200)" in page
    assert "- **problem** GPU 0 power limit: 550 W, below its default of 700 W" in page
    assert "  - sudo nvidia-smi -i 0 -pl 700" in page
    assert "ECC" not in page  # doctor's ok is nobody's concern here
    assert "pytest bench_suites -m 'gh200 or gh200x4'" in page
    assert page.count("| container image |") == 1  # every distinct difference once
    assert page.count("| driver |") == 2  # one benchmark saw other changes than the rest
    assert set(Page(page).tags) <= OURS


def test_missed_reference_and_metric_are_further_lines_of_a_failure():
    result = make_result(Outcome.REGRESSED, failed=True)
    lost = Estimate(point=0.031, low=0.02, high=0.04)
    accuracy = Verdict(outcome=Outcome.REGRESSED, tolerance=0.01, slowdown=lost, of="accuracy")
    more = (
        ReportLine(text="25.0 % below Olivia, Test 1", status=Ending.FAILED),
        ReportLine(text="3.1 % lower", status=Outcome.REGRESSED, of="accuracy"),
    )
    page = render_summary(make_session([replace(result, lines=(*result.lines, *more), verdicts=(accuracy,))]))
    assert "1 of 1 benchmark failed: 1 REGRESSED" in page
    assert "  - 25.0 % below Olivia, Test 1" in page
    assert "  - accuracy: 3.1 % lower" in page
    assert "| accuracy 3.1 % lower |" in page


def test_unchanged_environment_is_reported_of_failures_only():
    words = "nothing in the recorded environment"
    assert words in render_summary(make_session([make_result(Outcome.REGRESSED, changes=())]))
    assert words not in render_summary(make_session([make_result(changes=())]))


def test_absent_value_differs_from_an_empty_one():
    changes = (Change(name="env.A", old=None, new=""), Change(name="env.B", old="x|y", new="`"))
    page = render_summary(make_session([make_result(Outcome.REGRESSED, changes=changes)]))
    assert "| A | absent | empty |" in page
    assert "| B | `x\\|y` | `` ` `` |" in page


@pytest.mark.parametrize(("count", "folded"), [(10, False), (11, True)])
def test_many_that_are_ok_are_folded(count, folded):
    page = render_summary(make_session(make_result(name=f"test_{n}") for n in range(count)))
    assert (f"<details><summary>{count} ok</summary>" in page) is folded


def test_same_name_in_two_files_has_its_path():
    results = [make_result(file="a/test_a.py"), make_result(file="b/test_b.py")]
    page = render_summary(make_session(results))
    assert "`a/test_a.py::test_cnn[resnet50-bf16-256]`" in page
    assert "`b/test_b.py::test_cnn[resnet50-bf16-256]`" in page


def test_traceback_is_fenced():
    page = render_summary(
        make_session([make_result(Ending.FAILED, traceback=("E   ```", "E   boom @everyone"))])
    )
    assert "  ````text\n  E   ```\n  E   boom @everyone\n  ````" in page


def test_secrets_of_the_command_line_are_not_repeated():
    page = render_summary(make_session(command=("-o", "--token=abcdefgh12345678", "bench_suites")))
    assert "abcdefgh" not in page
    assert "pytest -o '--token=<redacted>' bench_suites" in page


def test_hostile_names_are_shown_and_not_obeyed():
    page = Page(render_summary(make_session(hostile())))
    assert set(page.tags) <= OURS
    assert len(set(page.cells)) <= 2  # of the diff, and of the verdicts: no row grew a cell
    for text in HOSTILE:
        if len(text) < 100:
            assert printable(f"test_x[{text}]") in page.text


@settings(max_examples=40)  # a whole page each
@given(st.lists(anything, min_size=1, max_size=2))
def test_any_text_anywhere_gives_our_own_page(texts):
    results = [
        make_result(
            status,
            name=text,
            platform=text,
            unit=text,
            text=text,
            notes=(text,),
            traceback=(text,),
            rounds=6,
            changes=(Change(name=text, old=text, new=None),),
        )
        for text in texts
        for status in (Outcome.REGRESSED, Ending.FAILED)
    ]
    text = texts[0]
    finding = {"level": "problem", "subject": text, "text": text, "remedy": text}
    session = make_session(
        results, host=text, revision=text, command=(text,), remarks=(text,), findings=(finding,)
    )
    rendered = render_summary(session)
    rendered.encode("utf-8")
    assert set(Page(rendered).tags) <= OURS


def test_left_out_failures_and_rows_are_counted():
    made = make_result(Outcome.REGRESSED, runs=(), baseline=())
    results = [replace(made, benchmark=f"a.py::test_{number}") for number in range(ROWS + 1)]
    page = render_summary(make_session(results))
    assert page.startswith(f"## {ROWS + 1} of {ROWS + 1} benchmarks failed")
    assert page.count("- **REGRESSED** ") == ITEMS
    assert f"**{ROWS + 1 - ITEMS} more benchmarks are left out here" in page
    assert "**1 more rows are left out here" in page


# --- escaping ----------------------------------------------------------------------------------------

APART = "\u200b"
LINKED = [
    "@octocat",
    "#123",
    "owner/repo#12",
    "!45",
    "~label",
    "%7",
    "&9",
    "$8",
    "^alert",
    ":tada:",
    "GH-12",
    "gl-3",
]
ADDRESSES = ["https://x.example", "www.x.example", "me@x.example"]


@given(anything.filter(str.strip))
def test_code_shows_just_the_name(text):
    page = Page(f"x {code(text)} y")
    assert page.tags == ["p", "code"]
    assert page.text == f"x {printable(text)} y\n"


@given(anything.filter(str.strip))
@example("a|b \\|` c \\\\| d")
def test_code_in_a_table_stays_in_its_cell(text):
    page = Page(f"| a | b |\n|---|---|\n| {code(text, in_table=True)} | y |\n")
    assert page.cells == [2, 2]
    assert printable(text) in page.text
    assert set(page.tags) <= OURS


@given(anything)
@example("~~gone~~ *a* __b__ [c](d) ![e](f) <g> `h` \\")
@example("1. first")
@example("12) twelfth")
@example("> quoted")
@example("# title")
@example("- point")
@example("+ point")
@example("===")
def test_prose_reads_like_the_text_wherever_it_stands(text):
    said = printable(" ".join(text.split()))
    for before, after, tags in (("", "", ["p"]), ("- ", "", ["ul", "li"])):
        page = Page(f"{before}{prose(text)}{after}")
        assert page.text.replace(APART, "").strip() == said.replace(APART, "").strip()
        assert [tag for tag in page.tags if tag != "span"] == (tags if said.strip() or before else [])


@given(anything.filter(str.strip))
@example("a | b | c")
@example("a \\| b")
def test_prose_stays_in_its_cell(text):
    page = Page(f"| a | b |\n|---|---|\n| {prose(text)} | y |\n")
    assert page.cells == [2, 2]
    assert printable(" ".join(text.split())).replace(APART, "").strip() in page.text.replace(APART, "")
    assert set(page.tags) <= OURS


@pytest.mark.parametrize("text", [*LINKED, *ADDRESSES])
def test_what_the_forge_would_link_is_taken_apart(text):
    shown = html.unescape(re.sub("</?span>", "", prose(f"see {text} there")).replace("\\", ""))
    assert text not in shown
    assert shown.replace(APART, "") == f"see {text} there"


@pytest.mark.parametrize(
    "text", ["7.1 % slower (at least 4.6 %; tolerance 5.0 %), 2 runs", "cuDNN 9.10 -> 9.19, batch_size 5"]
)
def test_our_own_words_are_not_cluttered(text):
    assert prose(text) == text


@given(st.lists(anything, max_size=4))
def test_fence_holds_everything(lines):
    page = Page("\n".join([*fenced(lines), "", "after"]))
    assert page.tags == ["pre", "code", "p"]
    assert page.text.endswith("after\n")


# --- the summary of a step on GitHub --------------------------------------------------------------------------


def step(path):
    return {"GITHUB_STEP_SUMMARY": str(path)}


def test_step_summary_is_appended(tmp_path):
    path = tmp_path / "step.md"
    path.write_text("before")
    assert append_step_summary(step(path), "## ours\n") == ""
    assert append_step_summary(step(path), "## again \udc80\n") == ""
    assert path.read_text() == "before\n\n## ours\n\n\n## again \\udc80\n"


def test_step_summary_that_has_no_room_is_its_headline(tmp_path):
    path = tmp_path / "step.md"
    path.write_text("x" * (STEP_BYTES - 20_000))
    text = render_summary(make_session(many(300, rounds=6)))
    warning = append_step_summary(step(path), text)
    assert path.stat().st_size <= STEP_BYTES
    headline, _, note, *_ = path.read_text().lstrip("x\n").splitlines()
    assert headline == text.splitlines()[0]
    assert "GitHub shows 1 MiB a step" in note
    assert "--accel-report writes all of it" in warning


def test_full_step_is_left_as_it_is(tmp_path):
    path = tmp_path / "step.md"
    path.write_text("x" * STEP_BYTES)
    assert "is left out" in append_step_summary(step(path), "ours")
    assert path.stat().st_size == STEP_BYTES


@pytest.mark.parametrize("what", ["missing", "folder", "fifo", "null"])
def test_step_summary_that_cannot_be_written_is_a_warning(tmp_path, what):
    path = tmp_path / "step.md"
    if what == "folder":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)  # that nobody reads: must not wait
    name = f"{path}\0" if what == "null" else str(path)
    warning = append_step_summary({"GITHUB_STEP_SUMMARY": name}, "x")
    assert warning.startswith(f"GITHUB_STEP_SUMMARY={name}: the summary cannot be written: ")
    assert warning.endswith("--accel-report writes it elsewhere.")
