import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.run import Run, baseline_key, both_keys, in_wheel, is_real, node_id_of, suite_of


def run_of(rounds_s):
    return Run(session="s", rounds_s=tuple(rounds_s), steps_per_round=10)


def test_summary_is_the_median_of_log_round_means():
    assert run_of([1.0, 4.0, 2.0]).summary == pytest.approx(math.log(2))
    assert run_of([1.0, 4.0]).summary == pytest.approx(math.log(2))


def test_one_slow_round_is_forgotten_by_the_summary_and_shown_as_a_stall_share():
    run = run_of([1.0] * 9 + [2.0])
    assert run.step_time_s == pytest.approx(1.0)
    assert run.stall_share == pytest.approx(math.log(1.1))


def test_a_stall_in_every_round_is_seen_in_full():
    run = run_of([(9 * 1.0 + 1.5) / 10] * 6)
    assert run.step_time_s == pytest.approx(1.05)
    assert run.stall_share == pytest.approx(0.0)


def test_standard_error_by_hand():
    run = run_of([math.exp(x) for x in (-0.01, 0.0, 0.01)])
    # The median absolute deviation is .01; 1.4826 times it estimates a normal sd.
    assert run.standard_error == pytest.approx(1.4826 * 0.01 * math.sqrt(math.pi / 2 / 3))


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e-300, 1e300, math.nan, math.inf])
@pytest.mark.parametrize("name", ["rounds_s", "rank_step_s"])
def test_implausible_step_time_is_refused_with_its_field(name, seconds):
    values = {"rounds_s": (1.0,), name: (1.0, seconds)}
    with pytest.raises(ValueError, match=rf"^{name}\[1\]: .* is not between 1e-09 and 1e\+07"):
        Run(session="s", steps_per_round=10, **values)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"rounds_s": ()}, "rounds_s"),
        ({"steps_per_round": 0}, "steps_per_round"),
        ({"first_step_s": -1.0}, "first_step_s"),
        ({"warmup_s": 1e300}, "warmup_s"),
        ({"peak_memory_bytes": -1}, "peak_memory_bytes"),
        ({"metrics": {"energy_j": 1e300}}, r"metrics\['energy_j'\]"),
    ],
)
def test_implausible_value_is_refused_with_its_field(values, name):
    with pytest.raises(ValueError, match=f"^{name}: "):
        Run(**{"session": "s", "rounds_s": (1.0,), "steps_per_round": 10, **values})


# --- keys -------------------------------------------------------------------------------------------

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
