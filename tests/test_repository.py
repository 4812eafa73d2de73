"""What this repository itself commits to."""

from __future__ import annotations

import re
import subprocess
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


def test_make_bench_records_on_its_first_run_only(tmp_path):
    def command(folder):
        make = ["make", "-n", "-o", "none/.ready", "bench", "VENV=none", f"BENCH={folder}"]
        done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout

    assert "--accel-record" in command(tmp_path / "none-yet")
    assert "--accel-record" not in command(tmp_path)
    assert f"--accel-baselines {tmp_path} " in command(tmp_path)
