"""How well are change points found? `python -m tests.studies.changepoints [--trials N] [--seed S] [--calibrate]`.

A night is the gate's summary of one run of `tests.studies.streams`, each night a session of its own. Stationary
series ask how often a change point is found where there is none: with three sizes of run-to-run noise, with 5 % of
the nights hit by a Pareto outlier, and with noise that neighbouring nights share (AR(1)). Series with one
shift ask how often it is found within two nights of its place; those with a slow week ask for both of its ends. The
delay is the number of nights after a shift, the series growing night by night, until it is first reported.

Beside it, on the same nights, stands what Apache Otava does: the largest energy statistic of the values,
accepted when Welch's t-test of the two sides has p < .001. Its windows and its merging are left out, so that both
answer the same question: is there a change in this series?

`--calibrate` draws permutations of ranks and prints the table of `pytest_accel/stats/changepoints.py`.
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import ttest_ind

from pytest_accel.stats.changepoints import LEVELS, MIN_NIGHTS, change_points, windows
from tests.studies.streams import Model, baseline_steps, rounds

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTHS = (20, 60, 300)
NOISES = (0.003, 0.01, 0.03)
SHIFTS = (0.02, 0.05, 0.10)
NEAR = 2  # nights: as close as a reader needs to find the night's upgrade
MAX_DELAY = 20
OUTLIER_NIGHTS, OUTLIER_LEAST, OUTLIER_SHAPE = 0.05, 0.05, 1.5
# Permutations for each length of the table, as many as minutes allow. A length that allows smaller windows needs
# higher limits than the one before it: both stand in the table, so that nothing is interpolated across the step.
CALIBRATION = dict.fromkeys((12, 14, 17, 20, 30, 47, 48), 100_000) | {
    95: 50_000,
    96: 50_000,
    191: 20_000,
    192: 20_000,
    383: 8_000,
    384: 8_000,
    767: 3_000,
    768: 3_000,
    1000: 3_000,
}


def nights(
    rng: np.random.Generator, sd: float, trials: int, length: int, *, phi: float = 0.0, outliers: bool = False
) -> np.ndarray:
    """ln(step time) of each night [trial, night]; `sd` is the noise between nights, phi what neighbours share."""
    model = Model(between_run_sd=0.0 if phi else sd)
    summaries = np.median(np.log(rounds(baseline_steps(rng, model, trials, length), model)), axis=-1)
    if phi:
        effect = rng.normal(0, sd, (trials, length))
        for night in range(1, length):
            effect[:, night] = phi * effect[:, night - 1] + (1 - phi**2) ** 0.5 * effect[:, night]
        summaries = summaries + effect
    if outliers:
        excess = OUTLIER_LEAST * (1 + rng.pareto(OUTLIER_SHAPE, (trials, length)))
        summaries = summaries + np.log1p(np.where(rng.random((trials, length)) < OUTLIER_NIGHTS, excess, 0.0))
    return summaries


def energies(values: np.ndarray) -> np.ndarray:
    """The energy statistic [trial, split] of series [trial, night], for splits with MIN_NIGHTS on each side."""
    n = values.shape[1]
    distances = np.abs(values[:, :, None] - values[:, None, :])
    earlier = np.tril(distances).sum(axis=2)
    within_left = np.cumsum(earlier, axis=1)
    between = np.cumsum(distances.sum(axis=2) - 2 * earlier, axis=1)
    left = np.arange(MIN_NIGHTS, n - MIN_NIGHTS + 1)
    right = n - left
    inside_left, between = within_left[:, left - 1], between[:, left - 1]
    inside_right = within_left[:, -1:] - inside_left - between
    inside = inside_left / (left * (left - 1)) + inside_right / (right * (right - 1))
    return 2 * left * right / n * (between / (left * right) - inside)


def strengths(values: np.ndarray) -> np.ndarray:
    """What the table tabulates, of each series [trial]: the largest statistic on ranks over all windows."""
    found = np.full(len(values), -np.inf)
    for start, stop in windows(0, values.shape[1]):
        ranks = values[:, start:stop].argsort(axis=1).argsort(axis=1).astype(np.float32)
        step = max(1, 4_000_000 // (stop - start) ** 2)  # series at once: distances of some 16 MB
        for first in range(0, len(ranks), step):
            part = energies(ranks[first : first + step]).max(axis=1) / (stop - start)
            found[first : first + step] = np.maximum(found[first : first + step], part)
    return found


def calibrate(seed: int) -> Iterator[str]:
    rng = np.random.default_rng(seed)
    for length, draws in CALIBRATION.items():
        drawn = np.concatenate([strengths(rng.random((1000, length))) for _ in range(draws // 1000)])
        limits = np.quantile(drawn, [1 - level for level in LEVELS], method="higher")
        yield f"    ({length}, ({', '.join(f'{math.ceil(1000 * limit) / 1000:.3f}' for limit in limits)})),"


def series_of(trials: int, length: int) -> int:
    """A quarter where a series is long: its work grows with the square of the nights."""
    return trials if length <= 100 else trials // 4


def ours(series: np.ndarray) -> list[list[int]]:
    return [[point.index for point in change_points(row)] for row in np.exp(series).tolist()]


def welch(series: np.ndarray) -> list[list[int]]:
    """The one change point that the t-test accepts, or none."""
    found = []
    for row in series:
        split = MIN_NIGHTS + int(energies(row[None])[0].argmax())
        p = ttest_ind(row[:split], row[split:], equal_var=False).pvalue
        found.append([split] if p < 0.001 else [])
    return found


def share_found(found: list[list[int]]) -> float:
    return 100 * sum(map(bool, found)) / len(found)


def share_near(found: list[list[int]], *places: int) -> float:
    hits = sum(all(any(abs(index - place) <= NEAR for index in row) for place in places) for row in found)
    return 100 * hits / len(found)


def delays(series: np.ndarray, shift: float, before: int) -> np.ndarray:
    """Nights until the shift after `before` nights is reported, MAX_DELAY + 1 where it is not."""
    taken = []
    for row in series.tolist():
        shifted = [value + shift * (night >= before) for night, value in enumerate(row)]
        taken.append(
            next(
                (
                    seen
                    for seen in range(1, MAX_DELAY + 1)
                    if share_near(ours(np.array([shifted[: before + seen]])), before)
                ),
                MAX_DELAY + 1,
            )
        )
    return np.array(taken)


def line(label: str, entries: list[str]) -> str:
    return f"{label:<26}" + "".join(f"{entry:>14}" for entry in entries)


def false_alarms(rng: np.random.Generator, trials: int) -> Iterator[str]:
    yield line("false alarms, %", [f"{length} nights" for length in LENGTHS])
    kinds = [
        *((f"sd {100 * sd:g} %", {"sd": sd}) for sd in NOISES),
        ("sd 1 %, outliers", {"sd": 0.01, "outliers": True}),
        *((f"sd 1 %, AR(1) {phi:g}", {"sd": 0.01, "phi": phi}) for phi in (0.3, 0.6)),
    ]
    for label, kind in kinds:
        drawn = [nights(rng, trials=series_of(trials, n), length=n, **kind) for n in LENGTHS]
        yield line(label, [f"{share_found(ours(x)):.1f} / {share_found(welch(x)):.1f}" for x in drawn])


def power(rng: np.random.Generator, trials: int) -> Iterator[str]:
    yield line("found near its place, %", [f"{length} nights" for length in LENGTHS])
    for place, at in (("in the middle", lambda n: n // 2), ("6 nights ago", lambda n: n - 6)):
        for sd in NOISES:
            for shift in SHIFTS:
                entries = []
                for length in LENGTHS:
                    series = nights(rng, sd, series_of(trials, length), length)
                    series[:, at(length) :] += math.log1p(shift)
                    shares = (share_near(found(series), at(length)) for found in (ours, welch))
                    entries.append(" / ".join(f"{share:.0f}" for share in shares))
                yield line(f"{100 * shift:.0f} % {place}, sd {100 * sd:g} %", entries)
    entries = []
    for length in LENGTHS[1:]:
        series = nights(rng, 0.01, series_of(trials, length), length)
        series[:, length // 2 : length // 2 + 10] += math.log1p(0.05)
        entries.append(f"{share_near(ours(series), length // 2, length // 2 + 10):.0f}")
    yield line("5 % for 10 nights, sd 1 %", ["-", *entries])


def waiting(rng: np.random.Generator, trials: int) -> Iterator[str]:
    trials = max(1, trials // 8)  # each is searched up to MAX_DELAY times
    yield line("nights until found", ["2 %", "5 %", "10 %"])
    for sd in NOISES:
        entries = []
        for shift in SHIFTS:
            taken = delays(nights(rng, sd, trials, 60 + MAX_DELAY), math.log1p(shift), 60)
            middle, late = np.quantile(taken, [0.5, 0.9], method="higher")
            entries.append(
                " / ".join(f">{MAX_DELAY}" if q > MAX_DELAY else f"{q:.0f}" for q in (middle, late))
            )
        yield line(f"sd {100 * sd:g} %, after 60 nights", entries)


PARTS = {"alarms": false_alarms, "power": power, "waiting": waiting}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=800, help="series per cell (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", choices=PARTS, action="append", help="leave out the others")
    parser.add_argument("--calibrate", action="store_true")
    options = parser.parse_args()
    if options.calibrate:
        for row in calibrate(options.seed):
            print(row, flush=True)
        return
    print(f"{options.trials} series a cell, seed {options.seed}; ours / Welch p < .001")
    for name in options.part or PARTS:
        for text in PARTS[name](np.random.default_rng(options.seed), options.trials):
            print(text, flush=True)
        print()


if __name__ == "__main__":
    sys.exit(main())
