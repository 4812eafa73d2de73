"""Hooks for other plugins and conftest files: platforms and power sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_accel.power.source import PowerSource


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
def pytest_accel_power_sources(config: pytest.Config) -> Sequence[PowerSource]:  # type: ignore[empty-body]
    """Add sources of power and energy: sensors that pytest-accel does not know.

    A rail of scope "node" is of the whole host, as at its power supplies or in its management controller. It takes the
    place of the host's own sensors (RAPL, Grace), which are then not read: what they see would be counted twice. Write
    "device" for an accelerator that nothing else reads; it is counted with the devices, and one that NVML, amdsmi or
    gcipuinfo reads already would be counted twice. A rail that lies within another names it (`within=`), and is never
    added to it. Of a node beside devices the kinds "cpu" and "module" are shown: without the devices, and with them.

    Counters are read at the two ends of a window, power ten times a second from a thread. No call may wait: a networked
    meter is read by a thread of its own. Leave out of the answer what cannot be read. Readings that are missing or
    impossible are left out and reported; an error in a source costs its readings, never the measurement.

    Paste into a conftest.py, and it counts on every platform::

        from pathlib import Path

        from pytest_accel.stats.energy import Rail


        class NodeMeter:
            name = "node meter"
            problem = ""  # why it tells nothing
            rails = (Rail(name="supply", scope="node", kind="module"),)  # module: with its devices

            def joules(self):  # counted since whenever; {} where there is no counter
                return {"supply": float(Path("/run/node-meter/energy_j").read_text())}

            def watts(self):  # now; {} where there is only a counter
                return {"supply": float(Path("/run/node-meter/power_w").read_text())}

            def close(self):
                pass


        def pytest_accel_power_sources(config):
            return [NodeMeter()]
    """
