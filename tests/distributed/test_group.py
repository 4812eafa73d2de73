"""Groups without faults: connecting, orders, leaving."""

import os
import time

import pytest

from pytest_accel.distributed.processes import WorkerError
from tests.support.processes import processes_of

PLACE = "value = [place.rank, place.size, place.local_rank, place.per_node, place.nodes, place.bind, place.folder]"

LEAVES_ON_SIGNAL_FILE = """
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
    assert answer.complete, answer.describe()
    return [rank.payload["value"] for rank in answer.ranks]


ODD = ["-o", "x=$HOME $$ ${local_rank} 'a b' \"c\" \n ä", "-k", ""]


@pytest.fixture(scope="class")
def group(groups_of_class):
    known = groups_of_class.arguments
    groups_of_class.arguments = lambda folder: [*known(folder), *ODD, "-o", f"y={folder}"]
    return groups_of_class.start(2, bind="none")


@pytest.fixture
def run(groups_of_class, group):
    return lambda text, **options: groups_of_class.run(group, text, **options)


class TestOrders:
    """One group takes all orders."""

    def test_ranks_know_their_place(self, run):
        found = values(run(PLACE))
        assert [place[:-1] for place in found] == [[0, 2, 0, 2, 1, "none"], [1, 2, 1, 2, 1, "none"]]
        assert len({place[-1] for place in found}) == 2

    def test_ranks_have_the_arguments_of_their_session_as_they_are(self, run):
        for arguments, folder in values(run("import sys\nvalue = [sys.argv[-6:], str(place.folder)]")):
            assert arguments == [*ODD, "-o", f"y={folder}"]

    def test_following_orders_go_to_the_same_processes(self, run, group):
        pids = [values(run("import os\nvalue = os.getpid()")) for _ in range(3)]
        assert pids[0] == pids[1] == pids[2]
        assert group.alive

    def test_failing_on_every_rank_leaves_the_group_alive(self, run, group):
        answer = run("raise ValueError(f'of rank {rank}')")
        assert answer.complete
        assert [rank.payload["cause"] for rank in answer.ranks] == [
            "ValueError: of rank 0",
            "ValueError: of rank 1",
        ]
        assert group.alive
        assert values(run("value = 1")) == [1, 1]

    def test_phases_of_rank_0_are_reported(self, run):
        phases = []
        program = "end.say(f'warming up {rank}', 2.5)\nend.say(f'measuring {rank}')\nend.say('for ever', float('nan'))"
        program += "\nend.say('for long', 10**400)\nend.say('soon', 'soon')"
        values(run(program, phase=lambda *words: phases.append(words)))
        assert phases == [
            ("warming up 0", 2.5),
            ("measuring 0", None),
            ("for ever", None),
            ("for long", None),
        ]

    def test_waiting_callback_is_called(self, run, groups_of_class):
        text = "import time, pathlib\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)"
        values(run(text, waiting=(groups_of_class.folder / "go").touch))

    def test_session_sleeps_while_ranks_measure(self, run):
        wall_s, cpu_s = time.monotonic(), time.thread_time()
        values(run("import time\ntime.sleep(0.5)"))
        assert time.thread_time() - cpu_s < (time.monotonic() - wall_s) / 5


class TestGroup:
    def test_closing_lets_ranks_leave_by_themselves(self, groups):
        group = groups.start(2)
        program = "import atexit\natexit.register(note, f'left-{rank}')\nvalue = str(place.folder)"
        folders = values(groups.run(group, program))
        assert all(map(os.path.isdir, folders))
        group.close()
        group.close()
        assert not group.alive
        assert {file.name for file in groups.folder.glob("left-*")} == {"left-0", "left-1"}
        assert processes_of(group.id) == []
        assert not any(map(os.path.exists, folders))
        with pytest.raises(WorkerError, match="ended"):
            groups.run(group, "value = 1")

    def test_rank_that_does_not_leave_is_ended(self, groups, monkeypatch):
        monkeypatch.setattr("pytest_accel.distributed.group._LEAVE_S", 0.3)
        group = groups.start(2)
        values(groups.run(group, "import atexit, time\natexit.register(time.sleep, 600)"))
        group.close()
        assert processes_of(group.id) == []

    def test_rank_that_ends_between_orders_is_noticed(self, groups, eventually):
        group = groups.start(2)
        values(groups.run(group, LEAVES_ON_SIGNAL_FILE))
        (groups.folder / "go").touch()
        assert eventually(lambda: not group.alive)


class TestSingleProcess:
    def test_single_process_ignores_variables_of_a_launcher(self, groups, monkeypatch):
        for name, value in {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "MASTER_PORT": "1"}.items():
            monkeypatch.setenv(name, value)
        group = groups.start(1, process_group=False)
        (place,) = values(groups.run(group, PLACE))
        assert place[:2] == [0, 1]
        (found,) = values(groups.run(group, "import os, sys\nvalue = [*os.environ, *sys.modules]"))
        assert not set(found) & {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "torch"}
