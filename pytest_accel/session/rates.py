"""What a step's operations and bytes say of its time: rates, shares of what the device can do, and alarms."""

from __future__ import annotations

from pytest_accel.platforms.kinds import Variant
from pytest_accel.stats.roofline import Roofline


def rates(
    *,
    timed_step_s: float,
    fastest_step_s: float,
    flops: float | None,
    bytes_moved: float | None,
    precision: str | None,
    variant: Variant | None,
    least_flops: float | None = None,
    device: str = "this device",
) -> tuple[dict[str, float], str]:
    """Return the metrics of a step, and what is impossible about its fastest round in words, or nothing.

    `flops` are what the model asks for, which MFU counts. `least_flops` are those that no algorithm saves, and alone
    raise an alarm; where they are not given, they are all of them.
    """
    roofline = Roofline(
        peak_tflops=variant.peak_tflops(precision) if variant and precision else None,
        bandwidth_gb_s=variant.bandwidth_gb_s if variant else None,
    )
    metrics: dict[str, float] = {}
    if flops:
        metrics["tflops"] = flops / timed_step_s / 1e12
        if roofline.peak_tflops:
            metrics["mfu"] = metrics["tflops"] / roofline.peak_tflops
    if bytes_moved:
        metrics["memory_gb_per_s"] = bytes_moved / timed_step_s / 1e9
        # Without bytes it would be MFU under another name.
        if roofline.bandwidth_gb_s and (share := roofline.share(timed_step_s, flops, bytes_moved)):
            metrics["roofline_share"] = share
    unavoidable = flops if least_flops is None else least_flops
    alarm = roofline.impossible(
        fastest_step_s, unavoidable, bytes_moved, device=device, precision=precision or ""
    )
    return metrics, alarm
