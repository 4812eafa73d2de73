"""A gang that is well: it comes together, takes orders, and leaves."""

from __future__ import annotations

import json
import os

import pytest

from pytest_accel.distributed.launch import GangError
from pytest_accel.distributed.launchers import OneProcess
from pytest_accel.distributed.orders import Order
from pytest_accel.distributed.processes import processes_of

PLACE = """
from dataclasses import asdict
value = {name: str(field) for name, field in asdict(place).items()}
"""

LEAVES_WHEN_TOLD = """
import threading

def leave():
    import os, time
    while not os.path.exists("go"):
        time.sleep(0.01)
    os._exit(0)

if rank:
    threading.Thread(target=leave, daemon=True).start()
"""


def values(answer):
    assert answer.whole, answer.words()
    return [rank.payload["value"] for rank in answer.ranks]


def check_places(found):
    assert [(place["rank"], place["size"]) for place in found] == [("0", "2"), ("1", "2")]
    assert [(place["local_rank"], place["local_size"]) for place in found] == [("0", "2"), ("1", "2")]
    assert {(place["node"], place["nodes"], place["bind"]) for place in found} == {("0", "1", "none")}
    assert len({place["folder"] for place in found}) == 2


def close_and_see_ranks_leave(gangs, gang):
    values(gangs.run(gang, "import atexit\natexit.register(note, f'left-{rank}')"))
    gang.close()
    gang.close()
    assert not gang.alive
    assert {file.name for file in gangs.folder.glob("left-*")} == {"left-0", "left-1"}
    assert processes_of(gang.id) == []
    with pytest.raises(GangError, match="ended"):
        gangs.run(gang, "value = 1")


@pytest.fixture(scope="class")
def gang(gangs_of_class):
    return gangs_of_class.start(2, bind="none")


@pytest.fixture
def run(gangs_of_class, gang):
    return lambda text, **options: gangs_of_class.run(gang, text, **options)


class TestOrders:
    """One gang takes them all."""

    def test_ranks_know_their_place(self, run):
        check_places(values(run(PLACE)))

    def test_following_orders_go_to_the_same_processes(self, run, gang):
        pids = [values(run("import os\nvalue = os.getpid()")) for _ in range(3)]
        assert pids[0] == pids[1] == pids[2]
        assert gang.alive

    def test_failing_on_every_rank_leaves_the_gang_alive(self, run, gang):
        answer = run("raise ValueError(f'of rank {rank}')")
        assert answer.whole
        assert [rank.payload["cause"] for rank in answer.ranks] == [
            "ValueError: of rank 0",
            "ValueError: of rank 1",
        ]
        assert gang.alive
        assert values(run("value = 1")) == [1, 1]

    def test_phases_of_rank_0_are_passed_on(self, run):
        said = []
        program = "end.say(f'warming up {rank}', 2.5)\nend.say(f'measuring {rank}')"
        values(run(program, phase=lambda *words: said.append(words)))
        assert said == [("warming up 0", 2.5), ("measuring 0", None)]

    def test_waiting_is_told(self, run, gangs_of_class):
        text = "import time, pathlib\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)"
        values(run(text, waiting=(gangs_of_class.folder / "go").touch))

    def test_large_answer_arrives_whole_and_a_huge_one_fails(self, run):
        assert [len(value) for value in values(run("value = 'x' * 5_000_000"))] == [5_000_000] * 2
        answer = run("value = 'x' * 70_000_000 if rank else ''")
        assert answer.ranks[0].outcome == "passed"
        assert "too large" in answer.ranks[1].payload["cause"]


class TestGang:
    def test_closing_lets_ranks_leave_by_themselves(self, gangs):
        close_and_see_ranks_leave(gangs, gangs.start(2))

    def test_rank_that_does_not_leave_is_ended(self, gangs, monkeypatch):
        monkeypatch.setattr("pytest_accel.distributed.gang._LEAVE_S", 0.3)
        gang = gangs.start(2)
        values(gangs.run(gang, "import atexit, time\natexit.register(time.sleep, 600)"))
        gang.close()
        assert processes_of(gang.id) == []

    def test_rank_that_went_away_between_orders_is_noticed(self, gangs, eventually):
        gang = gangs.start(2)
        values(gangs.run(gang, LEAVES_WHEN_TOLD))
        (gangs.folder / "go").touch()
        assert eventually(lambda: not gang.alive)

    def test_ranks_have_no_variables_of_this_pytest(self, gangs, monkeypatch):
        monkeypatch.setenv("PYTEST_ADDOPTS", "--not-for-ranks")
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "of another launcher")
        gang = gangs.start(2)
        for found in values(gangs.run(gang, "import os\nvalue = dict(os.environ)")):
            assert not set(found) & {"PYTEST_ADDOPTS", "PYTEST_ACCEL_GANG", "TORCHELASTIC_RUN_ID"}
            assert "PYTEST_CURRENT_TEST" not in found or "test_gang" not in found["PYTEST_CURRENT_TEST"]
            assert found["PYTEST_ACCEL_GANG_ID"].startswith(gang.id)

    def test_nothing_of_a_gang_stays_in_the_temporary_folder(self, gangs):
        gang = gangs.start(2)
        folders = values(gangs.run(gang, "value = str(place.folder)"))
        assert all(map(os.path.isdir, folders))
        gang.close()
        assert not any(map(os.path.exists, folders))


class TestOneProcess:
    def test_is_alone_whatever_launcher_started_this_session(self, gangs, monkeypatch):
        for name, value in {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "MASTER_PORT": "1"}.items():
            monkeypatch.setenv(name, value)
        gang = gangs.start(1, launcher=OneProcess())
        (place,) = values(gangs.run(gang, PLACE))
        assert (place["rank"], place["size"], place["nodes"]) == ("0", "1", "1")
        (found,) = values(gangs.run(gang, "import os, sys\nvalue = [*os.environ, *sys.modules]"))
        assert not set(found) & {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "torch"}


class TestOneMachine:
    def test_ranks_have_the_arguments_of_their_session_as_they_are(self, gangs, monkeypatch):
        odd = ["-o", "x=$HOME $$ ${local_rank} 'a b' \"c\" \n ä", "-k", ""]
        known = gangs.arguments
        monkeypatch.setattr(gangs, "arguments", lambda folder: [*known(folder), *odd, "-o", f"y={folder}"])
        gang = gangs.start(2)
        for arguments, folder in values(
            gangs.run(gang, "import sys\nvalue = [sys.argv[-6:], str(place.folder)]")
        ):
            assert arguments == [*odd, "-o", f"y={folder}"]


def test_order_crosses_processes():
    order = Order(node_id="test_x.py::test_y[ä]", session="s", platform="cpux2")
    assert Order.from_plain(json.loads(json.dumps(order.to_plain()))) == order
