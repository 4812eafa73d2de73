"""How fast are the matrix products of a GPT's step, alone? `python -m tests.studies.products [--device cuda] [--batch-size 16]`.

Each in a row of its own for long enough to come to the device's limit of power. Once
as the compiler has it, and once with the weights stored the other way round, which is the other pair of layouts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from pytest_accel.measure.device import Device
from pytest_accel.workloads.models.gpt import GptShape, gpt_shape
from tests.studies.alternating import bare, prepared

SHAPES = {"cuda": ("gpt-800m", 16), "cpu": ("gpt-tiny", 2)}
TRIED = 5
BLOCKS_S = {"cuda": (0.5, 1.2), "cpu": (0.0, 0.01)}  # the last is what counts
Way = Callable[[], Tensor]


def products(shape: GptShape) -> dict[str, tuple[int, int, int]]:
    """Inputs, outputs, and how many of it a model has."""
    width = shape.width
    return {
        "qkv": (width, 3 * width, shape.layers),
        "out": (width, width, shape.layers),
        "up": (width, 4 * width, shape.layers),
        "down": (4 * width, width, shape.layers),
        "head": (width, shape.padded_vocabulary, 1),
    }


def ways(rows: int, inputs: int, outputs: int, device: torch.device) -> dict[str, tuple[Way, Way]]:
    """Forward, and both gradients: as it is, and with the weights the other way round."""

    def drawn(*size: int) -> Tensor:
        return torch.randn(*size, device=device, dtype=torch.bfloat16) * 0.02

    x, dy, weight = drawn(rows, inputs), drawn(rows, outputs), drawn(outputs, inputs)
    turned = weight.t().contiguous()
    y, dx, dw, dw_turned = (torch.empty_like(each) for each in (dy, x, weight, turned))
    return {
        "forward": (partial(torch.mm, x, weight.t(), out=y), partial(torch.mm, x, turned, out=y)),
        "of inputs": (partial(torch.mm, dy, weight, out=dx), partial(torch.mm, dy, turned.t(), out=dx)),
        "of weights": (partial(torch.mm, dy.t(), x, out=dw), partial(torch.mm, x.t(), dy, out=dw_turned)),
    }


def seconds(way: Way, device: Device, blocks_s: Sequence[float]) -> float:
    """Of one product, in the last of these blocks."""
    bare(way, device, TRIED)  # loads it
    took_s = bare(way, device, TRIED)
    for block_s in blocks_s:
        took_s = bare(way, device, int(block_s / took_s) + 1)
    return took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=sorted(SHAPES))
    parser.add_argument("--batch-size", type=int)
    arguments = parser.parse_args()
    device = prepared(arguments.device)
    name, batch = SHAPES[arguments.device]
    shape = gpt_shape(name)
    rows = (arguments.batch_size or batch) * shape.sequence
    flops = step_s = 0.0
    print(f"{'product':<8}{'pass':<12}{'as it is':>10}{'turned':>10}  TFLOP/s")
    for product, (inputs, outputs, times) in products(shape).items():
        work = 2 * rows * inputs * outputs
        for which, both in ways(rows, inputs, outputs, torch.device(device.name)).items():
            as_it_is_s, turned_s = (seconds(way, device, BLOCKS_S[arguments.device]) for way in both)
            print(
                f"{product:<8}{which:<12}{work / as_it_is_s / 1e12:10.4g}{work / turned_s / 1e12:10.4g}",
                flush=True,
            )
            flops, step_s = flops + times * work, step_s + times * as_it_is_s
    print(f"all of a step, as it is: {step_s * 1e3:.1f} ms, {flops / step_s / 1e12:.4g} TFLOP/s")


if __name__ == "__main__":
    main()
