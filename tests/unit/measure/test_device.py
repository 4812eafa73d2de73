"""The host as a device: works without torch, and leaves torch as it was."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest

from pytest_accel.measure.device import DEVICE_QUEUES, CpuDevice, widen_device_queues


@pytest.fixture
def torch(monkeypatch):
    """As much of torch as the host device touches."""
    fake = types.SimpleNamespace(threads=8)
    fake.get_num_threads = lambda: fake.threads
    fake.set_num_threads = lambda count: setattr(fake, "threads", count)
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def test_works_without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    device = CpuDevice(threads=1)
    device.prepare()
    device.synchronize()
    device.reset_peak_memory()
    device.restore()
    assert "torch" not in sys.modules
    assert device.name == "cpu"


def test_pins_the_threads_of_torch_and_gives_them_back(torch):
    device = CpuDevice(threads=1)
    device.prepare()
    assert torch.threads == 1
    device.restore()
    assert torch.threads == 8


def test_preparing_twice_still_gives_back_the_first(torch):
    device = CpuDevice(threads=2)
    device.prepare()
    device.prepare()
    device.restore()
    device.restore()
    assert torch.threads == 8


def test_torch_that_was_imported_later_is_pinned_too(monkeypatch, torch):
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


def test_delay_takes_at_least_its_time(monkeypatch):
    now = [0.0]

    def perf_counter() -> float:
        now[0] += 0.001
        return now[0]

    monkeypatch.setattr("pytest_accel.measure.device.time.perf_counter", perf_counter)
    CpuDevice(threads=1).delay(0.05)()
    assert now[0] >= 0.05


@pytest.mark.parametrize(
    ("told", "started", "wide", "left"),
    [
        (None, False, True, "32"),
        (None, True, False, None),  # too late
        ("32", True, True, "32"),
        ("1", False, False, "1"),  # as Megatron wants it: whoever sets it is obeyed
    ],
)
def test_queues_are_widened_before_cuda_starts(monkeypatch, torch, told, started, wide, left):
    torch.cuda = types.SimpleNamespace(is_initialized=lambda: started)
    monkeypatch.setenv(DEVICE_QUEUES, told or "")  # so that it is put back at the end
    if told is None:
        del os.environ[DEVICE_QUEUES]
    assert widen_device_queues() is wide
    assert os.environ.get(DEVICE_QUEUES) == left
