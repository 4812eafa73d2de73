"""What other plugins and conftest files may add to pytest-accel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_accel.power.source import Source


@pytest.hookspec
def pytest_accel_platforms(config: pytest.Config) -> Mapping[str, Mapping[str, Any]]:  # type: ignore[empty-body]
    """Add platforms to the catalogue: device name to the fields of a device.

    Paste into a conftest.py, and `@pytest.mark.mybox`, `mybox`x4 and `-m mybox` work::

        def pytest_accel_platforms(config):
            return {
                "mybox": {
                    "title": "My accelerator",
                    "vendor": "nvidia",
                    "patterns": ["NVIDIA My Accelerator.*"],
                    "memory_gb": 48,
                    "peaks_tflops": {"bf16": 181.0},
                }
            }
    """


@pytest.hookspec
def pytest_accel_power_sources(config: pytest.Config) -> Sequence[Source]:  # type: ignore[empty-body]
    """Add sources of power and energy: sensors that pytest-accel does not know.

    A rail of scope "device" is counted with the devices, one of scope "node" with the host; one that lies within
    another names it, and is never added to it. Readings that are missing or impossible are left out and said, and an
    error in a source costs its readings, never the measurement. Counters are asked at the two ends of a window, power
    some times a second from a thread; leave out of the answer what cannot be read.

    Paste into a conftest.py::

        from pathlib import Path

        from pytest_accel.core.energy import Rail


        class BoardMeter:
            name = "board meter"
            problem = ""  # why it tells nothing
            rails = (Rail(name="npu0", scope="device", kind="npu"),)

            def joules(self):  # counted since whenever; {} where there is no counter
                return {"npu0": float(Path("/run/npu0/energy_j").read_text())}

            def watts(self):  # now; {} where there is only a counter
                return {"npu0": float(Path("/run/npu0/power_w").read_text())}

            def close(self):
                pass


        def pytest_accel_power_sources(config):
            return [BoardMeter()]
    """
