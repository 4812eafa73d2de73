"""Which of torch's devices has a UUID: drivers and CUDA count differently on a machine of different GPUs."""

import sys
import types

import pytest

from pytest_accel.measure.device import torch_index

FAST, SLOW = "8932f937-d72c-4106-c12f-20bd9faed9f6", "1111f937-d72c-4106-c12f-20bd9faed9f6"


@pytest.fixture
def shown(monkeypatch):
    """As much of torch.cuda as is asked; the test fills in the UUIDs."""
    uuids: list[str | None] = []

    def properties(index):
        return types.SimpleNamespace() if uuids[index] is None else types.SimpleNamespace(uuid=uuids[index])

    cuda = types.SimpleNamespace(device_count=lambda: len(uuids), get_device_properties=properties)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    return uuids


def test_finds_the_device_where_cuda_counts_the_fastest_first(shown):
    shown += [FAST, SLOW]
    assert torch_index(f"GPU-{SLOW}", fallback=0) == 1
    assert torch_index(f"GPU-{FAST.upper()}", fallback=1) == 0


def test_finds_a_slice(shown):
    shown += [FAST]
    assert torch_index(f"MIG-{FAST}", fallback=3) == 0


def test_reads_the_serial_number_that_rocm_shows_as_letters(shown):
    letters = "d5f0a1b2c3d4e5f6"
    shown += [
        FAST,
        "-".join(letters.encode().hex()[a:b] for a, b in [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)]),
    ]
    assert torch_index(f"GPU-{letters}", fallback=0) == 1


@pytest.mark.parametrize("uuids", [[], [None, None], [FAST]])
def test_falls_back_where_torch_shows_no_such_device(shown, uuids):
    shown += uuids
    assert torch_index(f"GPU-{SLOW}", fallback=7) == 7
    assert torch_index("", fallback=7) == 7
