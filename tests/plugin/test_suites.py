"""Suites: collected rows, their ids and platforms, and their pages."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITES = sorted((ROOT / "bench_suites").glob("test_*.py"))


# Prints the markers of every row.
COLLECT = """
import json, pytest

class Rows:
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        self.rows = {item.nodeid: sorted(mark.name for mark in item.iter_markers()) for item in items}

rows = Rows()
assert pytest.main(["bench_suites", "--collect-only", "-q", "-p", "benchmark", "-p", "accel"], plugins=[rows]) == 0
print(json.dumps(rows.rows))
"""


@pytest.fixture(scope="module")
def everything():
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", COLLECT],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_ids_are_readable(everything):
    for node_id in everything:
        assert re.fullmatch(r"bench_suites/test_\w+\.py::test_\w+(\[[\w.-]+\])?", node_id), node_id
        assert not re.search(r"\[(.*-)?\w+\d+-?(None|True|False)|dict|0x", node_id), node_id


@pytest.mark.parametrize("platform", ["cpu", "h200"])
def test_every_suite_has_a_row_for_the_cpu_and_one_for_an_accelerator(everything, platform):
    rows = [node_id for node_id, marks in everything.items() if platform in marks]
    without = [path.name for path in SUITES if not any(f"/{path.name}::" in row for row in rows)]
    assert without == []


def test_sweeps_can_be_selected_and_left_out(everything):
    without = [node_id for node_id, marks in everything.items() if "sweep" not in marks]
    assert len(without) < len(everything) / 2
    assert not [node_id for node_id in without if "::test_batch" in node_id or "::test_workers" in node_id]
    assert "bench_suites/test_cnn.py::test_batch[resnet50-bf16-256]" in everything


@pytest.mark.parametrize("name", [path.stem.removeprefix("test_") for path in SUITES])
def test_every_suite_has_its_page(name):
    page = ROOT / "docs" / "suites" / f"{name}.md"
    assert page.read_text().startswith(f"# {name}: ")
    assert f"docs/suites/{name}.md" in (ROOT / "bench_suites" / f"test_{name}.py").read_text()


@pytest.mark.parametrize(
    ("suite", "row", "parameters", "may_not_fit"),
    [
        ("segmentation", "test_training", {"model": "segformer_b4", "batch_size": 8}, True),
        ("segmentation", "test_training", {"model": "segformer_b4", "batch_size": 1}, False),
        ("gpt", "test_gpt_training", {"size": "800m"}, True),
        ("gpt", "test_gpt_training", {"size": "117m"}, False),
    ],
)
def test_rows_for_a_large_device_may_not_fit_another(suite, row, parameters, may_not_fit):
    asked = []
    functions = runpy.run_path(str(ROOT / "bench_suites" / f"test_{suite}.py"))
    functions[row](lambda *_, **choices: asked.append(choices), **parameters)
    assert [choices.get("may_not_fit", False) for choices in asked] == [may_not_fit]


def test_committed_baselines_are_of_rows_that_exist(everything):
    for path in (ROOT / "baselines").glob("*/*.json"):
        if path.parent.name == "published":  # references, no baselines
            continue
        stored = json.loads(path.read_text())["benchmarks"]
        assert {node_id.removesuffix(" (data)") for node_id in stored} <= set(everything), path
