"""`pytest-accel explain`: the whole explanation of what lost, from a file of results."""

import re

import pytest

from pytest_accel.cli import main
from pytest_accel.storage.results import write_results
from tests.support.kernels import RENAMED, lost_attention
from tests.support.results import make_result, make_session


@pytest.fixture
def explained(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    write_results(tmp_path / "results.json", make_session([make_result(), lost_attention()]))

    def run(*names, status=0):
        assert main(["explain", str(tmp_path / "results.json"), *names]) == status
        return capsys.readouterr()

    return run


@pytest.mark.parametrize("name", [(), ("test_gpt[800m]",), ("bench_suites/test_cnn.py::test_gpt[800m]",)])
def test_what_lost_is_explained_down_to_its_kernels(explained, name):
    said = explained(*name).out
    assert said.startswith("REGRESSED  test_gpt[800m] (gh200): ")
    assert "changed since the baseline: " in said
    assert f"{RENAMED[0]} -> {RENAMED[1]} (other kernel)" in said
    assert re.search(r"^attention backward +\+[\d.]+ ms +\d+ %", said, re.MULTILINE)
    assert re.search(r"^unexplained .*\nmeasured .* 100 %", said, re.MULTILINE)


def test_benchmark_without_tables_says_when_there_is_one(explained):
    said = explained("test_cnn[resnet50-bf16-256]").out
    assert "no kernel tables to compare: of a step with torch, the last run of a recording" in said


def test_unknown_benchmark_is_refused_with_the_nearest_name(explained):
    assert "Did you mean 'test_gpt[800m]'?" in explained("test_gpt[800]", status=2).err


def test_session_that_lost_nothing_says_so(tmp_path, capsys):
    write_results(tmp_path / "results.json", make_session([make_result()]))
    assert main(["explain", str(tmp_path / "results.json")]) == 0
    assert capsys.readouterr().out.endswith("results.json: no benchmark lost or failed\n")
