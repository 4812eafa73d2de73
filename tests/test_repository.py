"""What this repository itself commits to."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_nothing_advises_to_install_this_package_by_its_name():
    """It is on no index: whoever registers the name would get those installs."""
    for folder in ("pytest_accel", "bench_suites", "benchmarks", "docs", "deploy", "examples", "README.md"):
        found = ROOT / folder
        for path in found.rglob("*") if found.is_dir() else [found]:
            if path.suffix in {".py", ".md", ".sh", ".yml", ".yaml", ".sbatch", ".toml", ".txt"}:
                assert not re.search(
                    r"pip install[^\n`;&]*(?<![./])\bpytest-accel(?![-./\w])", path.read_text()
                ), path
