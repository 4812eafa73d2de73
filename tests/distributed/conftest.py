"""Groups of real processes that run small programs instead of benchmarks."""

import os
import textwrap
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_accel.distributed import group as group_module
from pytest_accel.distributed.group import Order, WorkerGroup
from pytest_accel.distributed.processes import LocalLauncher, RankCommand
from tests.support.processes import processes_of
from tests.support.waiting import eventually

LONG_S = 120.0  # of waiting; only a broken test waits so long

# Runs the program that an order names, as the session's plugin runs an item: an exception fails it.
PLUGIN = '''
import os
import runpy
import sys
import traceback

import pytest

from pytest_accel.distributed.worker import begin_rank


def join():
    """The process group of the group, opened once."""
    import datetime

    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    return torch, dist


def note(name):
    """Make a file in the folder of the session, for the test."""
    open(os.path.join(os.path.dirname(__file__), name), "w").close()


def pytest_configure(config):
    before = os.environ.get("BEFORE_HELLO")
    if before:
        runpy.run_path(before)
    config.rank = begin_rank()


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    config._do_configure()
    end = config.rank
    for order in end.orders():
        print("rank", end.place.rank, "takes", order.node_id, flush=True)
        known = {"end": end, "place": end.place, "rank": end.place.rank, "order": order, "join": join, "note": note}
        try:
            found = runpy.run_path(order.node_id, init_globals=known)
            end.answer({"outcome": "passed", "value": found.get("value")})
        except BaseException as error:
            text = traceback.format_exc()
            end.answer({"outcome": "failed", "cause": f"{type(error).__name__}: {error}", "text": text})
    config._ensure_unconfigure()
    return 0
'''


class Groups:
    """Starts groups and gives them programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[WorkerGroup] = []
        (folder / "tiny_rank.py").write_text(PLUGIN)

    def arguments(self, rank_folder: Path) -> list[str]:
        return ["-p", "tiny_rank", "-p", "no:accel", "-p", "no:benchmark", "-p", "no:cacheprovider", "-q"]

    def start(self, size: int = 2, *, process_group: bool = True, rendezvous_s: float = LONG_S, **options):
        group = WorkerGroup.launch(
            LocalLauncher(),
            per_node=size,
            process_group=process_group,
            command=RankCommand(arguments=self.arguments, directory=self.folder),
            rendezvous_s=rendezvous_s,
            **options,
        )
        self.started.append(group)
        return group

    def program(self, text: str) -> Path:
        file = self.folder / f"program_{len(list(self.folder.glob('program_*')))}.py"
        file.write_text(textwrap.dedent(text))
        return file

    def order(self, text: str) -> Order:
        return Order(node_id=str(self.program(text)), session="s", platform="cpux2")

    def run(self, group: WorkerGroup, text: str, *, timeout_s: float = LONG_S, **options):
        return group.run(self.order(text), timeout_s=timeout_s, **options)


@pytest.fixture(name="eventually")
def _eventually() -> Callable[[Callable[[], object]], object]:
    return lambda condition: eventually(condition, LONG_S)


@contextmanager
def _groups_in(folder: Path) -> Iterator[Groups]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)  # for the ranks' plugin
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        found = Groups(folder)
        yield found
        for group in found.started:
            group.close()
            assert processes_of(group.id) == []


@pytest.fixture
def groups(tmp_path) -> Iterator[Groups]:
    with _groups_in(tmp_path) as found:
        yield found


@pytest.fixture(scope="class")
def groups_of_class(tmp_path_factory) -> Iterator[Groups]:
    """Groups that serve many tests."""
    with _groups_in(tmp_path_factory.mktemp("groups")) as found:
        yield found


@pytest.fixture
def deadline_when(tmp_path, monkeypatch):
    """Let the deadline of a group pass once ranks have written these files: no test depends on timing."""

    def set_files(*names: str) -> None:
        def monotonic() -> float:
            return time.monotonic() + (1e6 if all((tmp_path / name).exists() for name in names) else 0)

        clock = types.SimpleNamespace(monotonic=monotonic, sleep=time.sleep)
        monkeypatch.setattr(group_module, "time", clock)

    return set_files
