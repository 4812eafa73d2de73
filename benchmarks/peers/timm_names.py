"""The models of contests as timm knows them."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.contests import Contest

TRAINED_AT = 224  # pixels, all of these
NAMES = {"resnet18": "resnet18", "resnet50": "resnet50", "swin_t": "swin_tiny_patch4_window7_224"}


def timm_name(contest: Contest) -> str:
    return NAMES[contest.model]


def pixels(contest: Contest) -> int:
    """Height and width of its images: as ours has them, unless the contest is about that."""
    return contest.peer_pixels or int(contest.choices.get("image_size", TRAINED_AT))


def model_options(contest: Contest) -> dict[str, Any]:
    """What timm's builder is told: a Swin has the size of its images in its layers."""
    swin, size = timm_name(contest).startswith("swin"), pixels(contest)
    return {"img_size": size} if swin and size != TRAINED_AT else {}
