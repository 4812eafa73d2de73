"""Seats as real processes on loopback: each is started as torchrun or srun would, with a tiny rank program."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pytest_accel.distributed.launch import GangError, Launch
from pytest_accel.distributed.processes import processes_of
from pytest_accel.distributed.seats import SeatLauncher, Seats, choose, open_seats, place, start_here
from pytest_accel.distributed.world import Seat, seat_from
from pytest_accel.options import GANG_ID_VARIABLE
from tests.support.gloo import free_port
from tests.support.waiting import eventually

LONG_S = 60.0  # only a broken test waits so long

SEAT = """
import os
import sys
from pathlib import Path

from pytest_accel.distributed.seats import open_seats
from pytest_accel.distributed.serving import serve
from pytest_accel.distributed.world import seat_from

seat = seat_from(os.environ)
if seat.rank == 0:
    seats = open_seats(seat, rendezvous_s=60)
    seats.wait()
    Path("all-there").touch()
    sys.stdin.read()
sys.exit(
    serve(
        seat,
        arguments=lambda folder: [*sys.argv[2:], f"--basetemp={folder}/tmp"],
        directory=Path.cwd(),
        rendezvous_s=float(sys.argv[1]),
        inventory=lambda: {"cores": 2},
    )
)
"""

# What a rank runs instead of a suite: it says where it is, and does what the test wants of it.
RANK = """
import json
import os
import signal
import time
from pathlib import Path

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def test_rank():
    rank = os.environ["RANK"]
    told = {name: os.environ[name] for name in NAMES}
    told["elastic"] = [name for name in os.environ if name.startswith("TORCHELASTIC")]
    told["pid"] = os.getpid()
    print(f"last words of rank {rank}", flush=True)
    Path(f"rank-{rank}.part").write_text(json.dumps(told))
    Path(f"rank-{rank}.part").rename(f"rank-{rank}")
    if Path(f"die-{rank}").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
"""


class World:
    """A launcher's work, done by the test: the same variables, one process for each seat but 0."""

    def __init__(self, folder: Path, *, sizes: tuple[int, ...]) -> None:
        self.folder = folder
        self.sizes = sizes
        self.port = free_port()
        self.processes: dict[int, subprocess.Popen[str]] = {}
        (folder / "seat.py").write_text(SEAT)
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "test_rank.py").write_text(textwrap.dedent(RANK))

    def environ(self, rank: int) -> dict[str, str]:
        node = next(node for node in range(len(self.sizes)) if rank < sum(self.sizes[: node + 1]))
        told = {
            "RANK": rank,
            "WORLD_SIZE": sum(self.sizes),
            "LOCAL_RANK": rank - sum(self.sizes[:node]),
            "LOCAL_WORLD_SIZE": self.sizes[node],
            "GROUP_RANK": node,
            "GROUP_WORLD_SIZE": len(self.sizes),
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": self.port,
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }
        return {name: str(value) for name, value in told.items()}

    def seat(self, rank: int = 0) -> Seat:
        seat = seat_from(self.environ(rank))
        assert seat is not None
        return seat

    def start(self, *ranks: int, rendezvous_s: float = LONG_S) -> None:
        for rank in ranks:
            self.processes[rank] = subprocess.Popen(
                # As pytest -p no:... so that a rank is quick: other plugins of this environment cost a second.
                [sys.executable, "seat.py", str(rendezvous_s), "-q", "-s", "test_rank.py"],
                cwd=self.folder,
                env={
                    **os.environ,
                    **self.environ(rank),
                    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                    "TMPDIR": str(self.folder),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )

    def status(self, rank: int) -> int:
        return self.processes[rank].wait(LONG_S)

    def said(self, rank: int) -> str:
        return "".join(self.processes[rank].communicate(timeout=LONG_S))

    def launch(self, *, nodes: int = 1, per_node: int = 1) -> Launch:
        return Launch(
            gang=f"test-{os.getpid()}-{time.monotonic_ns()}",
            nodes=nodes,
            per_node=per_node,
            process_group=True,
            host="127.0.0.1",
            port=1,
            token="unused",
            arguments=lambda folder: ["-q", "-s", "test_rank.py", f"--basetemp={folder}/tmp"],
            directory=self.folder,
            bind="auto",
            rendezvous_s=LONG_S,
        )

    def rank_file(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}"

    def told(self, rank: int) -> dict[str, str]:
        import json

        wait_until(self.rank_file(rank).exists, f"rank {rank} never ran")
        return json.loads(self.rank_file(rank).read_text())


def wait_until(condition: Callable[[], object], otherwise: str) -> None:
    assert eventually(condition, LONG_S), otherwise


@contextmanager
def worlds_in(folder: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(*sizes: int) -> World:
        made.append(World(folder, sizes=sizes))
        return made[-1]

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        monkeypatch.delenv(GANG_ID_VARIABLE, raising=False)
        yield make
    for each in made:
        for process in each.processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                stream.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    with worlds_in(tmp_path) as make:
        yield make


@pytest.fixture
def opened() -> Iterator[Callable[..., Seats]]:
    made: list[Seats] = []

    def make(world: World) -> Seats:
        made.append(open_seats(world.seat(), rendezvous_s=LONG_S))
        return made[-1]

    yield make
    for seats in made:
        seats.dismiss(0)


@pytest.fixture(scope="class")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with worlds_in(tmp_path_factory.mktemp("world")) as make:
        three = make(2, 1)
        three.start(1, 2)
        yield three


@pytest.fixture(scope="class")
def seats(three: World) -> Iterator[Seats]:
    seats = open_seats(three.seat(), rendezvous_s=LONG_S)
    yield seats
    seats.dismiss(0)


class TestSession:
    """One world of three seats on two nodes, from their coming to their leaving: each of them imports torch."""

    @pytest.fixture(autouse=True)
    def nothing_told(self, three: World) -> Iterator[None]:
        yield
        for path in three.folder.glob("rank-*"):
            path.unlink()

    def test_seats_come_and_say_what_they_see(self, seats):
        seats.wait()
        seen = seats.inventories()
        assert {rank: each.node for rank, each in seen.items()} == {1: 0, 2: 1}
        assert all(each.host and each.sees == {"cores": 2} for each in seen.values())

    def test_a_gang_runs_in_a_process_of_each_seat_and_ends_with_stacks(self, three, seats):
        launch = three.launch(nodes=2)
        launched = SeatLauncher(seats).start(launch)
        told = [three.told(0), three.told(1)]
        assert [each["RANK"] for each in told] == ["0", "1"]
        assert [each["GROUP_RANK"] for each in told] == ["0", "1"]
        assert {each["WORLD_SIZE"] for each in told} == {"2"}
        assert len({each["MASTER_PORT"] for each in told}) == 1
        assert told[0]["MASTER_PORT"] != str(three.port)
        assert [each["elastic"] for each in told] == [[], []]
        assert launched.ended() is None

        remains = launched.end(stacks=True)
        assert sorted(remains) == [0, 1]
        for rank, left in remains.items():
            assert f"last words of rank {rank}" in left.log
            assert "test_rank" in left.log + left.stacks
        assert processes_of(launch.gang) == []
        assert launched.end(stacks=True) == remains

    def test_a_smaller_gang_leaves_the_other_seats_alone(self, three, seats):
        launched = SeatLauncher(seats).start(three.launch())
        assert three.told(0)["WORLD_SIZE"] == "1"
        assert sorted(launched.end(stacks=False)) == [0]
        assert not three.rank_file(1).exists()

    def test_seats_serve_the_next_gang_after_a_rank_was_killed(self, three, seats):
        launcher = SeatLauncher(seats)
        (three.folder / "die-1").touch()
        launched = launcher.start(three.launch(per_node=2))
        wait_until(lambda: launched.ended() is not None, "the end of rank 1 went unnoticed")
        assert "rank 1" in launched.ended()
        assert "SIGKILL" in launched.ended()
        before = {rank: three.told(rank)["pid"] for rank in (0, 1)}
        remains = launched.end(stacks=False)
        assert remains[1].status == "killed by SIGKILL"
        assert remains[0].status == ""

        (three.folder / "die-1").unlink()
        for rank in before:
            three.rank_file(rank).unlink()
        again = launcher.start(three.launch(per_node=2))
        after = {rank: three.told(rank)["pid"] for rank in (0, 1)}
        assert not set(after.values()) & set(before.values())
        assert again.ended() is None
        again.end(stacks=False)

    def test_an_interrupted_seat_ends_its_process_and_all_leave_with_the_status_of_seat_0(self, three, seats):
        """Ctrl-C reaches all of them, and seat 0 takes a moment to write its reports. The last: nobody stays."""
        launch = three.launch(per_node=2)
        launched = SeatLauncher(seats).start(launch)
        three.told(1)
        three.processes[1].send_signal(signal.SIGINT)
        wait_until(lambda: not processes_of(f"{launch.gang}.1"), "its process stayed")
        launched.end(stacks=False)
        seats.dismiss(7)
        assert [three.status(1), three.status(2)] == [7, 7]
        assert [three.said(1), three.said(2)] == ["", ""]


# --- coming and leaving -----------------------------------------------------------------------------------


def test_a_seat_that_never_comes_is_named_with_its_node(world, opened):
    three = world(2, 1)
    three.start(1)
    seats = opened(three)
    wait_until(seats.inventories, "rank 1 never came")
    seats.deadline = time.monotonic() + 0.1  # also for latecomers, at the end
    with pytest.raises(GangError, match=r"rank 2 of 3 \(torchrun\) did not come; nobody came from node 1"):
        seats.wait()


def test_a_port_in_use_is_one_error_with_the_remedy(world):
    two = world(1, 1)
    with socket.create_server(("", two.port)), pytest.raises(GangError, match="MASTER_PORT=") as error:
        open_seats(two.seat(), rendezvous_s=5)
    assert str(two.port) in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_seat_whose_seat_0_never_comes_leaves_and_says_so(world):
    two = world(1, 1)
    two.start(1, rendezvous_s=1)
    assert two.status(1) == 1
    assert "rank 1 of 2 (torchrun)" in two.said(1)


# --- gangs ------------------------------------------------------------------------------------------------


def test_an_order_cannot_set_any_other_variable(world):
    two = world(2)
    told = place(0, two.launch(), ("127.0.0.1", 1))
    launched = start_here(two.launch(), {**told, "TORCHELASTIC_STRANGE": "1"})
    assert two.told(0)["elastic"] == []
    launched.end(stacks=False)


def test_a_seat_that_was_killed_is_noticed_and_its_rank_goes_with_it(world, opened):
    two = world(2)
    two.start(1)
    launcher = SeatLauncher(opened(two))
    launch = two.launch(per_node=2)
    launched = launcher.start(launch)
    two.told(0), two.told(1)
    two.processes[1].kill()
    wait_until(lambda: launched.ended() is not None, "the end of the seat went unnoticed")
    assert "rank 1" in launched.ended()
    remains = launched.end(stacks=False)
    assert "is gone" in remains[1].status
    assert processes_of(launch.gang) == []
    with pytest.raises(GangError, match="rank 1 on"):
        launcher.start(two.launch(per_node=2))


# --- ends -------------------------------------------------------------------------------------------------


def test_seats_leave_when_seat_0_was_killed(world):
    two = world(2)
    two.start(0, 1)
    wait_until((two.folder / "all-there").exists, "the seats never met")
    two.processes[0].kill()
    assert two.status(1) == 1
    assert "seat 0 is gone" in two.said(1)


def test_a_seat_that_is_told_to_stop_ends_its_process_first(world, opened):
    two = world(2)
    two.start(1)
    launch = two.launch(per_node=2)
    launched = SeatLauncher(opened(two)).start(launch)
    two.told(1)
    two.processes[1].terminate()
    assert two.status(1) == 128 + signal.SIGTERM
    assert processes_of(f"{launch.gang}.1") == []
    launched.end(stacks=False)


# --- choosing ---------------------------------------------------------------------------------------------


def _launch(nodes: int, per_node: int) -> Launch:
    return Launch(
        gang="g", nodes=nodes, per_node=per_node, process_group=True, host="n0", port=1, token="",
        arguments=lambda folder: [], directory=Path(), bind="auto", rendezvous_s=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("by_node", "nodes", "per_node", "chosen"),
    [
        ({0: [0, 1, 2, 3]}, 1, 2, [0, 1]),
        ({0: [0, 1], 1: [2, 3]}, 2, 2, [0, 1, 2, 3]),
        ({0: [0, 2], 1: [1, 3]}, 2, 2, [0, 2, 1, 3]),  # srun --distribution=cyclic
        ({0: [0, 1], 1: [2, 3]}, 2, 1, [0, 2]),
        ({0: [0, 1], 1: [2], 2: [3, 4]}, 2, 2, [0, 1, 3, 4]),
    ],
)
def test_the_first_seats_of_the_first_nodes_are_chosen(by_node, nodes, per_node, chosen):
    assert choose(by_node, _launch(nodes, per_node), "srun") == chosen


@pytest.mark.parametrize(("nodes", "per_node"), [(2, 3), (3, 1), (1, 3)])
def test_too_few_seats_say_how_to_start_enough(nodes, per_node):
    with pytest.raises(GangError, match=f"--nnodes={nodes} --nproc-per-node={per_node}"):
        choose({0: [0, 1], 1: [2, 3]}, _launch(nodes, per_node), "torchrun")


def test_a_rank_is_told_its_place_as_torchrun_puts_it():
    told = place(5, _launch(2, 4), ("n0", 1234))
    assert (told["RANK"], told["WORLD_SIZE"], told["LOCAL_RANK"], told["GROUP_RANK"]) == ("5", "8", "1", "1")
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("n0", "1234")
