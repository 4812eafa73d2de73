"""A softmax over masked scores that reads them once: scale, mask and softmax in one step."""

from functools import cache

import torch


def masked_softmax(scores, mask, scale=1.0):
    """Softmax over the last dimension of `scale * scores`, with nothing where `mask` is false."""
    return _for(scores.device.type)(scores, mask, scale)


@cache
def _for(device):
    """Compiled into one kernel where launches cost more than arithmetic; on a CPU, plain torch."""
    return _steps if device == "cpu" else torch.compile(_steps)


def _steps(scores, mask, scale):
    return torch.softmax((scale * scores).masked_fill_(~mask, float("-inf")), dim=-1)
