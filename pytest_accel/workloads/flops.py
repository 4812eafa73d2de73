"""What one step asks of a device, counted on the meta device: no memory, no arithmetic, no clock."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count, flop_registry

if TYPE_CHECKING:
    from pytest_accel.workloads.plan import Loss, Plan

INPUTS = "(inputs)"  # no parameter can have this name

aten = torch.ops.aten
_CONVOLUTIONS = (aten.convolution, aten.convolution_backward)
_BATCHED = (
    aten.bmm, aten.baddbmm, aten._scaled_dot_product_flash_attention, aten._scaled_dot_product_flash_attention_backward,  # noqa: SLF001 - their names
    aten._scaled_dot_product_efficient_attention, aten._scaled_dot_product_efficient_attention_backward,  # noqa: SLF001
    aten._scaled_dot_product_cudnn_attention, aten._scaled_dot_product_cudnn_attention_backward,  # noqa: SLF001
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What a step asks for. By name: how many elements of a parameter, or of INPUTS, products read."""

    flops: int  # a multiply-add is two
    least_flops: int  # those that no algorithm saves
    forward: Mapping[str, int] = field(default_factory=dict)
    backward: Mapping[str, int] = field(default_factory=dict)
    gradients: Mapping[str, int] = field(default_factory=dict)  # elements, of those that get a dense one


_COUNTS: dict[Hashable, Count | None] = {}  # of this process: a count takes .1 to 2 s (one core of a Xeon)


def count(
    model: torch.nn.Module, plan: Plan, *, loss: Loss | None = None, known_as: Hashable = None
) -> Count | None:
    """Count the model's products, forward and, where a loss is given, backward; None where it cannot be traced.

    What is counted is what the model asks for, the denominator of MFU: attention in full although the causal half
    of it is skipped, nothing for elementwise work, recomputation only where the model itself asks for it.
    `known_as` says what the shapes of a model do not: its name and options, and the loss. A count is kept for the
    process under it; without one, nothing is.
    """
    if known_as is None:
        return _count(model, plan, loss)
    shapes = tuple(
        (name, tuple(parameter.shape), parameter.requires_grad)
        for name, parameter in model.named_parameters()
    )
    key = (known_as, shapes, plan, model.training, loss is not None)
    if key not in _COUNTS:
        _COUNTS[key] = _count(model, plan, loss)
    return _COUNTS[key]


def count_flops(model: torch.nn.Module, plan: Plan, *, loss: Loss | None = None) -> int | None:
    """Return the floating-point operations alone."""
    counted = count(model, plan, loss=loss)
    return counted.flops if counted else None


def output_classes(model: torch.nn.Module, plan: Plan) -> int | None:
    """Return the last extent of what the model returns, or None where it cannot be traced."""
    try:
        inputs, _ = plan.on_meta()
        output = _forward(model, _shadows(model, training=False), inputs)
    except Exception:  # noqa: BLE001 - any model of the user's: one that needs real values has no shapes
        return None
    return int(output.shape[-1]) if isinstance(output, torch.Tensor) and output.dim() > 1 else None


def _count(model: torch.nn.Module, plan: Plan, loss: Loss | None) -> Count | None:
    counter = FlopCounterMode(display=False, custom_mapping={aten.convolution_backward: _backward_flops})
    shadows = _shadows(model, training=loss is not None)
    inputs, targets = plan.on_meta()
    reading = _Reading({INPUTS: next(iter(tree_leaves(inputs))), **shadows})
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
    gradients = {name: shadow.grad for name, shadow in shadows.items() if shadow.is_leaf}
    return Count(
        flops=flops,
        least_flops=_least(counter.get_flop_counts()["Global"]),
        forward=forward,
        backward=reading.taken(),
        gradients={
            name: gradient.numel()
            for name, gradient in gradients.items()
            if gradient is not None and gradient.layout == torch.strided
        },
    )


def _least(by_operator: Mapping[Any, int]) -> int:
    """Leave out what is asked for and may never be computed, so that no alarm is raised for the want of it.

    Winograd's convolutions, which libraries take for 3 x 3 pixels in fp32, do with a quarter of the products
    (F(4x4, 3x3); Lavin and Gray, arXiv:1509.09308); causal attention, whose products come in batches, with half.
    """
    saved = dict.fromkeys(_CONVOLUTIONS, 0.75) | dict.fromkeys(_BATCHED, 0.5)
    return int(sum(flops * (1 - saved.get(operator, 0)) for operator, flops in by_operator.items()))


def _backward_flops(gradient: Any, inputs: Any, weight: Any, *rest: Any, out_shape: Any) -> int:  # noqa: ANN401, ARG001 - shapes, as torch hands them
    """Count each gradient of a convolution as its forward pass; torch's own formula takes grouped ones for full ones.

    It made 17 times too much of an EfficientNet-B7 (torch 2.10).
    """
    transposed, _, _, wanted = rest[-4:]
    passes = sum(map(bool, wanted[:2]))  # for the inputs, for the weight; the bias is no product
    return int(conv_flop_count(inputs, weight, gradient, transposed=transposed)) * passes


class _Reading(TorchDispatchMode):
    """Notes which of some named tensors are operands of products: those are read in full, or as far as they go in.

    Others may be read in part: the embedding of a vocabulary where its tokens occur, an expert where it is asked.
    """

    def __init__(self, named: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._named = {_storage(tensor): (name, tensor.numel()) for name, tensor in named.items()}
        self._read: dict[str, int] = {}

    def taken(self) -> dict[str, int]:
        """What was read since this was last asked, in elements."""
        read, self._read = self._read, {}
        return read

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - as torch calls it
        operator = getattr(func, "_overloadpacket", None)
        if operator in flop_registry:
            operands = list(args)
            if operator is aten.convolution_backward:
                for_inputs, for_weight, *_ = args[-1]
                # It is given both, and reads the weight for the gradient of the inputs alone, and the other way round.
                operands = [args[0], args[1] if for_weight else None, args[2] if for_inputs else None]
            for operand in operands:
                if isinstance(operand, torch.Tensor) and (known := self._named.get(_storage(operand))):
                    name, elements = known
                    self._read[name] = max(self._read.get(name, 0), min(operand.numel(), elements))
        return func(*args, **(kwargs or {}))


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # noqa: SLF001 - views share it; a meta tensor has no address


def _shadows(model: torch.nn.Module, *, training: bool) -> dict[str, torch.Tensor]:
    """Make the model's own weights without their contents; the model itself is not touched."""
    meta = torch.device("meta")
    return {
        name: torch.empty_like(
            tensor,
            device=meta,
            dtype=_widened(tensor),
            # A frozen weight has no gradient. Without training all have, on paper: see `_forward`.
            requires_grad=tensor.requires_grad if training else tensor.is_floating_point(),
        )
        for name, tensor in model.named_parameters()
    } | {
        name: torch.empty_like(tensor, device=meta, dtype=_widened(tensor))
        for name, tensor in model.named_buffers()
    }


def _forward(model: torch.nn.Module, shadows: dict[str, torch.Tensor], inputs: Any) -> Any:  # noqa: ANN401 - whatever a model takes and returns
    # Gradients on, also for inference: without them attention takes a fused path that is not counted.
    with torch.enable_grad():
        return functional_call(model, shadows, (inputs,))


def _widened(tensor: torch.Tensor) -> torch.dtype:
    return torch.float32 if tensor.is_floating_point() else tensor.dtype
