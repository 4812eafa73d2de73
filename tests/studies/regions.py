"""What does it cost to compile a model block by block? `python -m tests.studies.regions [MODEL ...] [--device cuda]`.

One graph of a whole step takes long to trace and to compile, and most of it says the same of one block after the other. This
builds a training step twice, compiled whole and with its repeated blocks compiled apart (those of one kind share what is compiled),
and prints what the first step of each took and the ratio of their step times, in turn (ABBA). Whatever is slower is no default.
Compile caches make the first steps short: give each run a TORCHINDUCTOR_CACHE_DIR of its own, or look at both, cold and warm.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from pytest_accel.measure.steps import timed_block
from pytest_accel.workloads.steps import TrainStep
from tests.studies.alternating import in_turn, prepared

FEWEST = 4  # of one class, to be worth it

WORKLOADS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "cuda": {
        "zoo/gpt-117m": {"batch_size": 16},
        "zoo/gpt-800m": {"batch_size": 8},
        "zoo/bert-base": {"batch_size": 32},
        "vit_l_32": {"data": "cifar100", "batch_size": 256},
        "swin_t": {"data": "cifar100", "batch_size": 256},
        "resnet50": {"data": "imagenet", "batch_size": 256},
    },
    "cpu": {
        "zoo/gpt-tiny": {"batch_size": 1, "sequence": 32, "model_options": {"layers": 4}},
    },
}


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Outermost modules with several layers, of classes that come again and again."""
    several = [each for each in model.modules() if each is not model and _layers(each) > 1]
    kinds = Counter(type(each) for each in several if not isinstance(each, nn.Sequential | nn.ModuleList))
    chosen: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for each in several:  # a module comes before what is in it
        if kinds[type(each)] >= FEWEST and each not in inside:
            chosen.append(each)
            inside.update(each.modules())
    return chosen


def _layers(module: nn.Module) -> int:
    return sum(next(layer.parameters(recurse=False), None) is not None for layer in module.modules())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--device", default="cpu", choices=sorted(WORKLOADS))
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    device = prepared(arguments.device)
    chosen: dict[str, Any] = {"device": torch.device(device.name), "compile": "default"}
    chosen["precision"] = "bf16" if arguments.device == "cuda" else "fp32"
    for model in arguments.models or WORKLOADS[arguments.device]:
        asked = chosen | WORKLOADS[arguments.device][model]
        with (
            patch("pytest_accel.workloads.steps.compiled_apart", repeated_blocks),
            patch("pytest_accel.workloads.compiling.compiled_apart", repeated_blocks),
        ):
            apart = TrainStep.build(model, **asked)
            apart_s = timed_block(apart, 1, device)
        with apart, TrainStep.build(model, **asked) as whole:
            whole_s = timed_block(whole, 1, device)
            ratio = in_turn(apart, whole, device, pairs=arguments.pairs, steps=arguments.steps)
            apart.check()
            whole.check()
        print(f"{model}: first step whole {whole_s:.1f} s, by blocks {apart_s:.1f} s; {ratio}", flush=True)


if __name__ == "__main__":
    main()
