"""Who locks which devices of a gang, and in which order."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from pytest_accel.session import exclusivity
from pytest_accel.session.exclusivity import alone_on_devices, by_leader
from pytest_accel.session.locks import LockedError
from pytest_accel.settings import Settings

ITEM = SimpleNamespace(config=None, name="test_step")


class Gang:
    """A rank among others, whose words are known."""

    def __init__(self, rank, told, problems=()):
        self.rank = rank
        self._answers = iter([told, *problems])

    def gather(self, mine):
        told = list(next(self._answers))
        told[self.rank] = mine
        return told


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    @contextmanager
    def progress(config, label):
        yield SimpleNamespace(phase=lambda text, remaining_s: None)

    monkeypatch.setattr(exclusivity, "live_progress", progress)
    monkeypatch.setattr(exclusivity.host, "node", lambda: "b")


@pytest.fixture
def locked(monkeypatch):
    taken = []

    @contextmanager
    def lock(uuids, *, mode, waiting, unlocked, timeout_s):
        taken.append(set(uuids))
        if "GPU-held" in uuids:
            raise LockedError("GPU-held is held by pid 4711")
        yield
        taken.append("free")

    monkeypatch.setattr(exclusivity, "lock_devices", lock)
    return taken


def test_one_rank_of_each_node_locks_all_of_its_devices_node_after_node():
    told = {0: ("b", "GPU-1"), 1: ("b", "GPU-0"), 2: ("a", "GPU-3"), 3: ("a", "GPU-3")}
    assert list(by_leader(told).items()) == [(2, {"GPU-3"}), (0, {"GPU-0", "GPU-1"})]


def test_the_host_has_no_device_to_lock():
    assert by_leader({0: ("a", ""), 1: ("a", "")}) == {}


def test_a_leader_holds_them_while_it_measures(locked):
    ranks = Gang(0, [None, ("b", "GPU-2")], [["", ""]])
    with alone_on_devices(ITEM, Settings(), ranks, SimpleNamespace(uuid="GPU-1")):
        assert locked == [{"GPU-1", "GPU-2"}]
    assert locked[-1] == "free"


def test_the_others_lock_nothing(locked):
    ranks = Gang(1, [("b", "GPU-1"), None], [["", ""]])
    with alone_on_devices(ITEM, Settings(), ranks, SimpleNamespace(uuid="GPU-2")):
        assert locked == []


def test_all_ranks_fail_where_one_is_refused(locked):
    ranks = Gang(1, [("b", "GPU-1"), None], [["GPU-held is held by pid 4711", ""]])
    with (
        pytest.raises(pytest.fail.Exception, match="held by pid 4711"),
        alone_on_devices(ITEM, Settings(lock="fail"), ranks, SimpleNamespace(uuid="GPU-2")),
    ):
        pytest.fail("measured beside another")


def test_a_leader_that_is_refused_says_so_to_all(locked):
    ranks = Gang(0, [None, ("b", "GPU-2")], [["", ""]])
    with (
        pytest.raises(pytest.fail.Exception, match="held by pid 4711"),
        alone_on_devices(ITEM, Settings(), ranks, SimpleNamespace(uuid="GPU-held")),
    ):
        pytest.fail("measured beside another")


def test_off_asks_nobody(locked):
    with alone_on_devices(ITEM, Settings(lock="off"), None, SimpleNamespace(uuid="GPU-held")):
        assert locked == []
