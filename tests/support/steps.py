"""What tests ask of a training step, wherever it runs."""

from __future__ import annotations


def losses(step, steps=4):
    """After each of so many steps; all of them did real work."""
    found = []
    for _ in range(steps):
        step()
        found.append(step.loss_value())
    step.check()
    return found
