"""What this repository itself commits to: its baselines are whole and name benchmarks that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_accel.markers import load_catalogue
from pytest_accel.storage.baselines import BaselineStore

ROOT = Path(__file__).parent.parent
STORE = BaselineStore(ROOT / "baselines")
# The studies in baselines/published are no baselines; tests/unit/storage/test_claims.py reads them.
COMMITTED = sorted(path for path in STORE.root.glob("*/*.json") if path.parent.name != "published")


def test_there_are_committed_baselines():
    assert COMMITTED


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_committed_baseline_is_whole_and_of_a_known_platform(path):
    file = STORE.read(path.parent.name, path.stem)
    assert file is not None
    assert load_catalogue().find(file.platform.partition("-")[0]) is not None
    for node_id, entry in file.benchmarks.items():
        module, _, name = node_id.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / module).read_text()
        assert all(run.environment in file.environments for run in entry.runs)


def test_nothing_advises_to_install_this_package_by_its_name():
    """It is on no index: whoever registers the name would get those installs."""
    for folder in ("pytest_accel", "bench_suites", "benchmarks", "docs", "deploy", "examples", "README.md"):
        found = ROOT / folder
        for path in found.rglob("*") if found.is_dir() else [found]:
            if path.suffix in {".py", ".md", ".sh", ".yml", ".yaml", ".sbatch", ".toml", ".txt"}:
                assert not re.search(
                    r"pip install[^\n`;&]*(?<![./])\bpytest-accel(?![-./\w])", path.read_text()
                ), path
