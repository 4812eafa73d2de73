"""Demand of a step: FLOPs and bytes, counted on the meta device, and memory that it must fit in.

Bytes are those that every kernel must move: weights and inputs of products, gradients, and optimizer states. Activations
between layers are not counted: a compiler may never write them. A false alarm is worse than none.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count, flop_registry

from pytest_accel.measure.arguments import CannotFit, OutOfMemory, StepError, says_out_of_memory
from pytest_accel.measure.device import is_nvidia
from pytest_accel.stats.quantities import gibibytes
from pytest_accel.workloads.config import Loss, StepConfig
from pytest_accel.workloads.data.files import DataError
from pytest_accel.workloads.input_pipeline import Plan
from pytest_accel.workloads.models.build import build_model, task_of
from pytest_accel.workloads.optimizers import optimizer_states
from pytest_accel.workloads.precision import PRECISIONS

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
class StepCount:
    flops: int  # a multiply-add is two
    least_flops: int  # that no algorithm avoids
    forward: int = 0
    backward: int = 0
    gradients: int = 0  # elements of dense gradients


def count(model: nn.Module, plan: Plan, *, loss: Loss | None = None) -> StepCount | None:
    """Count the model's products, forward and, with a loss, backward; None where it cannot be traced.

    They are the numerator of MFU: attention in full although its causal half is skipped, nothing for elementwise work,
    no recomputation. A count takes .1 to 2 s (one core of a Xeon).
    """
    counter = FlopCounterMode(display=False, custom_mapping={aten.convolution_backward: _backward_flops})
    shadows = _shadows(model, training=loss is not None)
    inputs, targets = plan.on_meta()
    reading = _ReadOperands([next(iter(tree_leaves(inputs))), *shadows.values()])
    try:
        with torch.compiler.set_stance("force_eager"), reading, counter:
            output = _forward(model, shadows, inputs)
            forward = reading.taken()
            if loss is not None:
                loss(output, targets).backward()
    except Exception:  # noqa: BLE001 - any model of the user's: one that needs real values has no count
        return None
    if not (flops := int(counter.get_total_flops())):
        return None
    by_operator = counter.get_flop_counts()["Global"]
    gradients = [shadow.grad for shadow in shadows.values() if shadow.is_leaf]
    return StepCount(
        flops=flops,
        least_flops=int(
            sum(flops * (1 - AVOIDABLE.get(operator, 0)) for operator, flops in by_operator.items())
        ),
        forward=forward,
        backward=reading.taken(),
        gradients=sum(
            each.numel() for each in gradients if each is not None and each.layout == torch.strided
        ),
    )


def output_classes(model: nn.Module, plan: Plan) -> int | None:
    """Return the last dimension of the model's output, or None where it cannot be traced."""
    try:
        inputs, _ = plan.on_meta()
        output = _forward(model, _shadows(model, training=False), inputs)
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


class _ReadOperands(TorchDispatchMode):
    """Records which of some tensors are operands of products, and how many of their elements are read.

    Others may be read in part: an embedding only where its tokens occur.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._elements = {_storage(tensor): tensor.numel() for tensor in tensors}
        self._read: dict[int, int] = {}  # by storage

    def taken(self) -> int:
        """Return the elements read since the last call."""
        read, self._read = self._read, {}
        return sum(read.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operator = getattr(func, "_overloadpacket", None)
        if operator in flop_registry:
            operands = list(args)
            if operator is aten.convolution_backward:
                for_inputs, for_weight, *_ = args[-1]
                # It reads the weight only for the gradient of the inputs, and the inputs only for that of the weight.
                operands = [args[0], args[1] if for_weight else None, args[2] if for_inputs else None]
            for operand in operands:
                if isinstance(operand, torch.Tensor) and (elements := self._elements.get(_storage(operand))):
                    key = _storage(operand)
                    self._read[key] = max(self._read.get(key, 0), min(operand.numel(), elements))
        return func(*args, **(kwargs or {}))


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # noqa: SLF001 - views share it; a meta tensor has no address


def _shadows(model: nn.Module, *, training: bool) -> dict[str, torch.Tensor]:
    """Return the model's weights on the meta device, floats in fp32; the model itself is not changed."""

    def shadow(tensor: torch.Tensor, *, requires_grad: bool = False) -> torch.Tensor:
        dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
        return torch.empty_like(tensor, device="meta", dtype=dtype, requires_grad=requires_grad)

    # A frozen weight has no gradient. For inference all require one: see `_forward`.
    return {
        name: shadow(each, requires_grad=each.requires_grad if training else each.is_floating_point())
        for name, each in model.named_parameters()
    } | {name: shadow(each) for name, each in model.named_buffers()}


def _forward(model: nn.Module, shadows: dict[str, torch.Tensor], inputs: Any) -> Any:
    # Gradients on, also for inference: without them attention takes a fused path that is not counted.
    with torch.enable_grad():
        return functional_call(model, shadows, (inputs,))


# The largest last-level cache of the catalogue, the Infinity Cache of an MI300X; its driver reports a smaller one.
LARGEST_CACHE_BYTES = 256 * 2**20


def cache_bytes(device: torch.device) -> int:
    """Return the size of a device's last-level cache, or more where it cannot be known."""
    if not is_nvidia(device.type):
        return LARGEST_CACHE_BYTES
    return getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or LARGEST_CACHE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    flops: int | None = None
    least_flops: int | None = None  # that no algorithm avoids
    bytes_moved: int | None = None  # at least; None where a cache could hold all of them


def demand_of(
    model: nn.Module, counted: StepCount | None, config: StepConfig, *, states: int | None
) -> Demand:
    """Combine the counts of one micro-batch with the type of a model's tensors.

    `states` are the tensors that the optimizer keeps of each parameter; None where there is none, or it may skip updates.
    """
    if counted is None:
        return Demand()
    stored = min([config.dtype.itemsize, *(parameter.element_size() for parameter in model.parameters())])
    compute = PRECISIONS[config.precision].dtype.itemsize
    forward, gradients = counted.forward * stored, counted.gradients * stored
    backward = counted.backward * min(stored, compute)  # autocast may have kept a smaller copy of a weight
    passes = [forward, backward, gradients] * config.micro_batches  # read, read, written
    if states is not None:
        passes += [gradients * (2 + states), gradients * (1 + states)]  # all read; all but gradients written
    # Of each pass over the model, all but a cacheful goes through the memory.
    cache = cache_bytes(config.device)
    return Demand(
        flops=counted.flops * config.micro_batches,
        least_flops=counted.least_flops * config.micro_batches,
        bytes_moved=sum(max(0, touched - cache) for touched in passes) or None,
    )


FP32_BYTES = 4
UNSHARDED_SHARE = 0.8  # of a device's memory, for all fp32 weights before they are sharded


def check_fits(config: StepConfig, options: Mapping[str, Any]) -> bool:
    """Raise CannotFit for a GPT that cannot, before minutes go into building it; other models fit anywhere.

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
    kept, remedy = "weights", "Choose a platform with more memory."
    if config.training:
        kept = "weights, gradients and optimizer states"
        remedy = f"With sharding='fsdp', at least {-(-total // memory):,} such devices hold it."
    here = f"{config.device} has {gibibytes(memory)}"
    if devices > 1:
        here = f"{devices} devices like {config.device} have {gibibytes(memory * devices)}"
    raise CannotFit(
        f"{config.name}: it cannot fit, and nothing was built. {info.parameters / 1e9:,.1f} billion parameters take "
        f"{gibibytes(total)} for {kept} alone, and {here}. {remedy}"
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
        micro = "" if config.micro_batch_size is None else "micro"
        raise OutOfMemory(
            f"{config.name}: a {micro and 'micro-'}batch of {config.forward_batch_size} did not fit in the memory of "
            f"{config.device}, and it was NOT made smaller. Choose a smaller {micro and 'micro_'}batch_size, or a platform "
            f"with more memory. torch said: {line.strip()}"
        ) from error
