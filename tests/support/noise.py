"""A stream of a made-up benchmark: its head, and a run of it."""

from __future__ import annotations

from benchmarks.noise.streams import Head, Plan, StreamRun

HEAD = Head(
    name="cpu-sum",
    benchmark="bench_suites/test_sums.py::test_sum",
    platform="cpu",
    device="cpu-made-up",
    unit="calls",
    work_per_step=1.0,
    configuration={"batch_size": 4},
    identity={"cpu_model": "made up"},
    context={"torch": "2.10.0"},
    version="0.1.0",
    revision="",
    command=("bench_suites/test_sums.py", "--accel-budget=2s"),
    plan=Plan(runs=3, slowdowns=(0.1,), slow_runs=2),
)
RUN = StreamRun(place=0, at="2026-01-01T00:00:00+00:00", took_s=1.0, steps_per_round=1, rounds_s=(0.5, 0.25))
