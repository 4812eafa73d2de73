"""Which kernel computes attention: torch chooses it by shape, type and version, and it is no choice of the benchmark's."""

from __future__ import annotations

import torch

from pytest_accel.workloads.models.gpt import GptShape

_NAMES = {
    "MATH": "math",
    "FLASH_ATTENTION": "flash",
    "EFFICIENT_ATTENTION": "efficient",
    "CUDNN_ATTENTION": "cudnn",
}


def attention_backend(
    model: object, *, dtype: torch.dtype, device: torch.device, training: bool
) -> str | None:
    """Return what runs the attention of a model of ours, asked with tensors of its shape; None of other models."""
    shape = getattr(model, "shape", None)
    if not isinstance(shape, GptShape):
        return None
    from torch.nn.attention import SDPBackend

    size = (1, shape.heads, shape.sequence, shape.width // shape.heads)
    tensors = [torch.empty(size, dtype=dtype, device=device, requires_grad=training) for _ in range(3)]
    chosen = SDPBackend(torch._fused_sdp_choice(*tensors, is_causal=True))  # noqa: SLF001 - torch has no other way to ask
    return _NAMES.get(chosen.name, chosen.name.lower())
