"""Kernel tables on a real GPU: eager, replayed, compiled; attention whose backend changed."""

import math
import sys

import pytest

from pytest_accel.measure.device import CudaDevice
from pytest_accel.measure.profile import profile_step
from pytest_accel.measure.rounds import ALONE, timed_block
from pytest_accel.stats.causes import kernel_causes
from pytest_accel.stats.kernels import compare


def say(text):
    """Write for who runs these with -s: a session on the device keeps the names."""
    sys.stdout.write(f"{text}\n")


def profiled(step, *, warm=5):
    """Return the table of a step, printed."""
    device = CudaDevice()
    device.prepare()
    timed_block(step, warm, device)
    before_s = timed_block(step, 20, device) / 20
    found, note = profile_step(step, device, ALONE, step_s=before_s)
    after_s = timed_block(step, 20, device) / 20
    assert found is not None, note
    say(f"step {1e3 * found.step_s:.3f} ms, idle {1e3 * found.idle_s:.3f} ms")
    say(f"step after profiling over before: {after_s / before_s:.3f}")
    for row in found.rows:
        say(f"{1e3 * row.seconds:9.4f} ms {row.count:7.1f}  {row.operation:32} {row.kernel}")
    assert math.isclose(found.step_s, found.idle_s + sum(row.seconds for row in found.rows), rel_tol=1e-6)
    return found


def operations(found):
    seconds = {}
    for row in found.rows:
        seconds[row.operation] = seconds.get(row.operation, 0.0) + row.seconds
    return seconds


def convolutions(gpu):
    import torch

    model = torch.nn.Sequential(
        torch.nn.Conv2d(64, 128, 3, padding=1),
        torch.nn.BatchNorm2d(128),
        torch.nn.ReLU(),
        torch.nn.Conv2d(128, 128, 3),
    ).to(gpu, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)
    x = torch.randn(64, 64, 56, 56, device=gpu).to(memory_format=torch.channels_last)

    def step():
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()

    return model, step


def attention(gpu, backend):
    import torch

    q = torch.randn(4, 16, 1024, 64, device=gpu, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(64, 64, device=gpu, dtype=torch.bfloat16)

    def step():
        with torch.nn.attention.sdpa_kernel(backend):
            torch.nn.functional.scaled_dot_product_attention(
                q @ weight, q, q, is_causal=True
            ).sum().backward()

    return step


def test_eager_step_is_divided_by_its_operators(gpu):
    _, step = convolutions(gpu)
    found = operations(profiled(step))
    assert {
        "convolution",
        "convolution backward data",
        "convolution backward weights",
        "batch norm",
        "optimizer",
    } <= {*found}
    whole_s = sum(found.values())
    assert sum(s for name, s in found.items() if name.startswith("convolution")) > 0.3 * whole_s
    assert found.get("other operations", 0.0) < 0.05 * whole_s


def test_replayed_graph_is_divided_by_its_kernels_names(gpu):
    import torch

    _, step = convolutions(gpu)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    eager, replayed = profiled(step), profiled(graph.replay)
    launched = {row.kernel: row for row in eager.rows}
    placed = [row for row in replayed.rows if row.operation.startswith("convolution")]
    found = [row for row in placed if row.kernel in launched]
    # Without operators, the reductions and additions of biases are not known to be those of convolutions.
    assert {launched[row.kernel].operation for row in found} >= {
        "convolution",
        "convolution backward data",
        "convolution backward weights",
    }
    for row in found:
        assert row.operation == launched[row.kernel].operation
        assert row.seconds == pytest.approx(launched[row.kernel].seconds, rel=0.2, abs=2e-6)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_step_has_its_products_and_fused_kernels(gpu, mode):
    import torch

    layers = (
        torch.nn.Linear(1024, 4096),
        torch.nn.GELU(),
        torch.nn.LayerNorm(4096),
        torch.nn.Linear(4096, 1024),
    )
    model = torch.compile(torch.nn.Sequential(*layers).to(gpu, torch.bfloat16), mode=mode)
    x = torch.randn(4096, 1024, device=gpu, dtype=torch.bfloat16)

    def step():
        torch.compiler.cudagraph_mark_step_begin()
        model.zero_grad()
        model(x).sum().backward()

    found = profiled(step, warm=10)
    assert sum(s for name, s in operations(found).items() if name.startswith("matrix product")) > 0
    assert any(row.kernel.startswith("triton_") for row in found.rows)


def test_attention_forced_to_math_is_the_change_and_keeps_its_place(gpu):
    from torch.nn.attention import SDPBackend

    old, new = (
        profiled(attention(gpu, backend)) for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH)
    )
    assert {"attention", "attention backward"} <= operations(old).keys() & operations(new).keys()
    found = compare(old, new, before_s=old.step_s, after_s=new.step_s)
    assert {each.operation for each in found.rows[:2]} == {"attention", "attention backward"}
    cause, *_ = kernel_causes(found)
    say(cause)
    assert cause.text.startswith("attention")
