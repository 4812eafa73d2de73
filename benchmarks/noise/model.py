"""Simulated step times of an accelerator: the model on which the gate was tuned.

A stream is a product of parts:

- AR(1) inside a run, phi .6, marginal sd .8 %: neighbouring steps share a clock.
- Outliers on 3 % of steps: a Pareto excess (shape 1.5, smallest 5 %), with infinite variance.
- A warm-up tail: 1 % at the first kept step, fading over 5 steps.
- A drift: linear through a run, its slope random, sd .2 % from the first step to the last.
- A run effect and a session effect. `between_run_sd` is their total; the session has .2 of the variance.
- A throttle: a Markov chain on 4 % of the time, one run long on average, each episode 3 to 10 % deep. It is one that the
  device does not report: reported ones make a run invalid.

A baseline has one run a session. The candidate's runs are of one session, each starting three run lengths after the last one
ended. The change is a shift of every step, or a stall: every 10th step slow, with the same effect on the mean of ten steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Change = Literal["shift", "stall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Parameters of the streams."""

    between_run_sd: float
    session_share: float = 0.2
    steps: int = 60
    steps_per_round: int = 10
    retry_gap_steps: int = 180
    step_sd: float = 0.008
    step_phi: float = 0.6
    outlier_share: float = 0.03
    outlier_shape: float = 1.5
    outlier_least: float = 0.05
    warmup_tail: float = 0.01
    warmup_steps: float = 5.0
    drift_sd: float = 0.002
    throttle_share: float = 0.04
    throttle_steps: float = 60.0
    throttle_depth: tuple[float, float] = (0.03, 0.10)
    stall_every: int = 10


def baseline_steps(rng: np.random.Generator, model: Model, trials: int, runs: int) -> np.ndarray:
    """Return step times [trial, run, step] of baselines with `runs` sessions."""
    sessions = _session(rng, model, trials * runs, 1)
    return sessions.reshape(trials, runs, model.steps)


def candidate_steps(
    rng: np.random.Generator, model: Model, trials: int, repeats: int, *, d: float, change: Change = "shift"
) -> np.ndarray:
    """Return step times [trial, run, step] of a session whose code is slower by exp(d)."""
    times = _session(rng, model, trials, repeats)
    if change == "shift":
        return np.asarray(times * np.exp(d))
    phase = rng.integers(model.stall_every, size=(trials, repeats, 1))
    stalled = (np.arange(model.steps) + phase) % model.stall_every == 0
    return np.asarray(times * np.where(stalled, 1 + model.stall_every * np.expm1(d), 1.0))


def rounds(times: np.ndarray, model: Model) -> np.ndarray:
    """Return the mean step time of each round [trial, run, round]."""
    return np.asarray(times.reshape(*times.shape[:-1], -1, model.steps_per_round).mean(axis=-1))


def _session(rng: np.random.Generator, model: Model, trials: int, runs: int) -> np.ndarray:
    shape = (trials, runs, model.steps)
    session = rng.normal(0, model.between_run_sd * model.session_share**0.5, (trials, 1, 1))
    run = rng.normal(0, model.between_run_sd * (1 - model.session_share) ** 0.5, (trials, runs, 1))
    drift = rng.normal(0, model.drift_sd, (trials, runs, 1)) * np.linspace(0, 1, model.steps)
    tail = model.warmup_tail * np.exp(-np.arange(model.steps) / model.warmup_steps)
    log_times = session + run + drift + tail + _autoregression(rng, model, shape)
    throttled = log_times + _throttle(rng, model, trials, runs)
    return np.asarray(np.exp(throttled) * _outliers(rng, model, shape))


def _autoregression(rng: np.random.Generator, model: Model, shape: tuple[int, int, int]) -> np.ndarray:
    noise = rng.normal(0, model.step_sd, shape)
    fresh = (1 - model.step_phi**2) ** 0.5
    for step in range(1, shape[-1]):  # the first step is drawn from the stationary law
        noise[..., step] = model.step_phi * noise[..., step - 1] + fresh * noise[..., step]
    return noise


def _outliers(rng: np.random.Generator, model: Model, shape: tuple[int, int, int]) -> np.ndarray:
    excess = model.outlier_least * (1 + rng.pareto(model.outlier_shape, shape))
    return 1 + np.where(rng.random(shape) < model.outlier_share, excess, 0.0)


def _throttle(rng: np.random.Generator, model: Model, trials: int, runs: int) -> np.ndarray:
    """Return ln(slowdown) [trial, run, step], from one chain through the session, gaps included."""
    leave = 1 / model.throttle_steps
    enter = leave * model.throttle_share / (1 - model.throttle_share)
    stride = model.steps + model.retry_gap_steps
    slow = rng.random(trials) < model.throttle_share
    depth = -np.log1p(-rng.uniform(*model.throttle_depth, trials))
    log_slowdown = np.empty((trials, runs, model.steps))
    for now in range(runs * stride - model.retry_gap_steps):
        run, step = divmod(now, stride)
        if step < model.steps:
            log_slowdown[:, run, step] = np.where(slow, depth, 0.0)
        flips = rng.random(trials) < np.where(slow, leave, enter)
        depth = np.where(flips & ~slow, -np.log1p(-rng.uniform(*model.throttle_depth, trials)), depth)
        slow ^= flips
    return log_slowdown
