"""Small baselines and results, made up: for tests of comparison and of the commands on baselines."""

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_accel.stats.environment import Environment
from pytest_accel.stats.gate import Verdict
from pytest_accel.stats.results import Ending, Result, SessionResults, Status
from pytest_accel.stats.run import Run
from pytest_accel.storage.baselines import BaselineEntry, BaselineStore, LedgerEntry
from pytest_accel.storage.results import write_results

H200 = Environment(
    identity={"device_name": "NVIDIA H200"}, context={"torch": "2.10.0", "driver": "570.124.06"}
)
UPGRADED = Environment(
    identity={"device_name": "NVIDIA H200"}, context={"torch": "2.11.0", "driver": "580.159.04"}
)
CAPPED = Environment(
    identity={"device_name": "NVIDIA H200", "power_limit_w": "500"}, context={"torch": "2.11.0"}
)
KEY = "bench_suites/test_cnn.py::test_cnn[resnet50]"
OTHER = "bench_suites/test_gpt.py::test_gpt[117m]"


def runs(
    count: int = 5,
    *,
    step_s: float = 0.01,
    session: str = "s1",
    environment: Environment = H200,
    noise: float = 0.002,
    seed: int = 0,
    **more,
) -> tuple[Run, ...]:
    """Runs whose step times scatter around one, the same for the same seed."""
    random_ = random.Random(f"{session}{seed}")
    made = []
    for _ in range(count):
        own = step_s * (1 + random_.gauss(0, noise))
        rounds = tuple(own * (1 + random_.gauss(0, noise / 4)) for _ in range(8))
        made.append(
            Run(session=session, rounds_s=rounds, steps_per_round=10, environment=environment.key, **more)
        )
    return tuple(made)


def baseline(
    root: Path,
    key: str = KEY,
    *,
    platform: str = "h200",
    suite: str = "cnn",
    stored: Sequence[Run] | None = None,
    environments: Sequence[Environment] = (H200,),
    batch_size: int = 256,
    tolerance: float | None = None,
    action: str = "record",
    reason: str = "first",
    replace: bool = False,
) -> BaselineStore:
    """Record runs of one benchmark into a folder."""
    store, found = BaselineStore(root), tuple(stored or runs())
    line = LedgerEntry(
        at="2026-01-31T09:30:00+00:00",
        action=action,
        reason=reason,
        runs=len(found),
        session=found[-1].session,
    )
    entry = BaselineEntry(
        configuration={"batch_size": batch_size},
        work_per_step=float(batch_size),
        unit="images",
        tolerance=tolerance,
        runs=found,
        ledger=(line,),
    )
    store.record(platform, suite, key, entry, environments, replace=replace)
    return store


def result(
    key: str = KEY,
    *,
    measured: Sequence[Run] | None = None,
    status: Status = Ending.RECORDED,
    platform: str = "h200",
    suite: str = "cnn",
    batch_size: int = 256,
    verdicts: tuple[Verdict, ...] = (),
    **more,
) -> Result:
    return Result(
        benchmark=key,
        key=key,
        suite=suite,
        platform=platform.partition("-")[0],
        disk_name=platform,
        status=status,
        unit="images",
        work_per_step=float(batch_size),
        configuration={"batch_size": batch_size},
        runs=tuple(runs(session="fresh") if measured is None else measured),
        verdicts=verdicts,
        **more,
    )


def results_of(
    *results: Result, environments: Sequence[Environment] = (H200, UPGRADED, CAPPED)
) -> SessionResults:
    """A session with these results."""
    return SessionResults(
        session="fresh",
        at="2026-02-01T09:30:00+00:00",
        duration_s=10.0,
        exit_status=0,
        version="0.1",
        environments={each.key: each for each in environments},
        results=results,
    )


def results_file(
    path: Path, *results: Result, environments: Sequence[Environment] = (H200, UPGRADED, CAPPED)
) -> Path:
    """A file of --accel-json."""
    write_results(path, results_of(*results, environments=environments))
    return path


@contextmanager
def as_nobody(folder: Path) -> Iterator[None]:
    """Without root's right to read and write everything, but with the way to a folder open."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    for each in (folder, *folder.parents):
        if each != Path("/tmp") and each.stat().st_mode & 0o011 != 0o011:  # its group stays root's
            each.chmod(each.stat().st_mode | 0o011)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
