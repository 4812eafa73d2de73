"""Cases of a session, made up: a benchmark with stored runs and measured ones, and no device."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_accel.options import Settings
from pytest_accel.platforms.catalogue import PlatformName
from pytest_accel.session.case import Case
from pytest_accel.stats.baseline_quality import DEFAULT_PRIOR, NoisePrior
from pytest_accel.stats.measurement import Measurement
from pytest_accel.stats.run import Run
from pytest_accel.storage.baselines import BaselineStore
from tests.support.stored import H200, KEY


def measurement(
    run: Run, *, gates: Mapping[str, float | None] | None = None, invalid: str = ""
) -> Measurement:
    return Measurement(
        run=run,
        work_per_step=256.0,
        unit="images",
        configuration={"batch_size": 256},
        environment=H200,
        steady=True,
        gates=gates or {},
        invalid=invalid,
    )


def make_case(
    root: Path,
    key: str = KEY,
    *,
    runs: Sequence[Run] = (),
    gates: Mapping[str, float | None] | None = None,
    prior: NoisePrior = DEFAULT_PRIOR,
    **settings: Any,
) -> Case:
    """Against the baselines of a folder (`stored.baseline`)."""
    item: Any = SimpleNamespace(
        name=key.partition("::")[2],
        nodeid=key,
        stash=pytest.Stash(),
        location=(key.partition("::")[0], 0, ""),
    )
    return Case(
        item=item,
        platform=PlatformName("h200"),
        disk_name="h200",
        suite="cnn",
        settings=Settings(**settings),
        baseline=BaselineStore(root).read("h200", "cnn"),
        prior=prior,
        measurements=[measurement(run, gates=gates) for run in runs],
    )
