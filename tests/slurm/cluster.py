"""A real Slurm for tests: a controller and several nodes on this host, in a folder of their own.

Everything (ports, keys, state, spools) is private, so that two clusters, or a Slurm that is installed
and running here, do not meet. It needs root, because only root's `slurmd` may start jobs for users.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, SIGTERM

from tests.support.processes import inherited
from tests.support.waiting import eventually

PROGRAMS = (
    *("munged", "mungekey", "slurmctld", "slurmd"),
    *("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo"),
)
LONG_S = 180.0  # of waiting for a daemon or a job; only a broken one takes so long
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"  # where daemons are, and often not on a user's PATH

# No cgroups, no accounting, no systemd: what a container has not. The scheduler is made eager, and what
# is killed has two seconds instead of thirty, so that tests are short.
_CONFIGURATION = """\
ClusterName=accel
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
MessageTimeout=5
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why no cluster can be started here; empty if one can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=_search_path()) is None]
    if absent:
        return f"Slurm is not installed here ({', '.join(absent)} not found): tests/slurm/install.sh"
    if os.geteuid() != 0:
        return "a Slurm of one's own needs root"
    return ""


@dataclass
class Cluster:
    """A running cluster; `environment` makes Slurm's commands speak to it."""

    folder: Path
    nodes: Sequence[str]
    environment: Mapping[str, str]
    _daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def ask(self, *command: str) -> str:
        """What one of Slurm's commands prints."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=LONG_S
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")
        return done.stdout.strip()

    def jobs(self) -> list[str]:
        """Ids of the jobs that have not ended."""
        return self.ask("squeue", "--noheader", "--format=%A").split()

    def states(self) -> list[str]:
        """Of every node, in order; empty while the controller is not there yet."""
        try:
            return self.ask("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T").split()
        except RuntimeError:
            return []

    def daemon(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("wb") as out:
            self._daemons[name] = subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.folder,
            )

    def await_that(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LONG_S
        while not condition():
            for name, process in self._daemons.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended with {process.returncode}:\n{self.words_of(name)}")
            if time.monotonic() > deadline:
                said = "\n".join(f"{name}:\n{self.words_of(name)}" for name in self._daemons)
                raise RuntimeError(f"{what}: not after {LONG_S:.0f} s\n{said}")
            time.sleep(0.05)

    def words_of(self, name: str) -> str:
        return "\n".join((self.folder / f"{name}.out").read_text(errors="replace").splitlines()[-15:])

    def stop(self) -> None:
        """End jobs, daemons, and whatever of them is left; the folder stays for the caller to remove."""
        with suppress(RuntimeError, subprocess.TimeoutExpired):
            if jobs := self.jobs():
                self.ask("scancel", *jobs)
                eventually(lambda: not self.jobs(), 10)
        for process in reversed(self._daemons.values()):
            with suppress(ProcessLookupError):
                process.terminate()
        for process in reversed(self._daemons.values()):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for number, patience_s in ((SIGTERM, 2), (SIGKILL, 60)):
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            eventually(lambda: not self.processes(), patience_s)

    def processes(self) -> list[int]:
        """Everything that was started in this cluster: daemons, steps, jobs. All have its SLURM_CONF."""
        mark = f"SLURM_CONF={self.environment['SLURM_CONF']}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found


@contextmanager
def cluster(nodes: int = 4, gpus: int = 2) -> Iterator[Cluster]:
    """A cluster whose nodes are idle; ended and removed afterwards."""
    if reason := missing():
        raise RuntimeError(reason)
    # Not under pytest's tmp_path: a socket's path has at most 107 characters.
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="accel-slurm-", dir="/tmp")))
        running = _configure(folder, nodes, gpus)
        stack.callback(running.stop)
        _start(running)
        yield running


def _configure(folder: Path, nodes: int, gpus: int) -> Cluster:
    folder.chmod(0o755)  # munge's socket and the configuration are for everyone
    # Addresses of the loopback: names that ranks on other "nodes" can resolve, without touching /etc/hosts.
    names = [f"127.0.1.{index}" for index in range(1, nodes + 1)]
    controller, *ports = _free_ports(1 + nodes)
    devices = [folder / f"gpu{index}" for index in range(gpus)]  # empty files will do
    for device in devices:
        device.touch()
    for part in ("state", *(f"spool-{name}" for name in names)):
        (folder / part).mkdir()
    described = "\n".join(
        f"NodeName={name} NodeHostname=localhost NodeAddr={name} Port={port} CPUs=16 RealMemory=1000 "
        f"Gres=gpu:{gpus} State=UNKNOWN"
        for name, port in zip(names, ports, strict=True)
    )
    (folder / "slurm.conf").write_text(
        _CONFIGURATION.format(controller=controller, folder=folder, nodes=described)
    )
    (folder / "gres.conf").write_text(
        "".join(f"NodeName={name} Name=gpu File={device}\n" for name in names for device in devices)
    )
    environment = {
        **inherited("SLURM_", "SBATCH_"),
        "PATH": _search_path(),
        "SLURM_CONF": str(folder / "slurm.conf"),
    }
    return Cluster(folder=folder, nodes=names, environment=environment)


def _start(running: Cluster) -> None:
    folder = running.folder
    running.ask("mungekey", "--create", f"--keyfile={folder}/munge.key")
    files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={folder}/munge.{suffix}" for option, suffix in files.items()]
    running.daemon("munged", "munged", "--foreground", "--force", *options)
    running.await_that((folder / "munge.socket").exists, "munge's socket")
    running.daemon("slurmctld", "slurmctld", "-D", "-c")
    for name in running.nodes:
        running.daemon(f"slurmd-{name}", "slurmd", "-D", "-c", "-N", name)
    running.await_that(lambda: running.states() == ["idle"] * len(running.nodes), "idle nodes")


def _search_path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:{_SBIN}"


def _free_ports(count: int) -> list[int]:
    """Held all at once, so that they differ; then free for the daemons."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
