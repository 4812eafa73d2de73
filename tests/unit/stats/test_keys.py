"""Real and made-up data never share a baseline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.run import baseline_key, both_keys, in_wheel, is_real, node_id_of, suite_of

NODE = "bench/test_x.py::test_x[a b]"


@pytest.mark.parametrize(
    ("configuration", "real"),
    [
        ({}, False),
        ({"data": "imagenet"}, False),
        ({"data": "imagenet", "data_source": "synthetic"}, False),
        ({"data": "imagenet", "data_source": "host-synthetic"}, False),
        ({"data": "imagenet", "data_source": None}, False),
        ({"data": "imagenet", "data_source": "files"}, True),
        ({"data_source": "mine"}, True),
    ],
)
def test_real_is_what_is_not_made_up(configuration, real):
    assert is_real(configuration) == real
    assert baseline_key(NODE, configuration) == (f"{NODE} (data)" if real else NODE)


@given(st.sampled_from(["synthetic", "files", None]))
def test_a_key_is_one_of_both_and_leads_back(source):
    key = baseline_key(NODE, {"data_source": source})
    assert key in both_keys(NODE)
    assert node_id_of(key) == NODE


@pytest.mark.parametrize(
    ("path", "suite"),
    [
        ("bench/test_cnn.py", "cnn"),
        ("bench/cnn_test.py", "cnn"),
        ("cnn.py", "cnn"),
        ("a/test_b_test.py", "b"),
    ],
)
def test_a_suite_is_the_module_without_what_pytest_needs(path, suite):
    assert suite_of(path) == suite


@pytest.mark.parametrize(
    ("node_id", "argument"),
    [
        ("bench_suites/test_gpt.py::test_x[a/b::c]", "pytest_accel.suites.test_gpt::test_x[a/b::c]"),
        ("bench_suites/test_gpt.py", "pytest_accel.suites.test_gpt"),
        ("mine/test_gpt.py::test_x", "mine/test_gpt.py::test_x"),
        ("mine/bench_suites/test_gpt.py::test_x", "mine/bench_suites/test_gpt.py::test_x"),
    ],
)
def test_a_benchmark_of_the_wheel_is_named_by_its_module(node_id, argument):
    assert in_wheel(node_id) == argument
