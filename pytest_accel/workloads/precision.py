"""Precisions of a step: fp32, tf32, bf16 and fp16, each with all its switches; the one that a device has of several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from pytest_accel.measure.arguments import unknown_value
from pytest_accel.platforms.catalogue import ALTERNATIVES


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """A policy: what is computed in which type, and which backend flags that takes."""

    dtype: torch.dtype  # of matrix products and convolutions
    tf32: bool  # may what stays in fp32 run on TF32 units?
    scales_loss: bool = False  # fp16 gradients underflow without a GradScaler

    @property
    def is_half(self) -> bool:
        return self.dtype != torch.float32

    def autocast(self, device: torch.device) -> Any:
        """Return a context in which a training step runs: weights stay fp32, products run in `dtype`."""
        return torch.autocast(device.type, dtype=self.dtype if self.is_half else None, enabled=self.is_half)

    @contextmanager
    def flags(self, *, cudnn_benchmark: bool) -> Iterator[None]:
        """Set the process-wide backend flags of this policy, and put the old ones back at the end."""
        backends = torch.backends
        # The defaults: reading raises where the user set the new interface alone.
        matmul, cudnn = "highest", True
        with suppress(RuntimeError):
            matmul = torch.get_float32_matmul_precision()
        with suppress(RuntimeError):
            cudnn = backends.cudnn.allow_tf32
        new = [(switch, switch.fp32_precision) for switch in _new_switches()]
        benchmark = backends.cudnn.benchmark
        try:
            torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
            backends.cudnn.allow_tf32 = self.tf32
            for switch, _ in new:
                # oneDNN on CPUs stays exact: a CPU's "tf32" is not what the policy speaks of.
                on_cpu = switch is backends.mkldnn.matmul
                switch.fp32_precision = "tf32" if self.tf32 and not on_cpu else "ieee"
            backends.cudnn.benchmark = cudnn_benchmark
            yield
        finally:
            torch.set_float32_matmul_precision(matmul)
            backends.cudnn.allow_tf32 = cudnn
            for switch, value in new:
                switch.fp32_precision = value
            backends.cudnn.benchmark = benchmark


PRECISIONS = {
    "fp32": Precision(dtype=torch.float32, tf32=False),
    "tf32": Precision(dtype=torch.float32, tf32=True),
    "bf16": Precision(dtype=torch.bfloat16, tf32=True),
    "fp16": Precision(dtype=torch.float16, tf32=True, scales_loss=True),
}


def resolve_precision(name: str, device: torch.device) -> str:
    """Return what `half` and `single` are on this device: bf16, else fp16; TF32, else fp32. Others stay as they are."""
    return next((each for each in ALTERNATIVES.get(name, ()) if not _unsupported(each, device)), name)


def check_precision(name: str, device: torch.device) -> Precision:
    """Return the policy; ValueError where this kind of device cannot follow it."""
    name = resolve_precision(name, device)
    if name not in PRECISIONS:
        raise unknown_value("precision", name, (*PRECISIONS, *ALTERNATIVES))
    if reason := _unsupported(name, device):
        valid = ", ".join(other for other in PRECISIONS if not _unsupported(other, device))
        raise ValueError(f"precision: {name!r} is not possible on {device}: {reason}. Valid there: {valid}.")
    return PRECISIONS[name]


def _unsupported(name: str, device: torch.device) -> str | None:
    """Say why this device cannot compute so, or None."""
    match name, device.type:
        case "tf32", "cpu":
            return "TF32 is a format of tensor cores"
        case "fp16", "cpu":
            # Measured on a Xeon with AVX512-FP16, torch 2.10: a ResNet18 step takes 13 s against .12 s
            # in fp32, and its loss is NaN.
            return "convolutions in fp16 have no fast kernel on CPUs and overflow"
        case "tf32" | "bf16", "cuda" if torch.version.hip is None:
            major, minor = torch.cuda.get_device_capability(device)
            if (major, minor) < (8, 0):  # Ampere brought both; bf16 before it is emulated, and slow
                return f"it needs compute capability 8.0, this device has {major}.{minor}"
        case "tf32", "cuda":
            # hipBLASLt has TF32 for gfx942; elsewhere ROCm computes in fp32 and the flag does nothing.
            if not (name := torch.cuda.get_device_properties(device).gcnArchName).startswith("gfx94"):
                return f"of AMD's devices only the MI300 series (gfx94x) has it, this one is {name}"
        case "tf32" | "bf16", "ipu":
            return "an IPU computes in fp16 and fp32"
    return None


# torch 2.9 brought a second interface to the TF32 switches (`fp32_precision`) beside the old one
# (`allow_tf32`). Reading the old one raises wherever the two disagree, and torch.compile reads the old
# one (pytorch/pytorch#166387): set through the new one alone, compiling fails; set through the old one
# alone, a `torch.backends.fp32_precision` of the user's shines through. So both are set, to the same.


def _new_switches() -> tuple[Any, ...]:
    """Return what carries `fp32_precision` for one operator; nothing before torch 2.9."""
    backends = torch.backends
    if not hasattr(backends, "fp32_precision"):
        return ()
    return (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul)
