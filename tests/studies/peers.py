"""Are our steps faster than what people run otherwise? `python -m tests.studies.peers [NAME ...] [--device cpu]`.

The same model, precision and batch, in one process: our step, and the loop that the peer's own benchmark runs, written
down here in our words. Blocks of both alternate (ABBA), so that clocks and temperature are the same for both. Printed
are both rates and their ratio with its 95 % interval.
"""

from __future__ import annotations

import argparse
import importlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

from pytest_accel.core.student import t_quantile
from pytest_accel.workloads.steps import InferStep, TrainStep

BLOCK_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Contest:
    model: str
    task: str
    batch_size: int
    precision: str
    peer: str  # whose way
    peer_size: int = 224  # pixels
    unit: str = "images"
    units: int = 1  # of a sample
    choices: Mapping[str, Any] = field(default_factory=dict)  # of our step, beside these


CONTESTS = {
    "resnet50": Contest(model="resnet50", task="train", batch_size=256, precision="bf16", peer="timm"),
    # What timm's benchmark.py does unasked: it trains at the size that its weights are tested at.
    "resnet50-288": Contest(
        model="resnet50", task="train", batch_size=256, precision="bf16", peer="timm", peer_size=288
    ),
    "swin_t": Contest(model="swin_t", task="train", batch_size=256, precision="bf16", peer="timm"),
    "resnet50-infer": Contest(model="resnet50", task="infer", batch_size=1024, precision="bf16", peer="timm"),
    "swin_t-infer": Contest(model="swin_t", task="infer", batch_size=1024, precision="bf16", peer="timm"),
    "wide_resnet": Contest(
        model="zoo/wide_resnet", task="train", batch_size=32, precision="bf16", peer="guide"
    ),
}


def plain(model: str, batch_size: int, task: str, *, unit: str = "images", **choices: Any) -> Contest:
    """The library's own model trained by a plain loop: tests/studies/peers_TASK.py."""
    return Contest(
        model=model,
        task="train",
        batch_size=batch_size,
        precision="bf16",
        peer=task,
        unit=unit,
        choices=choices,
    )


CONTESTS |= {
    "gpt-800m": Contest(
        model="zoo/gpt-800m",
        task="train",
        batch_size=16,
        precision="bf16",
        peer="transformers",
        unit="tokens",
        units=2048,
    ),
    "bert-384": plain("zoo/bert-base", 32, "answering", unit="sequences"),
    "segformer-1": plain("zoo/segformer-b4", 1, "segmentation", optimiser="adamw"),
    "segformer-8": plain("zoo/segformer-b4", 8, "segmentation", optimiser="adamw"),
    "deeplab-2": plain("zoo/deeplabv3plus-r101", 2, "segmentation"),
    "deeplab-8": plain("zoo/deeplabv3plus-r101", 8, "segmentation"),
    "fasterrcnn": plain("fasterrcnn_resnet50_fpn", 2, "detection", lr=0.02, clip=1.0),
    "dino-4scale": plain(
        "zoo/dino-swin-l-4scale", 2, "detection", clip=0.1, model_options={"checkpoint": True}
    ),
}
TIMM_NAMES = {"resnet50": "resnet50", "swin_t": "swin_tiny_patch4_window7_224"}


def timms_way(contest: Contest, device: torch.device) -> Callable[[], None]:
    """timm's benchmark.py with --amp --amp-dtype bfloat16 --channels-last --torchcompile: it waits at every step."""
    import timm

    model = timm.create_model(TIMM_NAMES[contest.model]).to(device, memory_format=torch.channels_last)
    size = contest.peer_size
    inputs = torch.randn(contest.batch_size, 3, size, size, device=device).contiguous(
        memory_format=torch.channels_last
    )
    targets = torch.randint(1000, (contest.batch_size,), device=device)
    compiled = torch.compile(model)
    if contest.task == "infer":
        model.eval()

        def infer() -> None:
            with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16):
                compiled(inputs)
            wait(device)

        return infer
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def train() -> None:
        optimiser.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            loss = F.cross_entropy(compiled(inputs), targets)
        loss.backward()
        optimiser.step()
        wait(device)

    return train


def guides_way(contest: Contest, device: torch.device) -> Callable[[], None]:
    """Olivia's optimised guide: eager, autocast, a plain SGD, the loss read at every step."""
    from pytest_accel.workloads.models import build_model

    model, _ = build_model(contest.model, num_classes=100, device=device)
    inputs = torch.randn(contest.batch_size, 3, 32, 32, device=device)
    targets = torch.randint(100, (contest.batch_size,), device=device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        optimiser.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimiser.step()
        loss.item()

    return train


def transformers_way(contest: Contest, device: torch.device) -> Callable[[], None]:
    """transformers' GPT-2 of the same layers, width, heads and sequence, trained by a plain loop: eager, autocast."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from pytest_accel.workloads.zoo.gpt import GPT_SHAPES

    shape = GPT_SHAPES[contest.model.removeprefix("zoo/")]
    sizes = GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=shape.sequence,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(sizes).to(device)
    tokens = torch.randint(shape.vocabulary, (contest.batch_size, shape.sequence), device=device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def train() -> None:
        optimiser.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimiser.step()
        loss.item()

    return train


def plain_way(contest: Contest, device: torch.device) -> Callable[[], None]:
    module = importlib.import_module(f"tests.studies.peers_{contest.peer}")
    step: Callable[[], None] = module.plain_step(contest.model, contest.batch_size, device)
    return step


PEERS = {"timm": timms_way, "guide": guides_way, "transformers": transformers_way}


def our_way(contest: Contest, device: torch.device) -> Callable[[], None]:
    build = TrainStep.build if contest.task == "train" else InferStep.build
    data = "cifar100" if contest.model == "zoo/wide_resnet" else None
    return build(
        contest.model,
        data=data,
        batch_size=contest.batch_size,
        precision=contest.precision,
        device=device,
        **contest.choices,
    )


def wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.cuda.synchronize(device)


def timed(step: Callable[[], None], device: torch.device, steps: int) -> float:
    wait(device)
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    wait(device)
    return (time.perf_counter() - begin) / steps


def compare(
    name: str,
    contest: Contest,
    device: torch.device,
    groups: int,
    in_turn: Callable[[], None] = lambda: None,  # called when both are compiled, before anything is timed
) -> None:
    torch.backends.cudnn.benchmark = True
    peer = PEERS.get(contest.peer, plain_way)(contest, device)
    work = contest.batch_size * contest.units
    timed(peer, device, 5)
    ours = our_way(contest, device)
    timed(ours, device, 5)
    in_turn()
    counts = [max(2, math.ceil(BLOCK_S / timed(step, device, 3))) for step in (ours, peer)]
    rates: dict[str, list[float]] = {"ours": [], "peer": []}
    logs: list[float] = []
    for _ in range(groups):
        first = timed(ours, device, counts[0])
        middle = [timed(peer, device, counts[1]) for _ in range(2)]
        last = timed(ours, device, counts[0])
        rates["ours"].append(work / fmean([first, last]))
        rates["peer"].append(work / fmean(middle))
        logs.append(math.log(sum(middle) / (first + last)))
    ratio, half = fmean(logs), t_quantile(0.025, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    print(
        f"{name:15} ours {fmean(rates['ours']):8,.0f} {contest.unit}/s   {contest.peer} {fmean(rates['peer']):8,.0f} {contest.unit}/s   "
        f"ratio {math.exp(ratio):.3f} ± {half:.3f}",
        flush=True,
    )
    if isinstance(ours, TrainStep | InferStep):
        ours.check()
        ours.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(CONTESTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--groups", type=int, default=5)
    options = parser.parse_args()
    for name in options.names:
        compare(name, CONTESTS[name], torch.device(options.device), options.groups)


if __name__ == "__main__":
    main()
