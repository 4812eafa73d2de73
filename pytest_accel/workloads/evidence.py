"""Evidence that a step works: a few values of a model, to see at no cost that it trains and returns numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

SAMPLED_TENSORS = 16
SAMPLED_ELEMENTS = 1024


def sample_tensors(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Choose up to SAMPLED_TENSORS parameters, evenly from the first to the last."""
    names = list(parameters)
    count = min(SAMPLED_TENSORS, len(names))
    chosen = [names[index * (len(names) - 1) // max(1, count - 1)] for index in range(count)]
    return {name: parameters[name] for name in chosen}


def sample(parameter: Any) -> torch.Tensor:  # noqa: ANN401 - torch is untyped here
    """Copy the first elements of a parameter to the host; of a sharded one, those that are here."""
    return local(parameter.detach()).flatten()[:SAMPLED_ELEMENTS].to("cpu", torch.float32, copy=True)


def local(tensor: Any) -> Any:  # noqa: ANN401 - torch is untyped here
    """Return the part of a tensor that this rank has: all of it, unless it is sharded."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def tensors_in(output: Any) -> Iterable[torch.Tensor]:  # noqa: ANN401 - whatever a model returns
    """Yield the tensors of an output: itself, or those in its mappings and sequences."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from tensors_in(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from tensors_in(value)
