"""The peers' ways, one file each, written in our words from their source; nothing of it is imported before it is played.

Every way is a function of a contest and a device that returns one step. It makes the model of the contest as the peer makes it,
a batch on the device, and does what the peer does between two batches, waiting and reading included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.peers.contests import Contest

Step = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Whose way, and where it is written down."""

    title: str
    module: str
    function: str = "step"


WAYS = {
    "timm": Way(title="timm's loop, compiled", module="timm_loop"),
    "torchvision": Way(title="torchvision's reference loop", module="torchvision_loop"),
    "gpt2": Way(title="transformers' GPT-2, eager", module="transformers_gpt2"),
    "bert": Way(title="transformers' BERT, eager", module="transformers_bert"),
    "nanogpt": Way(title="nanoGPT's loop, compiled", module="nanogpt"),
    "segmentation": Way(title="segmentation-models-pytorch, eager", module="segmentation"),
    "detector": Way(title="torchvision's detector, eager", module="detection", function="detector_step"),
    "dino": Way(title="our own DINO, eager", module="detection", function="dino_step"),
    "olivia": Way(title="Olivia's guide, eager", module="olivia"),
}


def title(contest: Contest) -> str:
    """Whose way a contest is against, in words."""
    return WAYS[contest.way].title + contest.unlike


def peers_step(contest: Contest, device: Any) -> Step:  # noqa: ANN401 - torch is not imported here
    """Build the peer's step of a contest; a library that is not installed is an ImportError."""
    way = WAYS[contest.way]
    module = import_module(f"{__name__}.{way.module}")
    step: Step = getattr(module, way.function)(contest, device)
    return step
