"""What this repository itself commits to."""

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


def test_make_bench_records_until_a_recording_was_complete(tmp_path):
    folder, program = tmp_path / "baselines", tmp_path / "venv" / "bin" / "python"
    program.parent.mkdir(parents=True)

    def bench(status):
        program.write_text(f"#!/bin/sh\nmkdir -p {folder}\nexit {status}\n")
        program.chmod(0o755)
        venv = tmp_path / "venv"
        make = ["make", "-o", f"{venv}/.ready", "bench", f"VENV={venv}", f"BENCH={folder}"]
        done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) is (status == 0)
        assert f"--accel-baselines {folder} " in done.stdout
        return "--accel-record" in done.stdout

    interrupted, first, second = bench(2), bench(0), bench(1)
    assert (interrupted, first, second) == (True, True, False)
