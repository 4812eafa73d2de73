"""Suites: collected rows, their ids and platforms, and their pages."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch

from pytest_accel.platforms.catalogue import ALTERNATIVES, load_catalogue
from pytest_accel.storage.references import linked_figures, read_study
from pytest_accel.workloads.config import BATCH_SIZES, size_for
from pytest_accel.workloads.precision import resolve_precision
from tests.support.processes import finished

ROOT = Path(__file__).parents[2]
SUITES = sorted((ROOT / "bench_suites").glob("test_*.py"))


# Prints the markers of every row, its link to published figures, and what it asks of `train`, `infer` or `converge`.
COLLECT = """
import json, pytest
from pytest_accel.session.references import _filled

def asked_by(item):
    found = {}
    def ask(*model, **options):
        found.update(options)
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    try:
        item.function(**{name: parameters.get(name, ask) for name in item._fixtureinfo.argnames})
    except pytest.skip.Exception:
        pass
    wanted = ("precision", "batch_size", "global_batch_size", "micro_batch_size", "may_not_fit")
    return {
        name: list(value.items()) if isinstance(value, dict) else value
        for name, value in found.items() if name in wanted
    }

class Rows:
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        self.rows = {}
        for item in items:
            links = [mark.kwargs["reference"] for mark in item.iter_markers("accel") if "reference" in mark.kwargs]
            self.rows[item.nodeid] = {
                "marks": sorted(mark.name for mark in item.iter_markers()),
                "asked": asked_by(item),
                "link": _filled(links[0], item) if links else "",
            }

rows = Rows()
assert pytest.main(["bench_suites", "--collect-only", "-q", "-p", "benchmark", "-p", "accel"], plugins=[rows]) == 0
print(json.dumps(rows.rows))
"""


@pytest.fixture(scope="module")
def rows():
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = finished(sys.executable, "-c", COLLECT, cwd=ROOT, env=environ, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def everything(rows):
    return {node_id: row["marks"] for node_id, row in rows.items()}


def test_ids_are_readable(everything):
    for node_id in everything:
        assert re.fullmatch(r"bench_suites/test_\w+\.py::test_\w+(\[[\w.-]+\])?", node_id), node_id
        assert not re.search(r"\[(.*-)?\w+\d+-?(None|True|False)|dict|0x", node_id), node_id


@pytest.mark.parametrize("platform", ["cpu", "h200"])
def test_every_suite_has_a_row_for_the_cpu_and_one_for_an_accelerator(everything, platform):
    rows = [node_id for node_id, marks in everything.items() if platform in marks]
    without = [path.name for path in SUITES if not any(f"/{path.name}::" in row for row in rows)]
    assert without == []


# Rows that the studies ran on a platform, and rows for which a device of that kind has neither memory nor precision.
STUDIES = {
    "v100": (["cnn.py::test_cnn[resnet50]", "cnn.py::test_batch[resnet50-fp16-256]", "cnn.py::test_scaling[weak]"],
             ["cnn.py::test_batch[resnet50-bf16-256]", "gpt.py::test_gpt_training[800m]"]),
    "v100x4": (["cnn.py::test_cnn[efficientnet_b0]", "cnn.py::test_scaling[strong]"], ["cnn.py::test_cnn[resnet50]"]),
    "t4": (["cnn.py::test_cnn[resnet50]", "cnn.py::test_batch[resnet50-fp32-64]"], ["cnn.py::test_batch[resnet50-tf32-64]"]),
    "rtx6000": (["cnn.py::test_cnn[resnet50]", "cnn.py::test_batch[resnet50-fp32-256]"], ["detection.py::test_dino[4scale]"]),
    "a100": (["cnn.py::test_cnn[resnet50]", "cnn.py::test_batch[resnet50-tf32-256]", "autoencoder.py::test_autoencoder[10]",
              "gpt.py::test_gpt_training[800m]", "resnet50_energy.py::test_energy[4096]"], []),
    "a100x2": (["cnn.py::test_cnn[efficientnet_b0]", "autoencoder.py::test_autoencoder[512]"], []),
    "a100x4": (["gpt.py::test_gpt_batch[800m-256]", "classification.py::test_training[vit_h_14-food101]"], []),
    "a100x8": (["cnn.py::test_scaling[weak]", "cnn.py::test_scaling[strong]"], []),  # a DGX-A100
    "h100": (["gpt.py::test_gpt_training[800m]", "resnet50_energy.py::test_energy[256]"], []),
    "gh200": (["gpt.py::test_gpt_training[800m]", "resnet50_energy.py::test_energy[256]", "wide_resnet.py::test_ddp"], []),
    "mi250": (["gpt.py::test_gpt_training[800m]", "resnet50_energy.py::test_energy[4096]", "cnn.py::test_cnn[resnet50]"],
              ["cnn.py::test_batch[resnet50-tf32-256]", "cnn.py::test_loading[device]"]),
    "mi250x8": (["gpt.py::test_gpt_batch[800m-256]"], []),
    "mi300x": (["gpt.py::test_gpt_training[800m]", "cnn.py::test_cnn[resnet50]"], ["cnn.py::test_loading[device]"]),
    "gc200": (["cnn.py::test_cnn[resnet50]", "cnn.py::test_cnn[mobilenet_v3_large]", "cnn.py::test_batch[resnet50-fp16-16]",
               "cnn.py::test_first_epoch", "resnet50_energy.py::test_energy[16]", "autoencoder.py::test_autoencoder[10]"],
              ["cnn.py::test_cnn[efficientnet_b4]", "cnn.py::test_batch[resnet50-bf16-16]", "gpt.py::test_gpt_training[117m]",
               "autoencoder.py::test_autoencoder[512]", "inference.py::test_inference[resnet50]"]),
}  # fmt: skip


@pytest.mark.parametrize("platform", STUDIES)
def test_platform_of_a_study_collects_its_rows(everything, platform):
    collected = {
        node_id.removeprefix("bench_suites/test_")
        for node_id, marks in everything.items()
        if platform in marks
    }
    run_there, never = STUDIES[platform]
    assert set(run_there) - collected == set()
    assert collected & set(never) == set()


def test_every_row_has_a_batch_and_a_precision_for_each_of_its_devices(rows):
    catalogue = load_catalogue()
    for node_id, row in rows.items():
        platforms = filter(None, map(catalogue.find, row["marks"]))
        for kind in {name.device for name in platforms} - {"cpu"}:
            for variant in catalogue.devices[kind].variants:
                sizes = resolved_sizes(row["asked"], variant.memory_gb)
                assert all(sizes.values()), (node_id, variant.title)
                precision = row["asked"].get("precision", "fp32")
                assert {*ALTERNATIVES.get(precision, (precision,))} & {*variant.dtypes}, (
                    node_id,
                    variant.title,
                )


def resolved_sizes(asked, memory_gb):
    """Return the batch sizes for a device of this memory, without those that are None."""
    given = {
        name: dict(size) if isinstance(size, list) else size for name, size in asked.items() if "size" in name
    }
    found = {name: size_for(name, size, memory_gb) for name, size in given.items()}
    return {name: size for name, size in found.items() if size is not None}


def test_rows_of_an_h200_keep_the_precision_and_the_batch_of_their_baselines(rows, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    (h200,) = (each for each in load_catalogue().devices["h200"].variants if not each.key)
    checked = 0
    for path in (ROOT / "baselines" / "h200").glob("*.json"):
        for key, stored in json.loads(path.read_text())["benchmarks"].items():
            asked, configuration = rows[key.removesuffix(" (data)")]["asked"], stored["configuration"]
            assert (
                resolve_precision(asked["precision"], torch.device("cuda")) == configuration["precision"]
            ), key
            sizes = {name: size for name, size in configuration.items() if name in BATCH_SIZES}
            assert resolved_sizes(asked, h200.memory_gb) == sizes, key
            checked += 1
    assert checked > 40


# Figures without a row: batches that are no power of two, of several IPUs, of a model that the study splits over IPUs.
WITHOUT_A_ROW = r"pearc22/batch/resnet50/(14|18|20)/|/gc200x\d+$"


@pytest.mark.parametrize("study", ["pearc22", "caraml"])
def test_every_published_rate_stands_beside_a_row_of_its_platform(rows, study):
    figures = [
        each for each in read_study(ROOT / f"baselines/published/{study}.json").figures if each.is_absolute
    ]
    rates = [
        each for each in figures if each.metric in ("throughput", "first_epoch_throughput", "work_per_energy")
    ]
    alone = [
        each.id
        for each in rates
        if not any(
            row["link"] and each.platform in row["marks"] and linked_figures([each], row["link"])
            for row in rows.values()
        )
    ]
    assert [each for each in alone if not re.search(WITHOUT_A_ROW, each)] == []


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


def test_committed_baselines_are_of_rows_that_exist(everything):
    for path in (ROOT / "baselines").glob("*/*.json"):
        if path.parent.name == "published":  # references, no baselines
            continue
        stored = json.loads(path.read_text())["benchmarks"]
        assert {node_id.removesuffix(" (data)") for node_id in stored} <= set(everything), path
