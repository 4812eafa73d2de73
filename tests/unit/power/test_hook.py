"""Sources that other plugins add: the hook's own example, and what a bad one costs."""

from __future__ import annotations

import inspect
import textwrap
import types

import pytest

import pytest_accel.hookspecs
from pytest_accel.core.energy import Rail
from pytest_accel.power.find import open_sources, problems
from pytest_accel.power.guarded import from_hook


def example():
    """The code that the hook's docstring tells to paste."""
    text = inspect.getdoc(pytest_accel.hookspecs.pytest_accel_power_sources)
    return textwrap.dedent(text.partition("::\n")[2])


def asked(code):
    """What pytest answers of a conftest.py of this code."""
    conftest = types.ModuleType("conftest")
    exec(code, vars(conftest))
    manager = pytest.PytestPluginManager()
    manager.add_hookspecs(pytest_accel.hookspecs)
    manager.register(conftest)
    return manager.hook.pytest_accel_power_sources(config=None)


class Meter:
    """A source whose answers a test sets."""

    name = "meter"
    problem = ""
    rails = (Rail(name="a", scope="node"), Rail(name="b", scope="node"))
    answer: object = None

    def joules(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    watts = close = joules


def guarded(answer):
    meter = Meter()
    meter.answer = answer
    return from_hook([[meter]])[0]


def test_the_example_works_as_it_is_pasted(tmp_path):
    code = example().replace("/run/npu0", str(tmp_path))
    (tmp_path / "energy_j").write_text("1234.5\n")
    (tmp_path / "power_w").write_text("310\n")
    more = from_hook(asked(code))
    source = open_sources([], host=tmp_path, more=more)[-1]
    assert (source.name, [rail.name for rail in source.rails]) == ("board meter", ["npu0"])
    assert source.joules() == {"npu0": 1234.5}
    assert source.watts() == {"npu0": 310.0}
    assert source.problem == ""


def test_the_example_costs_nothing_where_its_sensor_is_gone(tmp_path):
    (source,) = from_hook(asked(example().replace("/run/npu0", str(tmp_path))))
    assert source.joules() == source.joules() == {}
    (said,) = problems([source])
    assert said.startswith("board meter: joules raised FileNotFoundError: ")
    assert said.count("joules") == 1
    source.close()


def test_no_plugin_adds_nothing():
    assert from_hook(asked("")) == ()


def test_what_a_source_raises_is_said_once():
    source = guarded(RuntimeError("no line"))
    for _ in range(3):
        assert source.joules() == source.watts() == {}
    source.close()
    assert source.problem == (
        "joules raised RuntimeError: no line; watts raised RuntimeError: no line; close raised RuntimeError: no line"
    )


@pytest.mark.parametrize("garbage", [None, "12", True, float("nan"), float("inf"), [1]])
def test_garbage_is_left_out_and_the_others_stay(garbage):
    source = guarded({"a": garbage, "b": 2})
    assert source.joules() == source.watts() == {"b": 2.0}
    assert f"a: joules() says {garbage!r}, which is no reading" in source.problem


def test_impossible_power_is_left_out():
    assert guarded({"a": -1.0, "b": 1e9}).watts() == {}


@pytest.mark.parametrize("answer", [3, None, ["a"]])
def test_an_answer_that_is_no_mapping_is_left_out(answer):
    assert guarded(answer).joules() == {}


def test_a_rail_that_was_not_announced_is_left_out():
    source = guarded({"c": 1.0})
    assert source.joules() == {}
    assert source.problem == "joules() tells of 'c', which is none of its rails"


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (Meter(), "is no list of sources. Return a list"),
        ([object()], "has no name, problem, rails, joules, watts, close. A source has"),
        ([Meter], "is a class: return an object of it"),
        ([types.SimpleNamespace(**dict.fromkeys(("problem", "joules", "watts", "close")), name="x", rails=["a"])],
         r"the rails of x are \['a'\], not pytest_accel.core.energy.Rail"),
    ],
)  # fmt: skip
def test_what_is_no_source_is_one_clear_error(answer, complaint):
    with pytest.raises(ValueError, match=f"^pytest_accel_power_sources: .*{complaint}"):
        from_hook([answer])
