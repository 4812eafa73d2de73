"""Launcher ranks as real processes on loopback, with a small rank program."""

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

from pytest_accel.distributed.launch import GroupSpec, RankCommand, WorkerError, rank_variables
from pytest_accel.distributed.launcher_rank import LauncherRank, launcher_rank_from
from pytest_accel.distributed.launcher_session import (
    LauncherRanks,
    RemoteLauncher,
    _start_here,
    choose_ranks,
    open_launcher_ranks,
)
from pytest_accel.distributed.processes import processes_of
from pytest_accel.options import GROUP_ID_VARIABLE
from tests.support.gloo import free_port
from tests.support.waiting import eventually

LONG_S = 60.0  # only a broken test waits so long

LAUNCHER_RANK = """
import os
import sys
from pathlib import Path

from pytest_accel.distributed.launch import RankCommand
from pytest_accel.distributed.launcher_rank import launcher_rank_from
from pytest_accel.distributed.launcher_session import open_launcher_ranks, serve

found = launcher_rank_from(os.environ)
if found.rank == 0:
    ranks = open_launcher_ranks(found, rendezvous_s=60)
    ranks.wait()
    Path("all-there").touch()
    sys.stdin.read()
sys.exit(
    serve(
        found,
        command=RankCommand(
            arguments=lambda folder: [*sys.argv[2:], f"--basetemp={folder}/tmp"], directory=Path.cwd()
        ),
        rendezvous_s=float(sys.argv[1]),
        inventory=lambda: {"cores": 2},
    )
)
"""

# Runs in a rank instead of a suite: writes its variables, and dies where the test wants it.
RANK = """
import json
import os
import signal
import time
from pathlib import Path

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def test_rank():
    rank = os.environ["RANK"]
    variables = {name: os.environ[name] for name in NAMES}
    variables["elastic"] = [name for name in os.environ if name.startswith("TORCHELASTIC")]
    variables["pid"] = os.getpid()
    print(f"last output of rank {rank}", flush=True)
    Path(f"rank-{rank}.part").write_text(json.dumps(variables))
    Path(f"rank-{rank}.part").rename(f"rank-{rank}")
    if Path(f"die-{rank}").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
"""


class World:
    """Starts launcher ranks as a launcher would: the same variables, one process for each rank but 0."""

    def __init__(self, folder: Path, *, sizes: tuple[int, ...]) -> None:
        self.folder = folder
        self.sizes = sizes
        self.port = free_port()
        self.processes: dict[int, subprocess.Popen[str]] = {}
        (folder / "launcher_rank.py").write_text(LAUNCHER_RANK)
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "test_rank.py").write_text(textwrap.dedent(RANK))

    def environ(self, rank: int) -> dict[str, str]:
        node = next(node for node in range(len(self.sizes)) if rank < sum(self.sizes[: node + 1]))
        variables = {
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
        return {name: str(value) for name, value in variables.items()}

    def launcher_rank(self, rank: int = 0) -> LauncherRank:
        found = launcher_rank_from(self.environ(rank))
        assert found is not None
        return found

    def start(self, *ranks: int, rendezvous_s: float = LONG_S) -> None:
        for rank in ranks:
            self.processes[rank] = subprocess.Popen(
                [sys.executable, "launcher_rank.py", str(rendezvous_s), "-q", "-s", "test_rank.py"],
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

    def output(self, rank: int) -> str:
        return "".join(self.processes[rank].communicate(timeout=LONG_S))

    def spec(self, *, nodes: int = 1, per_node: int = 1) -> GroupSpec:
        return GroupSpec(
            group=f"test-{os.getpid()}-{time.monotonic_ns()}",
            nodes=nodes,
            per_node=per_node,
            process_group=True,
            host="127.0.0.1",
            port=1,
            token="unused",
            bind="auto",
            rendezvous_s=LONG_S,
        )

    @property
    def command(self) -> RankCommand:
        return RankCommand(
            arguments=lambda folder: ["-q", "-s", "test_rank.py", f"--basetemp={folder}/tmp"],
            directory=self.folder,
        )

    def rank_file(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}"

    def variables(self, rank: int) -> dict[str, str]:
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
        monkeypatch.delenv(GROUP_ID_VARIABLE, raising=False)
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
def opened() -> Iterator[Callable[..., LauncherRanks]]:
    made: list[LauncherRanks] = []

    def make(world: World) -> LauncherRanks:
        made.append(open_launcher_ranks(world.launcher_rank(), rendezvous_s=LONG_S))
        return made[-1]

    yield make
    for ranks in made:
        ranks.dismiss(0)


@pytest.fixture(scope="class")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with worlds_in(tmp_path_factory.mktemp("world")) as make:
        three = make(2, 1)
        three.start(1, 2)
        yield three


@pytest.fixture(scope="class")
def ranks(three: World) -> Iterator[LauncherRanks]:
    ranks = open_launcher_ranks(three.launcher_rank(), rendezvous_s=LONG_S)
    yield ranks
    ranks.dismiss(0)


class TestSession:
    """One world of three ranks on two nodes for all tests: each rank imports torch."""

    @pytest.fixture(autouse=True)
    def clean_folder(self, three: World) -> Iterator[None]:
        yield
        for path in three.folder.glob("rank-*"):
            path.unlink()

    def test_launcher_ranks_connect_with_their_inventory(self, ranks):
        ranks.wait()
        seen = ranks.inventories()
        assert {rank: each.node for rank, each in seen.items()} == {1: 0, 2: 1}
        assert all(each.host and each.sees == {"cores": 2} for each in seen.values())

    def test_group_runs_in_a_process_of_each_launcher_rank_and_ends_with_stacks(self, three, ranks):
        spec = three.spec(nodes=2)
        started = RemoteLauncher(ranks).start(spec, three.command)
        variables = [three.variables(0), three.variables(1)]
        assert [each["RANK"] for each in variables] == ["0", "1"]
        assert [each["GROUP_RANK"] for each in variables] == ["0", "1"]
        assert {each["WORLD_SIZE"] for each in variables} == {"2"}
        assert len({each["MASTER_PORT"] for each in variables}) == 1
        assert variables[0]["MASTER_PORT"] != str(three.port)
        assert [each["elastic"] for each in variables] == [[], []]
        assert started.ended() is None

        exits = started.end(stacks=True)
        assert sorted(exits) == [0, 1]
        for rank, left in exits.items():
            assert f"last output of rank {rank}" in left.log
            assert "test_rank" in left.log + left.stacks
        assert processes_of(spec.group) == []
        assert started.end(stacks=True) == exits

    def test_smaller_group_uses_fewer_launcher_ranks(self, three, ranks):
        started = RemoteLauncher(ranks).start(three.spec(), three.command)
        assert three.variables(0)["WORLD_SIZE"] == "1"
        assert sorted(started.end(stacks=False)) == [0]
        assert not three.rank_file(1).exists()

    def test_launcher_ranks_serve_the_next_group_after_a_killed_rank(self, three, ranks):
        launcher = RemoteLauncher(ranks)
        (three.folder / "die-1").touch()
        started = launcher.start(three.spec(per_node=2), three.command)
        wait_until(lambda: started.ended() is not None, "the end of rank 1 went unnoticed")
        assert "rank 1" in started.ended()
        assert "SIGKILL" in started.ended()
        before = {rank: three.variables(rank)["pid"] for rank in (0, 1)}
        exits = started.end(stacks=False)
        assert exits[1].status == "killed by SIGKILL"
        assert exits[0].status == ""

        (three.folder / "die-1").unlink()
        for rank in before:
            three.rank_file(rank).unlink()
        again = launcher.start(three.spec(per_node=2), three.command)
        after = {rank: three.variables(rank)["pid"] for rank in (0, 1)}
        assert not set(after.values()) & set(before.values())
        assert again.ended() is None
        again.end(stacks=False)

    def test_interrupted_launcher_rank_ends_its_process_and_all_leave_with_one_status(self, three, ranks):
        """Ctrl-C reaches all launcher ranks. The last test of the class: all of them leave."""
        spec = three.spec(per_node=2)
        started = RemoteLauncher(ranks).start(spec, three.command)
        three.variables(1)
        three.processes[1].send_signal(signal.SIGINT)
        wait_until(lambda: not processes_of(f"{spec.group}.1"), "its process stayed")
        started.end(stacks=False)
        ranks.dismiss(7)
        assert [three.status(1), three.status(2)] == [7, 7]
        assert [three.output(1), three.output(2)] == ["", ""]


def test_missing_launcher_rank_is_named_with_its_node(world, opened):
    three = world(2, 1)
    three.start(1)
    ranks = opened(three)
    wait_until(ranks.inventories, "rank 1 never came")
    ranks.deadline = time.monotonic() + 0.1  # also for latecomers, at the end
    with pytest.raises(
        WorkerError, match=r"rank 2 of 3 \(torchrun\) did not connect; none connected from node 1"
    ):
        ranks.wait()


def test_port_in_use_is_reported_with_the_remedy(world):
    two = world(1, 1)
    with socket.create_server(("", two.port)), pytest.raises(WorkerError, match="MASTER_PORT=") as error:
        open_launcher_ranks(two.launcher_rank(), rendezvous_s=5)
    assert str(two.port) in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_missing_rank_0_is_reported_by_the_others(world):
    two = world(1, 1)
    two.start(1, rendezvous_s=1)
    assert two.status(1) == 1
    assert "rank 1 of 2 (torchrun)" in two.output(1)


def test_order_cannot_set_other_variables(world):
    two = world(2)
    variables = rank_variables(0, two.spec(), ("127.0.0.1", 1))
    started = _start_here(two.spec(), two.command, {**variables, "TORCHELASTIC_STRANGE": "1"})
    assert two.variables(0)["elastic"] == []
    started.end(stacks=False)


def test_killed_launcher_rank_is_named_and_its_rank_ends(world, opened):
    two = world(2)
    two.start(1)
    launcher = RemoteLauncher(opened(two))
    spec = two.spec(per_node=2)
    started = launcher.start(spec, two.command)
    two.variables(0), two.variables(1)
    two.processes[1].kill()
    wait_until(lambda: started.ended() is not None, "the end of the launcher rank went unnoticed")
    assert "rank 1" in started.ended()
    exits = started.end(stacks=False)
    assert "is gone" in exits[1].status
    assert processes_of(spec.group) == []
    with pytest.raises(WorkerError, match="rank 1 on"):
        launcher.start(two.spec(per_node=2), two.command)


def test_launcher_ranks_leave_when_rank_0_was_killed(world):
    two = world(2)
    two.start(0, 1)
    wait_until((two.folder / "all-there").exists, "the ranks never met")
    two.processes[0].kill()
    assert two.status(1) == 1
    assert "rank 0 is gone" in two.output(1)


def test_terminated_launcher_rank_ends_its_process_first(world, opened):
    two = world(2)
    two.start(1)
    spec = two.spec(per_node=2)
    started = RemoteLauncher(opened(two)).start(spec, two.command)
    two.variables(1)
    two.processes[1].terminate()
    assert two.status(1) == 128 + signal.SIGTERM
    assert processes_of(f"{spec.group}.1") == []
    started.end(stacks=False)


def _spec(nodes: int, per_node: int) -> GroupSpec:
    return GroupSpec(
        group="g", nodes=nodes, per_node=per_node, process_group=True, host="n0", port=1, token="",
        bind="auto", rendezvous_s=1.0,
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
def test_first_launcher_ranks_of_the_first_nodes_are_chosen(by_node, nodes, per_node, chosen):
    assert choose_ranks(by_node, _spec(nodes, per_node), "srun") == chosen


@pytest.mark.parametrize(("nodes", "per_node"), [(2, 3), (3, 1), (1, 3)])
def test_too_few_launcher_ranks_are_reported_with_the_command(nodes, per_node):
    with pytest.raises(WorkerError, match=f"--nnodes={nodes} --nproc-per-node={per_node}"):
        choose_ranks({0: [0, 1], 1: [2, 3]}, _spec(nodes, per_node), "torchrun")


def test_rank_variables_are_those_of_torchrun():
    variables = rank_variables(5, _spec(2, 4), ("n0", 1234))
    assert (variables["RANK"], variables["WORLD_SIZE"], variables["LOCAL_RANK"], variables["GROUP_RANK"]) == (
        "5",
        "8",
        "1",
        "1",
    )
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("n0", "1234")
