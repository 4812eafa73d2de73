"""Precisions: flags are set and restored; devices without a precision refuse it."""

from types import SimpleNamespace

import pytest
import torch

from pytest_accel.workloads.precision import PRECISIONS, _new_switches, check_precision, resolve_precision

CPU = torch.device("cpu")


def flags():
    backends = torch.backends

    def read(getter):
        try:
            return getter()
        except RuntimeError:  # the old interface, where the two disagree
            return "mixed"

    return (
        read(torch.get_float32_matmul_precision),
        read(lambda: backends.cuda.matmul.allow_tf32),
        read(lambda: backends.cudnn.allow_tf32),
        backends.cudnn.benchmark,
        tuple(switch.fp32_precision for switch in _new_switches()),
    )


@pytest.fixture(autouse=True)
def _factory_settings():
    """Give every test the flags of a fresh process, and leave them to the next."""
    backends, before = torch.backends, [switch.fp32_precision for switch in _new_switches()]
    yield
    if _new_switches():
        backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    backends.cudnn.allow_tf32 = True
    for switch, value in zip(_new_switches(), before, strict=True):
        switch.fp32_precision = value
    backends.cudnn.benchmark = False


def of_the_old_interface(value):
    torch.set_float32_matmul_precision("high" if value == "tf32" else "highest")


def of_the_new_interface(value):
    if _new_switches():  # torch 2.9 brought them
        torch.backends.cuda.matmul.fp32_precision = torch.backends.cudnn.conv.fp32_precision = value


@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("set_flags", [of_the_old_interface, of_the_new_interface])
@pytest.mark.parametrize("value", ["ieee", "tf32"])
def test_flags_are_restored(name, set_flags, value):
    set_flags(value)
    before = flags()
    with PRECISIONS[name].flags(cudnn_benchmark=True):
        assert torch.backends.cudnn.benchmark is True
        assert "mixed" not in flags()  # torch.compile reads the old interface, and must find an answer
    assert flags() == before
    with pytest.raises(ZeroDivisionError), PRECISIONS[name].flags(cudnn_benchmark=True):
        raise ZeroDivisionError
    assert flags() == before


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch 2.9 brought fp32_precision")
def test_fp32_is_exact_where_tf32_was_allowed():
    torch.backends.fp32_precision = "tf32"
    with PRECISIONS["fp32"].flags(cudnn_benchmark=False):
        assert torch.backends.cuda.matmul.allow_tf32 is False
        assert torch.backends.cudnn.allow_tf32 is False
        assert set(flags()[-1]) == {"ieee"}


def test_tf32_allows_products_and_convolutions():
    with PRECISIONS["tf32"].flags(cudnn_benchmark=False):
        assert torch.backends.cuda.matmul.allow_tf32 is True
        assert torch.backends.cudnn.allow_tf32 is True


@pytest.mark.parametrize("name", ["tf32", "fp16"])
def test_precision_that_a_cpu_lacks_is_refused_with_the_valid_ones(name):
    with pytest.raises(ValueError, match=rf"precision: '{name}' is not possible on cpu") as error:
        check_precision(name, CPU)
    assert str(error.value).endswith("Valid there: fp32, bf16.")


def test_old_gpu_refuses_bf16(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(ValueError, match=r"needs compute capability 8\.0, this device has 7\.5") as error:
        check_precision("bf16", torch.device("cuda"))
    assert str(error.value).endswith("Valid there: fp32, fp16.")


@pytest.mark.parametrize(
    ("device", "capability", "architecture", "half", "single"),
    [
        ("cuda", (9, 0), None, "bf16", "tf32"),
        ("cuda", (7, 5), None, "fp16", "fp32"),  # T4, RTX 6000
        ("cuda", (7, 0), None, "fp16", "fp32"),  # V100
        ("cuda", None, "gfx90a:sramecc+:xnack-", "bf16", "fp32"),  # MI250
        ("cuda", None, "gfx942:sramecc+:xnack-", "bf16", "tf32"),  # MI300X
        ("ipu", None, None, "fp16", "fp32"),
        ("cpu", None, None, "bf16", "fp32"),
    ],
)
def test_alternatives_are_resolved_by_what_the_device_computes_in(
    monkeypatch, device, capability, architecture, half, single
):
    monkeypatch.setattr(torch.version, "hip", architecture and "6.4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(gcnArchName=architecture)
    )
    device = torch.device(device)
    assert [resolve_precision(name, device) for name in ("half", "single")] == [half, single]
    assert resolve_precision("bf16", device) == "bf16"  # asked for by name: refused, and not replaced


def test_unknown_precision_names_the_nearest():
    with pytest.raises(ValueError, match=r"Did you mean 'bf16'.*Valid: bf16, fp16, fp32, half, single, tf32"):
        check_precision("bf61", CPU)


def test_autocast_is_used_for_half_precision():
    for name, expected in {"fp32": torch.float32, "bf16": torch.bfloat16}.items():
        with PRECISIONS[name].autocast(CPU):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == expected
