"""Which sessions of a history are nights."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pytest_accel.session.scales import Scales
from pytest_accel.stats.results import SessionResults
from pytest_accel.storage.history import History
from tests.support.stored import H200, KEY, result, runs

BEGIN = datetime(2026, 3, 1, 14, 0, tzinfo=UTC)


@pytest.fixture
def learned(tmp_path):
    """What is learned from sessions so many hours after the first."""
    history = History(tmp_path / "history.sqlite")

    def learned(*hours):
        for number, each in enumerate(hours):
            history.append(
                SessionResults(
                    session=f"s{number}",
                    at=(BEGIN + timedelta(hours=each)).isoformat(),
                    duration_s=1.0,
                    exit_status=0,
                    version="0.1",
                    environments={H200.key: H200},
                    results=(result(measured=runs(1, seed=number), environment=H200.key),),
                )
            )
        return Scales(history.path).of("h200", KEY)

    return learned


def test_twenty_sessions_of_an_afternoon_are_one_night(learned):
    assert learned(*(0.2 * number for number in range(20))) is None


def test_a_session_a_day_is_a_night_and_further_ones_of_that_day_are_none(learned):
    found = learned(*(24 * day + 0.5 * number for day in range(8) for number in range(10)))
    assert found.nights == 8


def test_jobs_that_start_around_midnight_are_all_nights(learned):
    assert learned(*(24 * day + 10 + (-1) ** day * 0.1 for day in range(8))).nights == 8
