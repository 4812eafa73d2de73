"""The losses that a step minimises unasked, and that no room of a task has."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

from pytest_accel.workloads.plan import Loss


def smoothed_cross_entropy(label_smoothing: float) -> Loss:
    """Return a cross entropy over the last dimension: of (batch, classes) or (batch, sequence, vocabulary)."""

    def cross_entropy(logits: Any, targets: Any) -> Any:  # noqa: ANN401 - torch is untyped here
        if not isinstance(logits, torch.Tensor):
            raise TypeError(
                f"the model returned {type(logits).__name__}, and the cross entropy needs logits. Pass loss=, a "
                "callable of what the model returned and the targets, or turn other outputs off "
                "(inception_v3, googlenet: model_options={'aux_logits': False})."
            )
        return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), label_smoothing=label_smoothing)

    return cross_entropy
