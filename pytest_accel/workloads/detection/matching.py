"""Which prediction answers for which object: the one part of a detector's step that runs on the host.

All layers and all images cross in one copy, and come back in one.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

UNMATCHED = -1  # of a prediction that answers for no object


@torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
def match(costs: Tensor) -> Tensor:
    """Return for every prediction the object that it answers for, at the least cost in all, or UNMATCHED.

    `costs` are (layers, images, objects, predictions); objects that are padding cost infinity, and come after the
    real ones. The answer is (layers, images, predictions) on the device of the costs. Where an image has more
    objects than there are predictions, the dearest go without.
    """
    layers, images, objects, predictions = costs.shape
    if costs.is_meta:  # operations are counted there; which objects does not matter to it
        return torch.full((layers, images, predictions), UNMATCHED, device="meta")
    if find_spec("scipy") is None:
        raise RuntimeError("Matching boxes needs SciPy. pip install 'pytest-accel[suites]'")
    from scipy.optimize import linear_sum_assignment

    found = torch.full((layers * images, predictions), UNMATCHED)
    on_host = (
        costs.detach().cpu().reshape(layers * images, objects, predictions).numpy()
    )  # waits for the device
    for problem, answer in zip(on_host, found.numpy(), strict=True):
        real = int((problem[:, 0] < float("inf")).sum())
        which, prediction = linear_sum_assignment(problem[:real])
        answer[prediction] = which
    return found.view(layers, images, predictions).to(costs.device, non_blocking=True)
