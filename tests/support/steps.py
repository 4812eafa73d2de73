"""Losses of a training step."""


def losses(step, steps=4):
    """Return the loss after each step; check that the steps trained."""
    found = []
    for _ in range(steps):
        step()
        found.append(step.loss_value())
    step.check()
    return found
