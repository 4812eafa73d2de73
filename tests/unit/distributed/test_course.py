"""One order on its way: what came in time counts, whenever somebody looks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_accel.distributed.course import Course
from pytest_accel.distributed.wire import Listener, call, ready
from tests.support.waiting import eventually

LONG_S = 60.0  # only a broken test waits so long


@pytest.fixture
def ends():
    """Of a line between a session and a rank."""
    listener = Listener()
    there = call("127.0.0.1", listener.port, token=listener.token, hello={"rank": 0}, timeout_s=LONG_S)
    ((here, _),) = eventually(listener.arrived, LONG_S)
    yield here, there
    for each in (here, there, listener):
        each.close()


def watched(connection):
    """Of an order whose time is over."""
    course = Course({0: connection}, SimpleNamespace(ended=lambda: None), number=1, timeout_s=0.0)
    course.watch(lambda: None, lambda text, remaining_s: None)
    return course


def test_an_answer_that_lay_ready_is_heard_after_its_time(ends):
    here, there = ends
    there.send({"kind": "answer", "number": 1, "payload": {"outcome": "passed"}})
    assert ready([here], LONG_S)
    assert watched(here).answers == {0: {"outcome": "passed"}}


def test_who_said_nothing_is_silent(ends):
    course = watched(ends[0])
    assert course.silent == [0]
    assert not course.whole
