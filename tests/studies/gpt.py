"""What does a GPT win by what it says otherwise than most? `python -m tests.studies.gpt [--device cuda]`.

Each other way is trained beside the model as it is, in turn (ABBA). Printed are the ratio of their step times (above 1 the model as it is is faster) and
the losses of both after the same steps.

- fp32: the residual stream in fp32, which is what autocast makes of an embedding by itself
- tanh: torch's own GELU, which a compiler writes with tanh
- permute: queries, keys and values as parts of one permuted tensor
- plain: the last two
- pointwise: as it is, but the compiler times more shapes of each kernel that is no product
"""

from __future__ import annotations

import argparse
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor import config
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

from pytest_accel.workloads.models import gpt
from pytest_accel.workloads.steps import TrainStep
from tests.studies.alternating import add_names, in_turn, prepared
from tests.support.steps import losses

WORKLOADS: dict[str, dict[str, Any]] = {
    "cuda": {"model": "zoo/gpt-800m", "batch_size": 8},
    "cpu": {"model": "zoo/gpt-tiny", "batch_size": 2},
}
STEPS = 20


class Whole(gpt.GPT):
    def stream(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens)


class Tanh(gpt.Block):
    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Permuted(gpt.Attention):
    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # each (n, heads, t, head)
        q, k = gpt.rotate(q, cos, sin), gpt.rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(n, t, width))


class Tuned(gpt.GPT):
    pass


# Classes of their own: what is compiled for one class is not taken for another, as it is for one whose methods were patched.
WAYS: dict[str, dict[str, type[nn.Module]]] = {
    "fp32": {"GPT": Whole},
    "tanh": {"Block": Tanh},
    "permute": {"Attention": Permuted},
    "plain": {"Block": Tanh, "Attention": Permuted},
    "pointwise": {"GPT": Tuned},
}
SETTINGS = {"pointwise": {"max_autotune_pointwise": True}}  # of the compiler, while that way is compiled


def graphs() -> int:
    """How many were compiled so far."""
    return counters["stats"]["unique_graphs"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_names(parser, WAYS, metavar="WAY")
    parser.add_argument("--device", default="cpu", choices=sorted(WORKLOADS))
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch-size", type=int)
    arguments = parser.parse_args()
    device = prepared(arguments.device)
    asked = {**WORKLOADS[arguments.device], "device": torch.device(device.name), "precision": "bf16"}
    asked["batch_size"] = arguments.batch_size or asked["batch_size"]
    model = asked.pop("model")
    with TrainStep.build(model, **asked) as plain:
        expected = losses(plain, STEPS)
        print(f"as it is: loss {expected[-1]:.5f} after {STEPS} steps", flush=True)
        for name in arguments.names or WAYS:
            plain()  # a step that is closed, as that of the last way, has torch forget what it compiled for all
            before = graphs()
            with patch.multiple(gpt, **WAYS[name]):
                other = TrainStep.build(model, **asked)
            with other:
                with config.patch(SETTINGS.get(name, {})):
                    found = losses(other, STEPS)
                compiled = graphs()
                ratio = in_turn(other, plain, device, pairs=arguments.pairs, steps=arguments.steps)
                if device.name != "cpu" and not before < compiled == graphs():
                    raise RuntimeError(f"{name}: both ran what was compiled for one of them")
                print(f"{name}: loss {found[-1]:.5f}; {ratio}", flush=True)


if __name__ == "__main__":
    main()
