"""Signals that end a session, met where Python lets them be met."""

import signal
import threading

import pytest

from pytest_accel.session.session import signals_as_interrupts


@pytest.fixture(autouse=True)
def defaults():
    """As a process is started; pytest's own handlers come back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_the_end_of_a_job_is_an_interrupt_and_nothing_stays(number):
    with pytest.raises(KeyboardInterrupt, match=number.name), signals_as_interrupts():
        signal.raise_signal(number)
    assert signal.getsignal(number) is signal.SIG_DFL


def test_second_signal_soon_after_the_first_is_the_same():
    with signals_as_interrupts():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_in_another_thread_signals_are_left_alone():
    """Some start pytest in one: Python refuses handlers there."""
    found = []

    def session():
        with signals_as_interrupts():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=session)
    thread.start()
    thread.join()
    assert found == [signal.SIG_DFL]
