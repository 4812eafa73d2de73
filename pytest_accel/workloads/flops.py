"""Floating-point operations of one step, counted on the meta device: no memory, no arithmetic, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_accel.workloads.data import DataPlan


def count_flops(
    model: torch.nn.Module, plan: DataPlan, *, loss: Callable[[Any, Any], Any] | None = None
) -> int | None:
    """Count the model's products, forward and, where a loss is given, backward; None where it cannot be traced.

    What is counted is what the model asks for (a multiply-add is two), the denominator of MFU: attention
    in full although the causal half of it is skipped, nothing for recomputation or elementwise work.
    """
    counter = FlopCounterMode(display=False)
    try:
        with counter:
            output, targets = _on_meta(model, plan)
            if loss is not None:
                loss(output, targets).backward()
    except Exception:  # noqa: BLE001 - any model of the user's: one that needs real values has no count
        return None
    return int(counter.get_total_flops()) or None


def output_classes(model: torch.nn.Module, plan: DataPlan) -> int | None:
    """Return the last extent of what the model returns, or None where it cannot be traced."""
    try:
        output, _ = _on_meta(model, plan)
    except Exception:  # noqa: BLE001 - as above
        return None
    return int(output.shape[-1]) if isinstance(output, torch.Tensor) and output.dim() > 1 else None


def _on_meta(model: torch.nn.Module, plan: DataPlan) -> tuple[Any, Any]:
    """Run the model forward on shadows of its own weights; the model itself is not touched."""
    meta = torch.device("meta")
    shadows = {
        name: torch.empty_like(
            tensor, device=meta, dtype=_widened(tensor), requires_grad=tensor.is_floating_point()
        )
        for name, tensor in model.named_parameters()
    } | {
        name: torch.empty_like(tensor, device=meta, dtype=_widened(tensor))
        for name, tensor in model.named_buffers()
    }
    tokens = plan.kind == "tokens"
    inputs = torch.empty(
        (plan.batch_size, *plan.shape), device=meta, dtype=torch.long if tokens else torch.float32
    )
    targets = torch.empty(inputs.shape if tokens else plan.batch_size, device=meta, dtype=torch.long)
    targets = inputs if plan.reconstructs else targets
    # Gradients on, also for inference: without them attention takes a fused path that is not counted.
    with torch.enable_grad():
        return functional_call(model, shadows, (inputs,)), targets


def _widened(tensor: torch.Tensor) -> torch.dtype:
    return torch.float32 if tensor.is_floating_point() else tensor.dtype
