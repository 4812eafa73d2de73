"""Both ways of a contest in one process: built, compiled, and measured in blocks that alternate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import torch

from benchmarks.peers.contests import Contest
from benchmarks.peers.interrupts import hold_back
from benchmarks.peers.ours import our_step
from benchmarks.peers.ratios import SIDES, Side, alternate, steps_for
from benchmarks.peers.results import Played
from benchmarks.peers.waiting import free, quiet, timed
from benchmarks.peers.ways import Step, peers_step, title

Say = Callable[[str], None]
WARM_STEPS = 5  # the first compiles, the others let cuDNN and the allocator find what they look for
WARM_STEPS_SMALL = 2
TRIED_STEPS = 2  # how long is a step?


def play(contest: Contest, device: torch.device, *, groups: int, block_s: float, say: Say) -> Played:
    """Measure ours and the peer's."""
    with compiled(contest, device, say) as steps:
        counts = {side: steps_for(block_s, timed(steps[side], device, TRIED_STEPS)) for side in SIDES}
        say(f"{groups} groups of blocks: {counts['ours']} steps of ours, {counts['peer']} of the peer's")
        blocks = {side: partial(timed, steps[side], device, counts[side]) for side in SIDES}
        times = alternate(blocks, groups)
        hold_back(came=times.cut_off)
        ours = steps["ours"]
        if times.cut_off:
            ours()  # the last was left in its middle, it may be: without gradients
        ours.check()
        return Played(
            against=title(contest),
            times=times,
            steps=(counts["ours"], counts["peer"]),
            work=ours.work,
            unit=ours.unit,
        )


@contextmanager
def compiled(contest: Contest, device: torch.device, say: Say) -> Iterator[Mapping[Side, Any]]:
    """Both steps, built and warm."""
    say("builds both")
    steps: dict[Side, Step] = {}
    try:
        # Ours first: it sets the process's flags, and what is compiled under others would be compiled again.
        with quiet(device), closing(our_step(contest, device)) as ours:
            steps |= {"ours": ours, "peer": peers_step(contest, device)}
            for side in SIDES:
                _warm_up(steps[side], device, who=_named(side, contest), say=say)
            yield steps
    finally:
        steps.clear()  # the peer's model: a traceback keeps this frame
        free(device)


def _warm_up(step: Step, device: torch.device, *, who: str, say: Say) -> None:
    say(
        f"first steps of {who}"
        + ("" if device.type == "cpu" else " (minutes, where they compile for the first time)")
    )
    steps = WARM_STEPS_SMALL if device.type == "cpu" else WARM_STEPS
    took_s = steps * timed(step, device, steps)
    say(f"first steps of {who} took {took_s:.1f} s")


def _named(side: Side, contest: Contest) -> str:
    return "ours" if side == "ours" else title(contest)
