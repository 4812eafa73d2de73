"""Who pays for processes that are started together."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest

from pytest_accel.session import turns as session_turns
from pytest_accel.session.turns import Turns
from pytest_accel.settings import Settings

START_S = 12.0


class Waiting:
    """What `start_ahead` needs of a case; it takes twelve seconds to start."""

    item = platform = settings = None

    def __init__(self):
        self.held_s = 1.0

    @contextmanager
    def holding(self):
        yield
        self.held_s += START_S


@pytest.mark.parametrize(
    ("served", "held_s"),
    [
        ([0, 1, 2], [5.0, 5.0, 5.0]),
        ([0, 2], [7.0, 1.0, 7.0]),
        ([1, 2], [1.0, 7.0, 7.0]),  # the first is a gang's
        ([], [13.0, 1.0, 1.0]),  # that it came to nothing was its time all the same
    ],
)
def test_each_pays_for_its_own(monkeypatch, served, held_s):
    monkeypatch.setattr(session_turns, "live_progress", lambda config, label: nullcontext())
    turns = Turns(
        config=None,
        settings=Settings(),
        cases={},
        gangs=SimpleNamespace(start_ahead=lambda coming, progress: served),
        endings=None,
        with_scaling=None,
    )
    coming = [Waiting() for _ in range(3)]
    turns.start_ahead(coming)
    assert [each.held_s for each in coming] == held_s
