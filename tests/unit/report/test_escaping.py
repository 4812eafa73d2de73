"""Escaping: what is shown is the text itself, wherever it stands, and nothing of it is obeyed."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_accel.report.markdown import code, fenced, prose
from pytest_accel.stats.quantities import clipped, printable
from tests.support.markdown_page import OURS, Page

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
anything = st.text(max_size=60) | st.text(alphabet="`|\\<>*_[]()!#@$~&:-+=1. \n\tah/", max_size=40)


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


def test_long_names_keep_both_ends():
    shown = clipped("a" * 500 + "[bf16-256]", 100)
    assert len(shown) == 100
    assert shown.startswith("aaa")
    assert shown.endswith("[bf16-256]")
