"""Threads that work off calls, and that nobody waits for without end."""

from __future__ import annotations

import queue
import threading

import pytest

from pytest_accel.workloads.data import threads as module
from pytest_accel.workloads.data.threads import Threads


@pytest.fixture
def two():
    begun = []
    made = Threads(2, "test-thread", lambda: begun.append(threading.current_thread().name))
    made.begun = begun
    yield made
    made.close()


def living():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("test-thread")]


def test_no_thread_before_the_first_call_and_none_after_the_last(two):
    assert living() == []
    assert two.submit(lambda: 3).result(timeout=60) == 3
    assert len(living()) == 2
    two.close()
    assert living() == []


def test_calls_come_back_with_their_results(two):
    futures = [two.submit(pow, 2, number) for number in range(20)]
    assert [future.result(timeout=60) for future in futures] == [2**number for number in range(20)]
    assert set(two.begun) <= {"test-thread-0", "test-thread-1"}


def test_what_a_call_raises_is_raised_where_it_is_asked_for(two):
    failed = two.submit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(timeout=60)
    assert two.submit(lambda: 3).result(timeout=60) == 3


def test_a_cancelled_call_is_not_made(two):
    may_end, made = threading.Event(), []
    held = [two.submit(may_end.wait, 60) for _ in range(2)]
    waiting = two.submit(made.append, 1)
    assert waiting.cancel()
    may_end.set()
    assert all(each.result(timeout=60) for each in held)
    two.close()
    assert made == []


def test_one_that_hangs_is_left_behind_as_a_daemon(two, monkeypatch):
    monkeypatch.setattr(module, "CLOSING_S", 0.01)
    never, hanging = threading.Event(), queue.Queue()

    def hang():
        hanging.put(threading.current_thread())
        never.wait(60)

    two.submit(hang)
    left = hanging.get(timeout=60)
    two.close()  # and this line ends
    assert left.is_alive()
    assert left.daemon
    never.set()
    left.join(timeout=60)
