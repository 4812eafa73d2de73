"""Demand of a step: FLOPs, counted on the meta device, and memory that it must fit in."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from pytest_accel.measure.arguments import OutOfMemory, StepError, says_out_of_memory
from pytest_accel.stats.quantities import gibibytes
from pytest_accel.workloads.config import Loss, StepConfig
from pytest_accel.workloads.data.files import DataError
from pytest_accel.workloads.input_pipeline import Plan
from pytest_accel.workloads.models.build import build_model, task_of
from pytest_accel.workloads.optimizers import optimizer_states

aten = torch.ops.aten
_ATTENTION = [
    getattr(aten, f"_scaled_dot_product_{kernel}_attention{direction}")
    for kernel in ("flash", "efficient", "cudnn")
    for direction in ("", "_backward")
]
# Shares of the products that some algorithm avoids: Winograd's 3 x 3 convolutions need a quarter of them (F(4x4, 3x3),
# arXiv:1509.09308), causal attention half. The roofline must raise no false alarm.
AVOIDABLE = dict.fromkeys((aten.convolution, aten.convolution_backward), 0.75)
AVOIDABLE |= dict.fromkeys((aten.bmm, aten.baddbmm, *_ATTENTION), 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    flops: int | None = None  # a multiply-add is two
    least_flops: int | None = None  # that no algorithm avoids


def count(model: nn.Module, plan: Plan, *, loss: Loss | None = None, batches: int = 1) -> Demand:
    """Count the model's products, forward and, with a loss, backward; nothing where it cannot be traced.

    They are the numerator of MFU: attention in full although its causal half is skipped, nothing for elementwise work,
    no recomputation. A count takes .1 to 2 s (one core of a Xeon).
    """
    counter = FlopCounterMode(display=False, custom_mapping={aten.convolution_backward: _backward_flops})
    inputs, targets = plan.on_meta()
    try:
        with torch.compiler.set_stance("force_eager"), counter:
            output = _forward(model, inputs, training=loss is not None)
            if loss is not None:
                loss(output, targets).backward()
    except Exception:  # noqa: BLE001 - any model of the user's: one that needs real values has no count
        return Demand()
    if not (flops := int(counter.get_total_flops())):
        return Demand()
    by_operator = counter.get_flop_counts()["Global"]
    least = sum(flops * (1 - AVOIDABLE.get(operator, 0)) for operator, flops in by_operator.items())
    return Demand(flops=batches * flops, least_flops=batches * int(least))


def output_classes(model: nn.Module, plan: Plan) -> int | None:
    """Return the last dimension of the model's output, or None where it cannot be traced."""
    try:
        output = _forward(model, plan.on_meta()[0], training=False)
    except Exception:  # noqa: BLE001 - any model of the user's: one that needs real values has no shapes
        return None
    return int(output.shape[-1]) if isinstance(output, torch.Tensor) and output.dim() > 1 else None


def _backward_flops(gradient: Any, inputs: Any, weight: Any, *rest: Any, out_shape: Any) -> int:  # noqa: ARG001 - torch's signature
    """Count each gradient of a convolution as its forward pass.

    torch's own formula ignores groups: 17 times too much for an EfficientNet-B7 (torch 2.10).
    """
    transposed, _, _, wanted = rest[-4:]
    passes = sum(map(bool, wanted[:2]))  # for the inputs, for the weight; the bias is no product
    return int(conv_flop_count(inputs, weight, gradient, transposed=transposed)) * passes


def _forward(model: nn.Module, inputs: Any, *, training: bool) -> Any:
    """Run a model with weights on the meta device, floats in fp32; the model itself is not changed."""

    def shadow(tensor: torch.Tensor, *, requires_grad: bool = False) -> torch.Tensor:
        dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
        return torch.empty_like(tensor, device="meta", dtype=dtype, requires_grad=requires_grad)

    # A frozen weight has no gradient. For inference all require one, and gradients are on: without them attention takes a
    # fused path that is not counted.
    shadows = {
        name: shadow(each, requires_grad=each.requires_grad if training else each.is_floating_point())
        for name, each in model.named_parameters()
    } | {name: shadow(each) for name, each in model.named_buffers()}
    with torch.enable_grad():
        return functional_call(model, shadows, (inputs,))


FP32_BYTES = 4
UNSHARDED_SHARE = 0.8  # of a device's memory, for all fp32 weights before they are sharded


def check_fits(config: StepConfig, options: Mapping[str, Any]) -> bool:
    """Raise OutOfMemory for a GPT that cannot, before minutes go into building it; other models fit anywhere.

    Return whether each rank has room for all weights before they are sharded: they then equal those of one device.
    """
    memory = device_memory_bytes(config.device)
    if memory is None or task_of(config.model) != "language":
        return True
    _, info = build_model(config.model, device="meta", **options)
    # Weight, gradient and optimizer states; activations come on top.
    tensors = 2 + optimizer_states(config) if config.training else 1
    total = info.parameters * FP32_BYTES * tensors
    devices = config.ranks.size if config.sharding else 1
    if total <= memory * devices:
        return info.parameters * FP32_BYTES <= UNSHARDED_SHARE * memory
    kept = "weights, gradients and optimizer states" if config.training else "weights"
    raise OutOfMemory(
        f"{config.name}: it cannot fit, and nothing was built. {info.parameters / 1e9:,.1f} billion parameters take "
        f"{gibibytes(total)} for {kept} alone, and {devices} x {config.device} has {gibibytes(memory * devices)}. Choose a "
        f"platform with more memory; training with sharding='fsdp' takes at least {-(-total // memory):,} such devices."
    )


def device_memory_bytes(device: torch.device) -> int | None:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether torch, or a library that it calls, found no memory; our own errors may quote such words."""
    ours = isinstance(error, StepError | DataError)
    return not ours and (isinstance(error, torch.OutOfMemoryError) or says_out_of_memory(str(error)))


@contextmanager
def explained_out_of_memory(config: StepConfig) -> Iterator[None]:
    """Turn an allocator's error into one that names the batch."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        lines = str(error).splitlines()
        line = next((line for line in lines if says_out_of_memory(line)), lines[0] if lines else "")
        traceback.clear_frames(error.__traceback__)  # they hold the tensors that the next benchmark needs
        size = "batch_size" if config.micro_batch_size is None else "micro_batch_size"
        raise OutOfMemory(
            f"{config.name}: a batch of {config.forward_batch_size} did not fit in the memory of {config.device}, and it was NOT "
            f"made smaller. Choose a smaller {size}, or a platform with more memory. torch said: {line.strip()}"
        ) from error
