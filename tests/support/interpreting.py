"""Kernels of Triton's, run where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys


def interpreted(source: str) -> subprocess.CompletedProcess[str]:
    """Run a program in which triton interprets; in a process of its own, because that is asked when triton is imported."""
    return subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
