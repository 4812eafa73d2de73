"""Who locks which devices of a gang, and in which order."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from pytest_accel.measure.locks import LockedError
from pytest_accel.options import Settings
from pytest_accel.session import device_locks
from pytest_accel.session.device import RANK_END
from pytest_accel.session.device_locks import by_leader, exclusive_devices, wait_until_free

ITEM = SimpleNamespace(config=SimpleNamespace(stash={}), name="test_step")


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

    monkeypatch.setattr(device_locks, "live_progress", progress)
    monkeypatch.setattr(device_locks.host, "node", lambda: "b")


class Taken(list):
    def __init__(self):
        self.timeouts_s = []


@pytest.fixture
def locked(monkeypatch):
    taken = Taken()

    @contextmanager
    def lock(uuids, *, mode, waiting, unlocked, timeout_s):
        taken.append(set(uuids))
        taken.timeouts_s.append(timeout_s)
        if "GPU-busy" in uuids:
            for holder in (4711, 4711, 4712):
                waiting(f"waiting for GPU-busy: held by pid {holder}")
        if "GPU-held" in uuids:
            raise LockedError("GPU-held is held by pid 4711")
        yield
        taken.append("free")

    monkeypatch.setattr(device_locks, "lock_devices", lock)
    return taken


def test_one_rank_of_each_node_locks_all_of_its_devices_node_after_node():
    told = {0: ("b", "GPU-1"), 1: ("b", "GPU-0"), 2: ("a", "GPU-3"), 3: ("a", "GPU-3")}
    assert list(by_leader(told).items()) == [(2, {"GPU-3"}), (0, {"GPU-0", "GPU-1"})]


def test_the_host_has_no_device_to_lock():
    assert by_leader({0: ("a", ""), 1: ("a", "")}) == {}


def test_a_leader_holds_them_while_it_measures(locked):
    ranks = Gang(0, [None, ("b", "GPU-2")], [["", ""]])
    with exclusive_devices(ITEM, Settings(), ranks, SimpleNamespace(uuid="GPU-1")):
        assert locked == [{"GPU-1", "GPU-2"}]
    assert locked[-1] == "free"


def test_the_others_lock_nothing(locked):
    ranks = Gang(1, [("b", "GPU-1"), None], [["", ""]])
    with exclusive_devices(ITEM, Settings(), ranks, SimpleNamespace(uuid="GPU-2")):
        assert locked == []


def test_all_ranks_fail_where_one_is_refused(locked):
    ranks = Gang(1, [("b", "GPU-1"), None], [["GPU-held is held by pid 4711", ""]])
    with (
        pytest.raises(pytest.fail.Exception, match="held by pid 4711"),
        exclusive_devices(ITEM, Settings(lock="fail"), ranks, SimpleNamespace(uuid="GPU-2")),
    ):
        pytest.fail("measured beside another")


def test_a_leader_that_is_refused_says_so_to_all(locked):
    ranks = Gang(0, [None, ("b", "GPU-2")], [["", ""]])
    with (
        pytest.raises(pytest.fail.Exception, match="held by pid 4711"),
        exclusive_devices(ITEM, Settings(), ranks, SimpleNamespace(uuid="GPU-held")),
    ):
        pytest.fail("measured beside another")


def test_off_asks_nobody(locked):
    with exclusive_devices(ITEM, Settings(lock="off"), None, SimpleNamespace(uuid="GPU-held")):
        assert locked == []


def test_a_rank_gives_up_waiting_before_its_session_gives_it_up(locked):
    gang = SimpleNamespace(config=SimpleNamespace(stash={RANK_END: object()}), name="test_step")
    for item in (ITEM, gang):
        with exclusive_devices(
            item, Settings(timeout_s=100.0), Gang(0, [None], [[""]]), SimpleNamespace(uuid="GPU-1")
        ):
            pass
    assert locked.timeouts_s == [100.0, 90.0]


class TestBeforeRanksAreOrdered:
    @pytest.fixture
    def waited(self, locked, monkeypatch):
        """The problem with these devices, what a log was told, and the phases."""

        def of(*uuids, **settings):
            said, phases = [], []
            monkeypatch.setattr(device_locks, "write_log", lambda config, text: said.append(text))
            progress = SimpleNamespace(phase=lambda text, remaining_s: phases.append(text))
            config = SimpleNamespace(stash=pytest.Stash())
            problem = wait_until_free(config, Settings(**settings), uuids, progress, label="test_step")
            return problem, said, phases

        return of

    def test_free_devices_are_free_again(self, waited, locked):
        assert waited("GPU-1", "GPU-2") == ("", [], [])
        assert locked == [{"GPU-1", "GPU-2"}, "free"]

    def test_waiting_is_said_in_the_log_once_for_each_holder_and_shown_all_along(self, waited):
        problem, said, phases = waited("GPU-busy")
        assert problem == ""
        assert said == [f"test_step: waiting for GPU-busy: held by pid {holder}" for holder in (4711, 4712)]
        assert len(phases) == 3

    def test_what_is_not_to_be_had_is_a_problem(self, waited):
        assert waited("GPU-held", lock="fail")[0] == "GPU-held is held by pid 4711"
