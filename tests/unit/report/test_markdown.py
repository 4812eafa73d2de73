"""Markdown: failures first, nothing left out without a note, and names that stay names."""

from dataclasses import replace

import pytest

from pytest_accel.report.markdown import (
    ITEMS,
    append_step_summary,
    code,
    markdown_table,
    prose,
    render_summary,
)
from pytest_accel.report.verdicts import needs_attention, status_word
from pytest_accel.stats.environment import Change
from pytest_accel.stats.gate import Estimate, Outcome, Verdict
from pytest_accel.stats.results import Ending, ReportLine
from tests.support.markdown_page import OURS, Page
from tests.support.results import make_result, make_session


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
    assert first.startswith("- **REGRESSED** `bench_suites/test_")
    assert "run-to-run noise" in first
    order = ["### Changed since", "### Needs attention", "### The machine", "### Verdicts", "<details>"]
    places = [page.index(each) for each in [*order, "### Reproduce"]]
    assert places == sorted(places)
    assert " ok, 1 skipped, 1 recorded</summary>" in page
    assert "needs 4 devices, this machine has 1" in page  # a skip is never without its reason
    assert "1.64 x CARAML, ResNet50 (gh200)" in page
    assert "- **problem** GPU 0 power limit: 550 W, below its default of 700 W" in page
    assert "  - sudo nvidia-smi -i 0 -pl 700" in page
    assert "ECC" not in page  # doctor's ok is nobody's concern here
    assert "pytest bench_suites -m 'gh200 or gh200x4'" in page
    assert page.count("| container image |") == 1  # every difference once
    assert "| driver | `570.124.06` | `580.159.04` | " in page
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
    words = "Nothing in the recorded environment"
    assert words in render_summary(make_session([make_result(Outcome.REGRESSED, changes=())]))
    assert words not in render_summary(make_session([make_result(changes=())]))


def test_absent_value_differs_from_an_empty_one():
    changes = (Change(name="env.A", old=None, new=""), Change(name="env.B", old="x|y", new="`"))
    page = render_summary(make_session([make_result(Outcome.REGRESSED, changes=changes)]))
    assert "| A | absent | empty | 1 of 1 |" in page
    assert "| B | `x\\|y` | `` ` `` | 1 of 1 |" in page


@pytest.mark.parametrize(("count", "folded"), [(10, False), (11, True)])
def test_many_that_are_ok_are_folded(count, folded):
    page = render_summary(make_session(make_result(name=f"test_{n}") for n in range(count)))
    assert (f"<details><summary>{count} ok</summary>" in page) is folded


def test_traceback_is_fenced():
    page = render_summary(
        make_session([make_result(Ending.FAILED, traceback=("E   ```", "E   boom @everyone"))])
    )
    assert "  ````text\n  E   ```\n  E   boom @everyone\n  ````" in page


def test_secrets_of_the_command_line_are_not_repeated():
    page = render_summary(make_session(command=("-o", "--token=abcdefgh12345678", "bench_suites")))
    assert "abcdefgh" not in page
    assert "pytest -o '--token=<redacted>' bench_suites" in page


def test_left_out_failures_are_counted():
    made = make_result(Outcome.REGRESSED, runs=(), baseline=())
    results = [replace(made, benchmark=f"a.py::test_{number}") for number in range(ITEMS + 1)]
    page = render_summary(make_session(results))
    assert page.startswith(f"## {ITEMS + 1} of {ITEMS + 1} benchmarks failed")
    assert page.count("- **REGRESSED** ") == ITEMS
    assert "**1 more are left out here" in page


# --- escaping ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["test_x[a|b]", "`a`", "x <b> *y* @octocat", "\x1b[31m"])
def test_code_shows_just_the_name(text):
    page = Page("\n".join(markdown_table(["a", "b"], [[code(text), "y"]])))
    assert page.text.split() == ["a", "b", *text.replace("\x1b", "\\x1b").split(), "y"]
    assert set(page.tags) <= OURS


def test_prose_reads_like_the_text_and_mentions_nobody():
    text = "~~gone~~ *a* __b__ [c](d) ![e](f) <g> `h` a|b \\ 7.1 % slower, batch_size 5 -> 6"
    page = Page("\n".join(markdown_table(["a", "b"], [[prose(text), "y"]])))
    assert text in page.text
    assert set(page.tags) <= OURS
    assert "code" not in page.tags
    assert "@octocat" not in Page(prose("see @octocat")).text
    assert prose("cuDNN 9.10 -> 9.19, batch_size 5") == "cuDNN 9.10 -> 9.19, batch_size 5"


# --- the summary of a step on GitHub --------------------------------------------------------------------------


def test_step_summary_is_appended(tmp_path):
    path = tmp_path / "step.md"
    path.write_text("before")
    append_step_summary({}, "no step")
    append_step_summary({"GITHUB_STEP_SUMMARY": str(path)}, "## ours\n")
    assert path.read_text() == "before\n\n## ours\n"
