"""Processes that are started together: none is lost, whatever fails when. Real ones: tests/plugin/test_ahead.py."""

from __future__ import annotations

import sys
import types

import pytest

from pytest_accel.distributed.group import GroupAnswer, RankAnswer
from pytest_accel.distributed.launch import WorkerError
from pytest_accel.options import Settings
from pytest_accel.platforms import host as cgroups
from pytest_accel.platforms.names import PlatformName
from pytest_accel.session import ahead
from pytest_accel.session.ahead import Ahead
from pytest_accel.session.shapes import shape_of

CPU, H200, GANG = PlatformName("cpu"), PlatformName("h200"), PlatformName("h200", 2)
WELL = GroupAnswer(ranks=(RankAnswer(rank=0, payload={"outcome": "passed"}),))
CANNOT = GroupAnswer(ranks=(RankAnswer(rank=0, payload={"outcome": "failed"}),), culprit=0)
GONE = GroupAnswer(ranks=(RankAnswer(rank=0, problem="killed"),), problem="killed", culprit=0)


class Started:
    """A process on its way, and the gang that comes of it; `fails` says at which of its steps, and how."""

    def __init__(self, fails=None, answer=WELL):
        self.ended = 0
        self.alive = True
        self.told = None
        self._fails = fails or {}
        self._answer = answer

    def _step(self, name):
        if error := self._fails.pop(name, None):
            raise error

    def connect(self, waiting):
        self._step("connect")
        return self

    def give(self, preparation, *, timeout_s):
        self._step("give")
        self.told = preparation

    def answer(self, course, *, waiting):
        self._step("answer")
        return self._answer

    def end(self):
        self._step("end")
        self.ended += 1


class Host:
    """Starts what it is given, in order; the rest is well."""

    def __init__(self, *started):
        self.started = []
        self._next = list(started)
        self.ahead = Ahead(self._launch)

    def _launch(self, shape, settings):
        process = self._next.pop(0) if self._next else Started()
        process._step("launch")
        self.started.append(process)
        return process

    def start(self, *platforms):
        wanted = [(shape_of(platform, Settings()), Settings()) for platform in platforms]
        progress = types.SimpleNamespace(phase=lambda text, remaining_s: None, tick=lambda: None)
        return self.ahead.start(wanted, progress)

    def take(self, platform):
        return self.ahead.take(shape_of(platform, Settings()))


@pytest.fixture(autouse=True)
def _three_at_once(monkeypatch):
    monkeypatch.setattr(ahead, "at_once", lambda: 3)


def test_those_that_come_next_have_theirs_and_others_when_none_is_left():
    host = Host()
    assert host.start(CPU, GANG, CPU, CPU, CPU) == [0, 2, 3]
    assert host.start(GANG, CPU, CPU, CPU) == []  # one of them has been taken, say
    assert [host.take(CPU) for _ in range(3)] == host.started
    assert host.take(CPU) is None
    assert host.start(CPU) == []  # alone it is started in its turn
    assert host.start(CPU, CPU) == [0, 1]


@pytest.mark.parametrize("step", ["launch", "connect", "give", "answer"])
@pytest.mark.parametrize("error", [WorkerError("no room"), KeyboardInterrupt()], ids=repr)
def test_whatever_fails_when_ends_all_of_them(step, error):
    host = Host(Started(), Started({step: error}), Started())
    if isinstance(error, WorkerError):
        assert host.start(CPU, CPU, CPU) == []
        assert host.start(CPU, CPU, CPU) == [], "from then on in their turns"
    else:
        with pytest.raises(KeyboardInterrupt):
            host.start(CPU, CPU, CPU)
    assert len(host.started) == (1 if step == "launch" else 3)
    assert all(process.ended for process in host.started)
    assert host.take(CPU) is None


def test_who_is_interrupted_while_it_ends_them_finds_the_rest_later():
    host = Host(Started({"end": KeyboardInterrupt()}), Started({"connect": KeyboardInterrupt()}), Started())
    with pytest.raises(KeyboardInterrupt):
        host.start(CPU, CPU, CPU)
    host.ahead.end()
    assert all(process.ended for process in host.started)


@pytest.mark.parametrize("answer", [CANNOT, GONE], ids=["cannot", "gone"])
def test_one_that_is_not_prepared_is_none_and_the_last_that_was_tried(answer):
    host = Host(Started(), Started(answer=answer), Started())
    assert host.start(CPU, CPU, CPU) == [0, 2]
    assert [process.ended for process in host.started] == [0, 1, 0]
    assert host.take(CPU) is host.started[0]
    assert host.take(CPU) is host.started[2]
    assert host.start(CPU, CPU) == []


def test_one_that_died_waiting_is_not_taken():
    host = Host()
    host.start(CPU, CPU)
    first, second = host.started
    first.alive = False
    assert host.take(CPU) is None
    assert first.ended
    assert host.take(CPU) is second


def test_one_that_nobody_comes_for_any_more_stands_in_nobodys_way():
    host = Host()
    host.start(CPU, H200)
    assert host.start(H200, H200) == []  # there is one for the first
    assert host.start(CPU, CPU) == [0, 1]
    assert [process.ended for process in host.started] == [1, 1, 0, 0]


def test_what_a_session_has_is_imported_ahead_but_on_the_cpu_where_it_would_count_as_memory(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    host = Host()
    host.start(CPU, H200)
    on_cpu, on_gpu = [process.told for process in host.started]
    assert (on_cpu.platform, on_cpu.modules) == ("cpu", ())
    assert on_gpu.platform == "h200"
    assert "torch" in on_gpu.modules
    assert "torchvision" not in on_gpu.modules


@pytest.mark.parametrize(
    ("cores", "granted", "processes"),
    [(16, None, 8), (16, 5.5, 2), (4, None, 2), (64, 128.0, 8), (2, None, 1)],
)
def test_as_many_as_there_are_cores_for_and_the_kernel_grants(monkeypatch, cores, granted, processes):
    monkeypatch.undo()
    monkeypatch.setattr(ahead, "available_cores", lambda: cores)
    monkeypatch.setattr(cgroups, "read_quota", lambda files: cgroups.CpuQuota(cpus=granted))
    assert ahead.at_once.__wrapped__() == processes
