"""Pending orders: answers before and after the deadline."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_accel.distributed.group import PendingOrder
from pytest_accel.distributed.messages import Listener, call, ready
from tests.support.waiting import eventually

LONG_S = 60.0  # only a broken test waits so long


@pytest.fixture
def ends():
    """Both ends of a connection between a session and a rank."""
    listener = Listener()
    there = call("127.0.0.1", listener.port, token=listener.token, hello={"rank": 0}, timeout_s=LONG_S)
    ((here, _),) = eventually(listener.arrived, LONG_S)
    yield here, there
    for each in (here, there, listener):
        each.close()


def waited(connection):
    """Return an order after its deadline."""
    pending = PendingOrder({0: connection}, SimpleNamespace(ended=lambda: None), number=1, timeout_s=0.0)
    pending.wait(lambda: None, lambda text, remaining_s: None)
    return pending


def test_answer_that_arrived_in_time_counts_after_the_deadline(ends):
    here, there = ends
    there.send({"kind": "answer", "number": 1, "payload": {"outcome": "passed"}})
    assert ready([here], LONG_S)
    assert waited(here).answers == {0: {"outcome": "passed"}}


def test_rank_without_an_answer_is_silent(ends):
    pending = waited(ends[0])
    assert pending.silent == [0]
    assert not pending.complete
