"""Kernel tables to order, and results that have them."""

from dataclasses import replace

from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.kernels import KernelRow, KernelTable
from pytest_accel.stats.results import Result
from tests.support.results import make_result

RENAMED = ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop", "flash_bwd_dq_dk_dv")


def row(operation: str, ms: float, kernel: str = "", count: float = 1.0) -> KernelRow:
    return KernelRow(operation=operation, kernel=kernel, count=count, seconds=ms / 1e3)


def table(step_ms: float, *rows: KernelRow) -> KernelTable:
    return KernelTable.of(rows, step_s=step_ms / 1e3)


def lost_attention() -> Result:
    """A benchmark whose attention backward runs another kernel, three times as long."""
    result = make_result(Outcome.REGRESSED, name="test_gpt[800m]")
    before_ms, after_ms = (1e3 * runs[-1].step_time_s for runs in (result.baseline, result.runs))
    lost_ms = after_ms - before_ms
    old = table(
        before_ms,
        row("matrix product", before_ms / 2, "nvjet"),
        row("attention backward", lost_ms / 2, RENAMED[0]),
    )
    new = table(
        after_ms,
        row("matrix product", before_ms / 2, "nvjet"),
        row("attention backward", 1.5 * lost_ms, RENAMED[1]),
    )
    return replace(
        result,
        baseline=(*result.baseline[:-1], replace(result.baseline[-1], kernels=old)),
        runs=(*result.runs[:-1], replace(result.runs[-1], kernels=new)),
    )
