"""Launcher ranks: variables of torchrun and srun, and real processes on loopback with a small rank program."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_accel.distributed import launcher
from pytest_accel.distributed.launcher import (
    Inventory,
    LauncherError,
    LauncherRank,
    LauncherRanks,
    choose_ranks,
    first_node,
    launcher_rank_from,
    read_secret,
    write_secret,
)
from pytest_accel.distributed.processes import RankCommand, RankSpec, WorkerError
from pytest_accel.options import GROUP_ID_VARIABLE, SECRET_VARIABLE, WORKER_VARIABLE
from tests.support.gloo import free_port
from tests.support.processes import processes_of
from tests.support.waiting import eventually

LONG_S = 60.0  # only a broken test waits so long

LAUNCHER_RANK = """
import os
import sys
from pathlib import Path

from pytest_accel.distributed.launcher import LauncherRanks, launcher_rank_from, serve
from pytest_accel.distributed.processes import RankCommand

found = launcher_rank_from(os.environ)
if found.rank == 0:
    ranks = LauncherRanks(found, rendezvous_s=60)
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
        cpus="0-1",
        devices=(),
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


def spec(*, nodes: int = 1, per_node: int = 1) -> RankSpec:
    return RankSpec(
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

    def start(self, *ranks: int) -> None:
        for rank in ranks:
            self.processes[rank] = subprocess.Popen(
                [sys.executable, "launcher_rank.py", str(LONG_S), "-q", "-s", "test_rank.py"],
                cwd=self.folder,
                env={
                    **os.environ,
                    **self.environ(rank),
                    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                    "TMPDIR": str(self.folder.parent),
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
        monkeypatch.delenv(SECRET_VARIABLE, raising=False)
        monkeypatch.chdir(folder)
        monkeypatch.setattr("tempfile.tempdir", str(folder.parent))
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
        made.append(LauncherRanks(world.launcher_rank(), rendezvous_s=LONG_S))
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
    ranks = LauncherRanks(three.launcher_rank(), rendezvous_s=LONG_S)
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
        assert {each.rank: each.node for each in seen} == {1: 0, 2: 1}
        assert all(each.host and each.cpus == "0-1" for each in seen)
        assert list(Path.cwd().glob(".pytest-accel-*")) == [], "the secret stays only until all have it"

    def test_group_runs_in_a_process_of_each_launcher_rank_and_ends_with_stacks(self, three, ranks):
        given = spec(nodes=2)
        started = ranks.start(given, three.command)
        variables = [three.variables(0), three.variables(1)]
        assert [each["RANK"] for each in variables] == ["0", "1"]
        assert [each["GROUP_RANK"] for each in variables] == ["0", "1"]
        assert {each["WORLD_SIZE"] for each in variables} == {"2"}
        assert len({each["MASTER_PORT"] for each in variables}) == 1
        assert variables[0]["MASTER_PORT"] != str(three.port)
        assert [each["elastic"] for each in variables] == [[], []]
        assert started.ended() == {}

        exits = started.end(stacks=True)
        assert sorted(exits) == [0, 1]
        for rank, left in exits.items():
            assert f"last output of rank {rank}" in left.log
            assert "test_rank" in left.log + left.stacks
        assert processes_of(given.group) == []
        assert started.end(stacks=True) == exits

    def test_launcher_ranks_serve_the_next_group_after_a_killed_rank(self, three, ranks):
        (three.folder / "die-1").touch()
        started = ranks.start(spec(per_node=2), three.command)
        wait_until(started.ended, "the end of rank 1 went unnoticed")
        assert started.ended() == {1: "was killed by SIGKILL"}
        before = {rank: three.variables(rank)["pid"] for rank in (0, 1)}
        exits = started.end(stacks=False)
        assert exits[1].status == "was killed by SIGKILL"
        assert "last output of rank 1" in exits[1].log
        assert exits[0].status == ""

        (three.folder / "die-1").unlink()
        for rank in before:
            three.rank_file(rank).unlink()
        again = ranks.start(spec(per_node=2), three.command)
        after = {rank: three.variables(rank)["pid"] for rank in (0, 1)}
        assert not set(after.values()) & set(before.values())
        assert again.ended() == {}
        again.end(stacks=False)

    def test_rank_that_cannot_be_started_is_named_with_the_reason(self, three, ranks):
        command = three.command
        away = three.folder.rename(three.folder.with_name("away"))  # rank 1 starts in a folder that is gone
        try:
            started = ranks.start(spec(per_node=2), replace(command, directory=away))
            wait_until(started.ended, "nothing was reported")
            assert started.ended()[1].startswith("was not started: no process could be started: ")
            started.end(stacks=False)
        finally:
            away.rename(three.folder)

    def test_interrupted_launcher_rank_ends_its_process_and_all_leave_with_one_status(self, three, ranks):
        """Ctrl-C reaches all launcher ranks. The last test of the class: all of them leave."""
        given = spec(per_node=2)
        started = ranks.start(given, three.command)
        three.variables(1)
        three.processes[1].send_signal(signal.SIGINT)
        wait_until(lambda: not processes_of(f"{given.group}.1"), "its process stayed")
        started.end(stacks=False)
        ranks.dismiss(7)
        assert [three.status(1), three.status(2)] == [7, 7]
        assert [three.output(1), three.output(2)] == ["", ""]


@contextmanager
def rank_1_in_this_process(world: World, ranks: LauncherRanks) -> Iterator[None]:
    """Connect it while a thread accepts it: a process of its own would import torch."""
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(wait_until, ranks.inventories, "rank 1 never came")
        connection = launcher._connect(world.launcher_rank(1), LONG_S, Inventory(rank=1, node=0, host="n1"))
        accepted.result()
    yield
    connection.close()


def test_missing_launcher_rank_is_named_with_its_node(world, opened):
    three = world(2, 1)
    ranks = opened(three)
    with rank_1_in_this_process(three, ranks):
        ranks.deadline = time.monotonic() + 0.1  # also for latecomers, at the end
        with pytest.raises(
            WorkerError, match=r"rank 2 of 3 \(torchrun\) did not connect; none connected from node 1 "
        ):
            ranks.wait()


@pytest.mark.parametrize("sizes", [(1, 1), (2,)])
def test_port_in_use_is_reported_with_the_remedy(world, sizes):
    two = world(*sizes)
    with socket.create_server(("", two.port)), pytest.raises(WorkerError, match="MASTER_PORT=") as error:
        LauncherRanks(two.launcher_rank(), rendezvous_s=5)
    assert str(two.port) in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(("sizes", "address"), [((2,), "127.0.0.1"), ((1, 1), "")])
def test_one_node_listens_on_loopback_only(world, monkeypatch, sizes, address):
    def listen(given: str, _token: str) -> None:
        raise OSError(f"listens on {given!r}")

    monkeypatch.setattr(launcher, "Listener", listen)
    with pytest.raises(OSError, match=f"listens on {address!r}"):
        LauncherRanks(world(*sizes).launcher_rank(), rendezvous_s=5)


def serve_here(world: World, rank: int, *, rendezvous_s: float = LONG_S) -> int:
    """Serve as a launcher rank in this process until it leaves, which then ignores signals; return its status."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return launcher.serve(
            world.launcher_rank(rank), command=world.command, rendezvous_s=rendezvous_s, cpus="", devices=()
        )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_missing_rank_0_is_reported_by_the_others(world, capsys):
    assert serve_here(world(1, 1), 1, rendezvous_s=1) == 1
    assert "rank 1 of 2 (torchrun)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("forged", "problem"),
    [
        ("{}", "was not written by pytest-accel"),
        ("\\ud8", "was not written by pytest-accel"),
        ('{"host": "127.0.0.1", "port": 99999999, "secret": ""}', "rank 0 cannot be reached"),
        ('{"host": "a\\u0000", "port": 1, "secret": ""}', "rank 0 cannot be reached"),
        ('{"host": "127.0.0.1", "port": 1, "secret": "\\u0000"}', "set PYTEST_ACCEL_SECRET"),
        ('{"host": "127.0.0.1", "port": 1, "secret": "/etc/passwd"}', "set PYTEST_ACCEL_SECRET"),
    ],
)
def test_forged_address_of_rank_0_is_one_clear_error(world, monkeypatch, forged, problem):
    """Whoever reaches the store can write it."""
    if '"secret": ""' in forged:
        monkeypatch.setenv(SECRET_VARIABLE, "s" * 32)
    two = world(1, 1)
    store = launcher.open_store(two.launcher_rank(), LONG_S)
    store.set(launcher._KEY.format(0), forged)
    with pytest.raises(WorkerError, match=problem) as caught:
        launcher._connect(two.launcher_rank(1), LONG_S, Inventory(rank=1, node=1, host="n1"))
    assert len(str(caught.value).splitlines()) == 1


# What another user of the node can do: read and write the store, and call what it names.
STRANGER = """
import encodings.idna, json, os, sys  # the first before it becomes another user, who may not read this Python
from pathlib import Path
from torch.distributed import TCPStore
from pytest_accel.distributed.messages import ConnectionLost, call

os.setgroups([])
os.setuid(65534)
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
address = json.loads(store.get("pytest-accel/ranks/0"))
assert set(address) == {"host", "port", "secret"}, address
secret = Path(address["secret"])
try:
    found = secret.read_text()
except PermissionError:
    assert secret.exists()
    found = address["secret"]
try:
    call("127.0.0.1", address["port"], token=found, hello={"rank": 1, "node": 0, "host": "x"}, timeout_s=60)
except ConnectionLost as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_user_who_reads_the_store_is_no_rank(world, opened, tmp_path):
    for each in (tmp_path, *tmp_path.parents):  # for this user to look into
        if not each.stat().st_mode & 0o001:
            each.chmod(0o711)
    two = world(1, 1)
    ranks = opened(two)
    with subprocess.Popen(
        [sys.executable, "-c", STRANGER, str(two.port)], stdout=subprocess.PIPE, text=True
    ) as stranger:
        wait_until(lambda: ranks.inventories() or stranger.poll() is not None, "it waits")
        said = stranger.communicate()[0]
    assert ranks.inventories() == []
    assert (stranger.returncode, said) == (0, "no session answers there: it closed the connection\n")
    ranks.deadline = time.monotonic()  # nobody else comes


def test_secret_in_the_environment_needs_no_folder(world, opened, monkeypatch):
    monkeypatch.setenv(SECRET_VARIABLE, "s" * 32)
    monkeypatch.chdir("/")
    two = world(2)
    ranks = opened(two)
    with rank_1_in_this_process(two, ranks):
        ranks.wait()
    assert list(two.folder.glob(".pytest-accel-*")) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.chmod(0o640),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), os.mkfifo(path, 0o600)),
        lambda path: path.rename(path.with_name("moved")) and path.symlink_to("moved"),
        lambda path: os.chown(path, 65534, -1) if os.geteuid() == 0 else path.chmod(0o644),
    ],
    ids=["readable by others", "gone", "FIFO", "link", "of another user"],
)
def test_secret_that_others_could_know_is_refused_with_the_remedy(tmp_path, change):
    path = write_secret(tmp_path, "secret")
    assert read_secret(tmp_path, path.name) == "secret"
    change(path)
    with pytest.raises(WorkerError, match=f"or set {SECRET_VARIABLE} to one secret"):
        read_secret(tmp_path, path.name)


def test_secret_on_a_file_system_without_modes_is_removed_again(tmp_path, monkeypatch):
    opened_by_all = os.open
    monkeypatch.setattr(os, "open", lambda path, flags, mode=0: opened_by_all(path, flags, mode | 0o044))
    with pytest.raises(WorkerError, match="is not a file that this user alone can read"):
        write_secret(tmp_path, "secret")
    assert list(tmp_path.iterdir()) == []


def test_old_secrets_are_removed_where_they_can_be(tmp_path):
    old, in_the_way = write_secret(tmp_path, "of a killed session"), tmp_path / ".pytest-accel-secret-folder"
    in_the_way.mkdir()
    for each in (old, in_the_way):
        os.utime(each, (0, 0))
    assert set(tmp_path.iterdir()) == {old, in_the_way}
    new = write_secret(tmp_path, "new")
    assert set(tmp_path.iterdir()) == {new, in_the_way}


def test_killed_launcher_rank_is_named_and_its_rank_ends(world, opened):
    two = world(2)
    two.start(1)
    ranks = opened(two)
    given = spec(per_node=2)
    started = ranks.start(given, two.command)
    two.variables(0), two.variables(1)
    two.processes[1].kill()
    wait_until(started.ended, "the end of the launcher rank went unnoticed")
    assert "is gone with its pytest on" in started.ended()[1]
    exits = started.end(stacks=False)
    assert "is gone" in exits[1].status
    assert processes_of(given.group) == []
    again = ranks.start(spec(per_node=2), two.command)
    assert "is gone with its pytest on" in again.ended()[1]
    again.end(stacks=False)


def test_launcher_ranks_leave_when_rank_0_was_killed(world, capsys):
    two = world(2)
    two.start(0)

    def kill_rank_0() -> None:
        wait_until((two.folder / "all-there").exists, "the ranks never met")
        two.processes[0].kill()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(kill_rank_0)
        assert serve_here(two, 1) == 1
    assert "rank 0 is gone" in capsys.readouterr().err


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
    assert choose_ranks(by_node, spec(nodes=nodes, per_node=per_node), "srun") == chosen


@pytest.mark.parametrize(("nodes", "per_node"), [(2, 3), (3, 1), (1, 3)])
def test_too_few_launcher_ranks_are_reported_with_the_command(nodes, per_node):
    with pytest.raises(WorkerError, match=f"--nnodes={nodes} --nproc-per-node={per_node}"):
        choose_ranks({0: [0, 1], 1: [2, 3]}, spec(nodes=nodes, per_node=per_node), "torchrun")


# --- variables of launchers -------------------------------------------------------------------------------

# As torchrun 2.10 sets it for rank 5 of two nodes of four.
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "n0",
    "MASTER_PORT": "40723",
    "TORCHELASTIC_RUN_ID": "77",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
# As srun 22.05 sets it for task 3 of `srun -N2 --ntasks-per-node=2`.
SRUN = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "n[0-1]",
}


def test_torchrun_rank_is_read():
    rank = launcher_rank_from(TORCHRUN)
    assert (rank.rank, rank.world_size) == (5, 8)
    assert (rank.node, rank.nodes, rank.launcher) == (1, 2, "torchrun")
    assert (rank.master_host, rank.master_port, rank.agent_store) == ("n0", 40723, True)


def test_variables_set_by_hand_make_a_rank():
    by_hand = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    rank = launcher_rank_from({name: TORCHRUN[name] for name in by_hand})
    assert (rank.rank, rank.node, rank.nodes, rank.agent_store) == (5, 1, 2, False)
    rank = launcher_rank_from({**SRUN, "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"})
    assert (rank.master_host, rank.master_port) == ("10.0.0.7", 29500)


def test_srun_rank_is_read_and_its_first_node_is_the_master():
    rank = launcher_rank_from(SRUN)
    assert (rank.rank, rank.world_size) == (3, 4)
    assert (rank.node, rank.nodes, rank.launcher) == (1, 2, "srun")
    assert (rank.master_host, rank.agent_store) == ("n0", False)
    assert 20000 <= rank.master_port < 32000


def test_every_task_derives_the_same_port_and_the_next_step_another():
    ports = {launcher_rank_from({**SRUN, "SLURM_PROCID": rank}).master_port for rank in "0123"}
    assert len(ports) == 1
    assert launcher_rank_from({**SRUN, "SLURM_STEP_ID": "1"}).master_port not in ports
    assert launcher_rank_from({**SRUN, "SLURM_JOB_ID": "18"}).master_port not in ports


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        ({**SRUN, **TORCHRUN}, "torchrun"),  # srun started torchrun
        ({**SRUN, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, "srun"),  # set by a job script
    ],
)
def test_launcher_is_recognized_among_variables_of_both(environ, launcher):
    assert launcher_rank_from(environ).launcher == launcher


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {**TORCHRUN, WORKER_VARIABLE: "g.1"},
        {**SRUN, GROUP_ID_VARIABLE: "g.1"},
        {**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"},
        {**SRUN, "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_JOB_ID": "6", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"},
    ],
    ids=["alone", "our rank", "child of our rank", "torchrun of one", "srun of one", "batch script"],
)
def test_process_is_no_launcher_rank(environ):
    assert launcher_rank_from(environ) is None


@pytest.mark.parametrize(
    ("environ", "variable", "value"),
    [
        (TORCHRUN, "RANK", "8"),
        (TORCHRUN, "RANK", "-1"),
        (TORCHRUN, "RANK", "two"),
        (TORCHRUN, "WORLD_SIZE", "0"),
        (TORCHRUN, "WORLD_SIZE", ""),
        (TORCHRUN, "WORLD_SIZE", "9" * 5000),
        (TORCHRUN, "LOCAL_WORLD_SIZE", "9"),
        (TORCHRUN, "GROUP_RANK", "2"),
        (TORCHRUN, "MASTER_ADDR", ""),
        (TORCHRUN, "MASTER_PORT", "65536"),
        (SRUN, "SLURM_STEP_NUM_TASKS", "²"),
        (SRUN, "SLURM_PROCID", "4"),
        (SRUN, "SLURM_NODEID", "2"),
        (SRUN, "SLURM_STEP_NUM_NODES", "5"),
        (SRUN, "SLURM_STEP_NODELIST", ""),
        (SRUN, "SLURM_JOB_ID", "x"),
        (SRUN, "MASTER_PORT", "http"),
    ],
)
def test_invalid_value_is_reported_with_its_variable(environ, variable, value):
    with pytest.raises(LauncherError, match=variable) as error:
        launcher_rank_from({**environ, variable: value})
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("n0", "n0"),
        ("n3,n1", "n3"),
        ("n[08-11,13],login", "n08"),
        ("gpu-a[01-02]b[3,4].cluster", "gpu-a01b3.cluster"),
    ],
)
def test_first_node_of_a_host_list(text, name):
    assert first_node(text) == name
