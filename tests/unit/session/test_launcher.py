"""pytest under torchrun or srun: launcher ranks, and the machine of all of them."""

import types
from contextlib import nullcontext
from dataclasses import replace

import pytest

from pytest_accel.distributed.launcher import Inventory, launcher_rank_from
from pytest_accel.options import GROUP_ID_VARIABLE, WORKER_VARIABLE
from pytest_accel.platforms.catalogue import DetectedDevice, PlatformName, load_catalogue
from pytest_accel.platforms.host import allowed_cpus, format_list
from pytest_accel.platforms.machine import Cpu, Machine, identified
from pytest_accel.session.launcher import (
    LAUNCHER_RANKS,
    bound_by_launcher,
    launcher_rank,
    merged_machine,
    refuse_launched,
)

CATALOGUE = load_catalogue()
TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}


@pytest.fixture
def launched(monkeypatch):
    for name in (WORKER_VARIABLE, GROUP_ID_VARIABLE):
        monkeypatch.delenv(name, raising=False)

    def launch(environ=TORCHRUN):
        for name, value in environ.items():
            monkeypatch.setenv(name, value)

    return launch


@pytest.mark.parametrize(
    ("expression", "used"),
    [
        ("", False),
        ("a100", False),
        ("not a100x4", False),
        ("slow", False),
        ("a100x4", True),
        ("cpun2", True),
        ("slow and (a100 or gh200x4n2)", True),
    ],
)
def test_launcher_rank_is_used_where_m_names_several_devices(pytester, launched, expression, used):
    launched()
    config = pytester.parseconfig("-m", expression)
    assert (launcher_rank(config) is not None) == used
    refused = pytest.raises(pytest.UsageError, match=r"rank 1 of 8 \(torchrun\).*-m a100x4")
    with nullcontext() if used else refused:
        refuse_launched(config)


def test_without_a_launcher_nothing_is_refused(pytester, monkeypatch):
    for name in (*TORCHRUN, "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    config = pytester.parseconfig("-m", "cpux2")
    assert launcher_rank(config) is None
    refuse_launched(config)


def test_platform_of_the_project_counts_too(pytester, launched):
    launched()
    pytester.makepyprojecttoml(
        '[tool.pytest-accel.platforms.mybox]\npatterns = ["My.*"]\n[tool.pytest.ini_options]\n'
    )
    assert launcher_rank(pytester.parseconfig("-m", "myboxx4")) is not None


def test_malformed_launcher_variables_stop_only_distributed_benchmarks(pytester, launched):
    launched({**TORCHRUN, "RANK": "9"})
    assert launcher_rank(pytester.parseconfig("-m", "slow")) is None
    with pytest.raises(pytest.UsageError, match="RANK='9'"):
        launcher_rank(pytester.parseconfig("-m", "cpux2"))


# --- the machine ------------------------------------------------------------------------------------------


def a100(uuid: str, index: int = 0) -> DetectedDevice:
    return DetectedDevice(index=index, name="NVIDIA A100-SXM4-40GB", uuid=uuid, memory_bytes=40 * 2**30)


def machine(*devices: DetectedDevice, cores: int = 8) -> Machine:
    return Machine(cpu=Cpu(name="A CPU", model="1-2", slug="a-cpu", cores=cores), devices=devices)


def seen(rank: int, node: int, *devices: DetectedDevice) -> Inventory:
    return Inventory(rank=rank, node=node, host=f"n{node}", devices=devices)


def rank_0(*, nodes: int):
    return replace(launcher_rank_from({**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0"}), nodes=nodes)


def merged(own, where, *inventories):
    return merged_machine(own, where, inventories, CATALOGUE)


def detected(*devices: DetectedDevice) -> Machine:
    """As `detect` gives it for this process: with what the catalogue makes of each device."""
    return machine(*(identified(device, CATALOGUE) for device in devices))


def test_tasks_that_see_one_device_each_make_one_node_of_four():
    own = detected(a100("a"))
    whole = merged(own, rank_0(nodes=1), *(seen(n, 0, a100(u)) for n, u in enumerate("bcd", 1)))
    assert [device.uuid for device in whole.devices] == ["a", "b", "c", "d"]
    assert [device.index for device in whole.devices] == [0, 1, 2, 3]
    assert {device.key for device in whole.devices} == {"a100"}


def test_tasks_that_all_see_the_same_devices_count_them_once():
    both = (a100("a"), a100("b", 1))
    whole = merged(detected(*both), rank_0(nodes=1), seen(1, 0, *both))
    assert [device.uuid for device in whole.devices] == ["a", "b"]


def test_nodes_are_those_of_the_launcher_and_devices_those_of_rank_0():
    four = [a100(uuid, index) for index, uuid in enumerate("abcd")]
    whole = merged(detected(*four), rank_0(nodes=2), seen(1, 1, a100("2a")))
    assert whole.satisfies(PlatformName("a100", 4, 2))
    assert not whole.satisfies(PlatformName("a100", 4, 3))


def test_launcher_rank_stands_for_a_core():
    others = [seen(rank, 0) for rank in (1, 2, 3)]
    assert merged(machine(cores=2), rank_0(nodes=1), *others).satisfies(PlatformName("cpu", 4))
    assert merged(machine(cores=8), rank_0(nodes=1), *others).cpu.cores == 8


class TestBoundByLauncher:
    """srun binds tasks to CPUs of their own where it is told to; then ranks are bound already."""

    @staticmethod
    def config(*cpus: str):
        others = [
            Inventory(rank=rank, node=0, host="n0", cpus=given) for rank, given in enumerate(cpus, start=1)
        ]
        ranks = types.SimpleNamespace(launched=types.SimpleNamespace(node=0), inventories=lambda: others)
        return types.SimpleNamespace(stash={LAUNCHER_RANKS: ranks})

    def test_same_cpus_are_shared(self):
        own = format_list(allowed_cpus())
        assert not bound_by_launcher(self.config(own, own))

    def test_other_cpus_are_its_own(self):
        assert bound_by_launcher(self.config("100-107"))

    def test_without_a_launcher_nothing_is_bound(self):
        assert not bound_by_launcher(types.SimpleNamespace(stash={}))
