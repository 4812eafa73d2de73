"""Calibrations made up, of runs that scatter as little or as much as a test needs."""

from __future__ import annotations

from pathlib import Path

from pytest_accel.stats.calibration import Conditions, calibrate
from pytest_accel.stats.environment import Environment
from pytest_accel.storage.calibrations import CalibrationEntry, CalibrationStore
from tests.support.stored import H200, KEY, runs

AT = "2026-02-01T10:00:00+00:00"


def entry(
    count: int = 12, *, noise: float = 0.03, environment: Environment = H200, **more
) -> CalibrationEntry:
    measured = runs(count, noise=noise, environment=environment)
    return CalibrationEntry(
        **{
            "configuration_hash": "0123456789ab",
            "figures": calibrate(measured, draws=20),
            "runs": measured,
            "at": AT,
            "session": "s1",
            "conditions": Conditions(budget_s=5.0, threads=1),  # the defaults of a session
        }
        | more
    )


def calibration(
    root: Path, key: str = KEY, *, platform: str = "h200", suite: str = "cnn", **more
) -> CalibrationEntry:
    """Store one."""
    made = entry(**more)
    CalibrationStore(root).put(platform, suite, key, made, [more.get("environment", H200)])
    return made
