"""CPU device and queues of CUDA devices."""

import os
import subprocess
import sys
import types

import pytest

from pytest_accel.measure.device import DEVICE_QUEUES, CpuDevice, CudaDevice, torch_index, widen_device_queues


@pytest.fixture
def torch(monkeypatch):
    """The part of torch that the CPU device uses."""
    fake = types.SimpleNamespace(threads=8)
    fake.get_num_threads = lambda: fake.threads
    fake.set_num_threads = lambda count: setattr(fake, "threads", count)
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def test_cpu_device_works_without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    device = CpuDevice(threads=1)
    device.prepare()
    device.synchronize()
    device.reset_peak_memory()
    device.restore()
    assert "torch" not in sys.modules
    assert device.name == "cpu"


def test_threads_of_torch_are_set_and_restored(torch):
    device = CpuDevice(threads=1)
    for _ in range(2):
        device.prepare()
        assert torch.threads == 1
    for _ in range(2):
        device.restore()
        assert torch.threads == 8


def test_threads_of_torch_imported_later_are_set(monkeypatch, torch):
    monkeypatch.delitem(sys.modules, "torch")
    device = CpuDevice(threads=1)
    device.prepare()
    monkeypatch.setitem(sys.modules, "torch", torch)
    device.prepare()
    assert torch.threads == 1
    device.restore()
    assert torch.threads == 8


def test_peak_memory_grows_with_use():
    # In a process of its own: where the kernel does not let the peak be reset, this one's earlier peak would hide the block.
    program = """
from pytest_accel.measure.device import CpuDevice
device = CpuDevice(threads=1)
device.reset_peak_memory()
before = device.peak_memory_bytes()
block = bytearray(64 << 20)
block[:: 1 << 12] = b"x" * len(block[:: 1 << 12])  # touch every page
print(device.peak_memory_bytes() - before)
"""
    grown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(grown.stdout) >= 32 << 20


def test_peak_memory_counts_what_graphs_of_this_device_keep(monkeypatch):
    def segment(pool, device=1):
        return {"device": device, "segment_pool_id": pool, "total_size": 100, "allocated_size": 30}

    reset = []
    segments = [segment((0, 0)), segment((0, 1)), segment((2, 0)), segment((0, 1), device=0)]
    segments[0].pop("segment_pool_id")  # of an older torch
    fake = types.SimpleNamespace(
        memory_snapshot=lambda: [*segments, segment((0, 0))],
        max_memory_allocated={0: 7000, 1: 1000}.__getitem__,
        reset_peak_memory_stats=reset.append,
    )
    device = CudaDevice(index=1)
    monkeypatch.setattr(device, "_cuda", fake)
    device.reset_peak_memory()
    assert reset == [1]
    assert device.peak_memory_bytes() == 1000 + 2 * (100 - 30)


def test_delay_takes_at_least_its_time(monkeypatch):
    now = [0.0]

    def perf_counter() -> float:
        now[0] += 0.001
        return now[0]

    monkeypatch.setattr("pytest_accel.measure.device.time.perf_counter", perf_counter)
    CpuDevice(threads=1).delay(0.05)()
    assert now[0] >= 0.05


@pytest.mark.parametrize(
    ("value", "started", "wide", "after"),
    [
        (None, False, True, "32"),
        (None, True, False, None),  # too late
        ("32", True, True, "32"),
        ("1", False, False, "1"),  # as Megatron sets it
    ],
)
def test_queues_are_widened_before_cuda_starts(monkeypatch, torch, value, started, wide, after):
    torch.cuda = types.SimpleNamespace(is_initialized=lambda: started)
    monkeypatch.setenv(DEVICE_QUEUES, value or "")  # so that it is put back at the end
    if value is None:
        del os.environ[DEVICE_QUEUES]
    assert widen_device_queues() is wide
    assert os.environ.get(DEVICE_QUEUES) == after


FAST, SLOW = "8932f937-d72c-4106-c12f-20bd9faed9f6", "1111f937-d72c-4106-c12f-20bd9faed9f6"


@pytest.fixture
def shown(monkeypatch):
    """The UUIDs that torch.cuda shows."""
    uuids: list[str | None] = []

    def properties(index):
        return types.SimpleNamespace() if uuids[index] is None else types.SimpleNamespace(uuid=uuids[index])

    cuda = types.SimpleNamespace(device_count=lambda: len(uuids), get_device_properties=properties)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    return uuids


def test_torch_index_is_found_in_the_order_of_cuda(shown):
    shown += [FAST, SLOW]
    assert torch_index(f"GPU-{SLOW}", fallback=0) == 1
    assert torch_index(f"GPU-{FAST.upper()}", fallback=1) == 0


def test_torch_index_is_found_by_a_serial_number_of_rocm(shown):
    letters = "d5f0a1b2c3d4e5f6"
    shown += [
        FAST,
        "-".join(letters.encode().hex()[a:b] for a, b in [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)]),
    ]
    assert torch_index(f"GPU-{letters}", fallback=0) == 1


@pytest.mark.parametrize("uuids", [[], [None, None], [FAST]])
def test_torch_index_of_an_unknown_device_is_the_fallback(shown, uuids):
    shown += uuids
    assert torch_index(f"GPU-{SLOW}", fallback=7) == 7
    assert torch_index("", fallback=7) == 7
