"""Who waits for whom: a host that has launched a step no sooner than its device is done with it is what is measured."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_accel.core.quantities import seconds

HOST_BOUND_SHARE = 0.9  # of a step: a device that is kept busy has its launches queued long before


def host_bound(metrics: Mapping[str, float], step_s: float) -> str:
    """Say that a device waits for its host, and what helps; empty where it does not, or nobody asked.

    A loader that takes as long as the step has a name of its own: that is what binds there.
    """
    launch_s, most_s = metrics.get("launch_s", 0.0), HOST_BOUND_SHARE * step_s
    if launch_s < most_s or metrics.get("loader_step_s", 0.0) >= most_s:
        return ""
    return (
        f"its host takes {seconds(launch_s)} to launch a step of {seconds(step_s)}: the device waits for it, and what differs "
        "from run to run is the host. Record the launches (replay=True or compile='reduce-overhead' of train and infer, a "
        "CUDA graph in a step of your own), and let no step wait for a result (.item())"
    )
