"""Sessions as they come out of real use, made up from a seed: for tests of reports, history and comparison.

Verdicts are the gate's own: rounds are drawn around a step time, and `judge` says what they mean.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pytest_accel.report.terminal import explain
from pytest_accel.report.verdicts import VERDICTS
from pytest_accel.stats.environment import Environment, diff
from pytest_accel.stats.gate import Outcome, Policy, Verdict, judge
from pytest_accel.stats.results import (
    Ending,
    ReferenceFigure,
    ReportLine,
    Result,
    ScalingFigure,
    SessionResults,
    Status,
)
from pytest_accel.stats.run import Run

AT = datetime(2026, 11, 15, 3, 5, 54, tzinfo=UTC)
SESSION = "20261115T030554Z-a4e552"
IDENTITY = {
    "device_name": "NVIDIA GH200 480GB",
    "device_count": "1",
    "device_memory_gb": "95",
    "power_limit_w": "700",
}
THEN = Environment(
    identity=IDENTITY,
    context={
        "driver": "570.124.06",
        "cuda": "12.8",
        "cudnn": "9.10.2",
        "nccl": "2.27.5",
        "torch": "2.10.0",
        "triton": "3.5.1",
        "python": "3.12.3",
        "kernel": "6.8.0-1021-nvidia-64k",
        "container_image": "nvidia/pytorch:25.10-py3",
        "ecc": "on",
        "env.OMP_NUM_THREADS": "72",
    },
)
NOW = Environment(
    identity=IDENTITY,
    context={
        **THEN.context,
        "driver": "580.159.04",
        "cudnn": "9.19.0",
        "torch": "2.11.0",
        "triton": "3.6.0",
        "container_image": "nvidia/pytorch:26.02-py3",
        "env.NCCL_ALGO": "Ring",
    },
)
CHANGES = diff(THEN, NOW)
NO_RUNS = {Ending.FAILED, Ending.SKIPPED, Ending.NOT_MEASURED, Outcome.VANISHED, Outcome.DOES_NOT_FIT}
NO_BASELINE = {*NO_RUNS, Ending.RECORDED, Outcome.NO_BASELINE}
FAILING = {Outcome.REGRESSED, Outcome.INVALID, Ending.FAILED}

# How much slower the runs are made, and how noisy, so that the gate says what is wanted.
_SHAPES: dict[Status, tuple[float, float, int]] = {
    Outcome.REGRESSED: (0.078, 0.006, 3),
    Outcome.OK: (0.003, 0.005, 1),
    Outcome.IMPROVED: (-0.14, 0.006, 3),
    Outcome.INCONCLUSIVE: (0.03, 0.045, 5),
}
_REASONS: dict[Status, str] = {
    Outcome.INVALID: "the device throttled in 31 % of the rounds (power brake): what was measured is its power supply",
    Outcome.NO_BASELINE: "no baseline on gh200; record one with --accel-record",
    Outcome.STALE_BASELINE: "its configuration changed since the baseline: batch_size 256 -> 512; "
    "replace the baseline with --accel-update",
    Outcome.DOES_NOT_FIT: "does not fit into 95 GiB, and its baseline does not either",
    Ending.FAILED: "RuntimeError: the loss is nan after 3 steps: a step that trains nothing is not a benchmark",
    Ending.SKIPPED: "needs 4 devices, this machine has 1",
    Ending.RECORDED: "recorded 5 runs",
    Ending.NOT_MEASURED: "the session was interrupted before",
    Outcome.VANISHED: "is stored in the baseline and was not found",
}


def make_runs(
    source: random.Random,
    step_s: float,
    *,
    runs: int = 5,
    rounds: int = 13,
    noise: float = 0.006,
    session: str = SESSION,
    environment: Environment = NOW,
    metrics: Mapping[str, float] | None = None,
) -> tuple[Run, ...]:
    """Runs around a step time: `noise` between processes, a third of it between rounds."""

    def run() -> Run:
        centre_s = step_s * (1 + source.gauss(0, noise))
        return Run(
            session=session,
            rounds_s=tuple(centre_s * (1 + abs(source.gauss(0, noise / 3))) for _ in range(rounds)),
            steps_per_round=10,
            environment=environment.key,
            first_step_s=step_s * 160,
            warmup_s=step_s * 230,
            peak_memory_bytes=int(11.8 * 2**30),
            loss=6.79 + source.gauss(0, 0.004),
            metrics=dict(metrics or {}),
        )

    return tuple(run() for _ in range(runs))


def make_result(
    status: Status = Outcome.OK,
    *,
    name: str = "test_cnn[resnet50-bf16-256]",
    file: str = "bench_suites/test_cnn.py",
    platform: str = "gh200",
    throughput: float = 6714.0,
    unit: str = "images",
    batch_size: int = 256,
    source: random.Random | None = None,
    rounds: int = 13,
    text: str | None = None,
    notes: Iterable[str] = (),
    **more: object,
) -> Result:
    """One benchmark with this end, everything about it as the plugin would have said it."""
    source = source or random.Random(ascii((name, status.value)))
    step_s = batch_size / throughput
    watts = 520.0 + source.uniform(-60, 90)
    metrics = {"mfu": 0.31 + source.uniform(-0.1, 0.2), "energy_per_step_j": watts * step_s, "tflops": 162.9}
    for _ in range(100):  # until the gate says what is wanted
        stored, runs = _both_sides(source, status, step_s, rounds, metrics)
        verdict = _verdict(status, stored, runs)
        if verdict is None or verdict.outcome is status:
            break
    said = explain(verdict) if verdict else _REASONS.get(status, VERDICTS[status].meaning)
    result = Result(
        benchmark=f"{file}::{name}",
        suite=file.rpartition("/")[2].removeprefix("test_").removesuffix(".py"),
        platform=platform,
        disk_name=platform,
        status=status,
        failed=status in FAILING,
        lines=(
            ReportLine(text=said if text is None else text, status=status),
            *(ReportLine(text=note) for note in notes),
        ),
        key=f"{file}::{name}",
        file=file,
        line=37,
        duration_s=12.4 + source.random(),
        unit=unit,
        work_per_step=float(batch_size),
        tolerance=0.05,
        configuration={
            "batch_size": batch_size,
            "compile": "default",
            "data": "imagenet",
            "data_source": "synthetic",
            "memory_format": "channels_last",
            "model": name.partition("[")[2].partition("-")[0].rstrip("]") or name,
            "optimizer": "sgd",
            "parameters": 25557032,
            "precision": "bf16",
            "task": "train",
        },
        runs=runs,
        baseline=stored,
        verdicts=(verdict,) if verdict else (),
        environment=NOW.key if runs else "",
        changes=CHANGES if stored else (),
    )
    return replace(result, **more)  # type: ignore[arg-type]


def _both_sides(
    source: random.Random, status: Status, step_s: float, rounds: int, metrics: Mapping[str, float]
) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    """The runs of the baseline, one a night, and those of this session; none where that end has none."""
    slower, noise, looks = _SHAPES.get(status, _SHAPES[Outcome.OK])
    stored: tuple[Run, ...] = ()
    runs: tuple[Run, ...] = ()
    shape = {"rounds": rounds, "noise": noise, "metrics": metrics}
    if status not in NO_BASELINE:
        for night in range(5):
            session = f"2026110{night + 1}T030000Z-{night:06x}"
            stored += make_runs(source, step_s, runs=1, session=session, environment=THEN, **shape)
    if status not in NO_RUNS:
        runs = make_runs(source, step_s / (1 - slower), runs=looks, **shape)
    return stored, runs


def _verdict(status: Status, stored: Sequence[Run], runs: Sequence[Run]) -> Verdict | None:
    if not isinstance(status, Outcome):
        return None
    if status in _SHAPES:
        return judge(stored, runs, Policy())
    return Verdict(
        outcome=status,
        tolerance=0.05,
        reason=_REASONS.get(status, VERDICTS[status].meaning),
        runs=len(runs),
        baseline_runs=len(stored),
    )


def make_session(results: Iterable[Result] | None = None, **more: object) -> SessionResults:
    """A night on one machine: these results, or one of every kind with sweeps, scaling and references."""
    made = tuple(results) if results is not None else a_night()
    session = SessionResults(
        session=SESSION,
        at=AT.isoformat(),
        duration_s=1874.2,
        exit_status=1 if any(result.failed for result in made) else 0,
        version="0.1.0",
        host="olivia-gpu-017",
        revision="9c31d8905741dbab77aa78adffbf7da3806bc082",
        command=("bench_suites", "-m", "gh200 or gh200x4", "--accel-report=report.html"),
        environments={THEN.key: THEN, NOW.key: NOW},
        results=made,
        findings=FINDINGS,
        remarks=("note: rank 2 (olivia-gpu-017, GPU 2): 6.2 % slower than the others at a matrix product",),
    )
    return replace(session, **more)  # type: ignore[arg-type]


def _finding(group: str, subject: str, of: str, level: str, text: str, remedy: str = "") -> dict[str, object]:
    return {
        "group": group, "subject": subject, "of": of, "level": level, "text": text, "remedy": remedy, "known": True
    }  # fmt: skip


FINDINGS = (
    _finding(
        *("devices", "power limit", "GPU 0", "problem", "550 W, below its default of 700 W"),
        "sudo nvidia-smi -i 0 -pl 700",
    ),
    _finding(
        *("cpu", "governor", "", "warning", "schedutil: the clock follows the load"),
        "sudo cpupower frequency-set -g performance",
    ),
    _finding("devices", "ECC", "GPU 0", "ok", "on, no uncorrected errors"),
    _finding("disk", "free space", "", "ok", "1.2 TB at /data"),
)


def a_night() -> tuple[Result, ...]:
    """About thirty benchmarks: every end that one can come to, a sweep, several devices."""
    gpt = {"file": "bench_suites/test_gpt.py", "throughput": 91223.0, "unit": "tokens", "batch_size": 16384}
    kinds: tuple[tuple[Status, str, dict[str, Any]], ...] = (
        (Outcome.REGRESSED, "test_training[vit_l_32-cifar100]", {"throughput": 3736.0}),
        (Outcome.REGRESSED, "test_gpt[800m]", {**gpt, "changes": CHANGES[:2]}),
        (Ending.FAILED, "test_training[swin_b-food101]", {"traceback": ("test_x.py:41: nan",)}),
        (Outcome.INVALID, "test_training[vit_h_14-food101]", {"throughput": 412.0}),
        (Outcome.INCONCLUSIVE, "test_training[swin_t-food101]", {"throughput": 4452.0}),
        (Outcome.STALE_BASELINE, "test_training[resnet152-cifar100]", {}),
        (Outcome.NO_BASELINE, "test_inference[resnet50]", {"file": "bench_suites/test_inference.py"}),
        (Outcome.NO_BASELINE, "test_inference[swin_t]", {"file": "bench_suites/test_inference.py"}),
        (Outcome.IMPROVED, "test_training[resnet50-food101]", {"throughput": 6129.0}),
        (Outcome.DOES_NOT_FIT, "test_cnn[resnet152-bf16-4096]", {}),
        (Outcome.VANISHED, "test_cnn[efficientnet_b7]", {}),
        (Ending.SKIPPED, "test_two_nodes[resnet50]", {"platform": "gh200x4n2"}),
        (Ending.RECORDED, "test_autoencoder[128]", {"file": "bench_suites/test_autoencoder.py"}),
        (Ending.NOT_MEASURED, "test_autoencoder[512]", {"file": "bench_suites/test_autoencoder.py"}),
    )
    model = "bench_suites/test_classification.py"
    others = (make_result(status, name=name, **{"file": model, **more}) for status, name, more in kinds)
    return (*a_sweep(), *scaled(), *others)


def a_platform_shift() -> Result:
    """The slowdown that all benchmarks of a platform share."""
    return Result(
        benchmark="gh200",
        suite="",
        platform="gh200",
        disk_name="gh200",
        status=Outcome.REGRESSED,
        failed=True,
        lines=(
            ReportLine(
                text="18 of 20 benchmarks slower together, by 5.1 %: check the machine",
                status=Outcome.REGRESSED,
            ),
        ),
    )


def a_sweep() -> tuple[Result, ...]:
    """ResNet-50 over batch sizes, each with a published figure beside it."""
    measured = {16: 1904.0, 32: 3120.0, 64: 4716.0, 128: 5983.0, 256: 6714.0, 512: 7190.0, 1024: 7301.0}
    return tuple(
        make_result(
            name=f"test_resnet50_energy[{size}]",
            file="bench_suites/test_resnet50_energy.py",
            batch_size=size,
            throughput=throughput,
            configuration={"batch_size": size, "model": "resnet50", "precision": "bf16", "task": "train"},
            references=tuple(
                ReferenceFigure(
                    id=f"caraml/resnet50/{size}/{platform}",
                    source="CARAML, ResNet50",
                    platform=platform,
                    metric="throughput",
                    unit="images/s",
                    value=throughput * share,
                    ratio=1 / share,
                    flags=("approximate",) if size == 1024 else (),
                )
                for platform, share in (("gh200", 0.61), ("a100", 0.34))
            ),
        )
        for size, throughput in measured.items()
    )


def scaled() -> tuple[Result, ...]:
    """Four devices beside one."""
    return tuple(
        make_result(
            name=f"test_scaling[{model}]",
            platform="gh200x4",
            throughput=throughput,
            batch_size=1024,
            scaling=ScalingFigure(
                against="gh200", speedup=4 * efficiency, efficiency=efficiency, kind="weak"
            ),
        )
        for model, throughput, efficiency in (("resnet50", 24_900.0, 0.93), ("wide_resnet", 84_100.0, 0.94))
    )


def many(count: int, *, rounds: int = 13) -> tuple[Result, ...]:
    """So many benchmarks, most of them ok; one in forty regressed, one in fifteen has no baseline."""
    source = random.Random(0)
    models = ("resnet50", "vit_l_32", "swin_t", "gpt_117m", "wide_resnet")
    results = []
    for number in range(count):
        status = Outcome.REGRESSED if number % 40 == 17 else Outcome.OK
        if number % 15 == 4:
            status = Outcome.NO_BASELINE
        results.append(
            make_result(
                status,
                name=f"test_training[{models[number % len(models)]}-{number:03d}]",
                file=f"bench_suites/test_{('cnn', 'vision', 'gpt')[number % 3]}.py",
                platform=("gh200", "gh200x4")[number % 5 == 0],
                throughput=source.uniform(200, 90_000),
                source=source,
                rounds=rounds,
            )
        )
    return tuple(results)


def nights(
    result: Result, count: int = 60, *, seed: int = 0, step_at: int | None = 41
) -> list[tuple[str, float]]:
    """A benchmark's past: time and throughput of so many nights, 5 % lower from `step_at` on."""
    source = random.Random(f"{result.benchmark} {seed}")
    level = result.baseline_throughput or result.throughput or 1000.0
    begin = AT - timedelta(days=count)
    return [
        (
            (begin + timedelta(days=night)).isoformat(),
            level
            * (0.95 if step_at is not None and night >= step_at else 1.0)
            * (1 + source.gauss(0, 0.006)),
        )
        for night in range(count)
    ]
