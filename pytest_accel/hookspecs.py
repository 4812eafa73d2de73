"""What other plugins and conftest files may add to pytest-accel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


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
