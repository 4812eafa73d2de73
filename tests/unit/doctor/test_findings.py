"""Findings as values: both ways through JSON, and what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.doctor.finding import Finding, Level, from_plain, to_plain, worst

FINDING = Finding(group="devices", subject="ECC", text="on", of="GPU 0")
SICK = Finding(group="devices", subject="ECC", text="off", level=Level.WARNING, remedy="Turn it on.")
LOST = Finding(group="devices", subject="device", text="gone", level=Level.PROBLEM, remedy="Restart.")

words = st.text(min_size=1)
findings = st.builds(
    lambda level, remedy, **rest: Finding(level=level, remedy="" if level is Level.OK else remedy, **rest),
    level=st.sampled_from(Level),
    remedy=words,
    group=words,
    subject=words,
    text=st.text(),
    of=st.text(),
    known=st.booleans(),
)


@given(st.lists(findings, max_size=3))
def test_findings_survive_json(found):
    assert from_plain(json.loads(json.dumps(to_plain(found)))) == tuple(found)


def test_what_may_be_left_out_may_be_left_out():
    assert from_plain([{"group": "a", "subject": "b", "text": "c", "level": "ok"}])[0].known


@pytest.mark.parametrize("level", [Level.WARNING, Level.PROBLEM])
def test_what_is_wrong_has_a_remedy(level):
    with pytest.raises(ValueError, match=r"'ECC' is .*: it needs a remedy"):
        Finding(group="devices", subject="ECC", text="off", level=level)


def test_what_is_well_has_none():
    with pytest.raises(ValueError, match="needs no remedy"):
        Finding(group="devices", subject="ECC", text="on", remedy="Sleep.")


def test_the_worst_counts():
    assert worst([]) is Level.OK
    assert worst([FINDING, FINDING]) is Level.OK
    assert worst([FINDING, SICK]) is Level.WARNING
    assert worst([SICK, LOST, FINDING]) is Level.PROBLEM


PLAIN = to_plain([SICK])[0]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("no", "findings: 'no' is not a list"),
        ([PLAIN, 3], r"findings\[1\]: 3 is not an object"),
        ([{**PLAIN, "colour": "red"}], r"findings\[0\]: 'colour' is not known. Valid are group, subject"),
        ([{**PLAIN, "level": "bad"}], r"findings\[0\].level: 'bad' is not one of ok, warning, problem"),
        ([{**PLAIN, "text": 3}], r"findings\[0\].text: 3 is not of type str"),
        ([{**PLAIN, "known": "yes"}], r"findings\[0\].known: 'yes' is not of type bool"),
        ([{**PLAIN, "remedy": ""}], r"findings\[0\]: the finding on 'ECC' is warning: it needs a remedy"),
        ([{"group": "a", "text": "b", "level": "ok"}], r"findings\[0\]: subject is missing"),
    ],
)
def test_what_is_no_finding_is_refused_by_its_place(content, error):
    with pytest.raises(ValueError, match=error):
        from_plain(content)
