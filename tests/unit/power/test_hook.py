"""Sources that other plugins add: the hook's own example, and what a bad one costs."""

from __future__ import annotations

import inspect
import textwrap
import threading
import types

import pytest

import pytest_accel.hookspecs
from pytest_accel.power.find import open_sources, problems
from pytest_accel.power.guarded import Guarded, from_hook
from pytest_accel.stats.energy import Rail

PATIENCE_S = 30.0  # how long a test waits for what must happen; none waits it out


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
    code = example().replace("/run/node-meter", str(tmp_path))
    (tmp_path / "energy_j").write_text("1234.5\n")
    (tmp_path / "power_w").write_text("310\n")
    more = from_hook(asked(code))
    (source,) = open_sources([], host=tmp_path, more=more)
    assert (source.name, [rail.name for rail in source.rails]) == ("node meter", ["supply"])
    assert source.joules() == {"supply": 1234.5}
    assert source.watts() == {"supply": 310.0}
    assert source.problem == ""


def test_the_example_costs_nothing_where_its_sensor_is_gone(tmp_path):
    (source,) = from_hook(asked(example().replace("/run/node-meter", str(tmp_path))))
    assert source.joules() == source.joules() == {}
    (said,) = problems([source])
    assert said.startswith("node meter: joules raised FileNotFoundError: ")
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


class Stuck(Meter):
    """Hangs when its power is asked for, until it is let go."""

    rails = (Rail(name="a", scope="node"),)

    def __init__(self):
        self.asked: list[str] = []
        self.let_go, self.back = threading.Event(), threading.Event()

    def joules(self):
        self.asked.append("joules")
        return {"a": 1.0}

    def watts(self):
        self.asked.append("watts")
        assert self.let_go.wait(PATIENCE_S)
        return {"a": 2.0}

    def close(self):
        self.back.set()


def test_a_source_that_hangs_is_named_waited_for_once_and_asked_nothing_meanwhile():
    stuck = Stuck()
    source = Guarded(stuck, limit_s=PATIENCE_S)
    assert source.joules() == {"a": 1.0}
    source._apart._limit_s = 1.0  # a busy host is not what is tested
    assert source.watts() == {}
    assert source.watts() == source.joules() == {}
    assert problems([source]) == ("meter: watts did not answer within 1 s",)
    source.close()
    assert stuck.asked == ["joules", "watts"]
    stuck.let_go.set()


def test_a_source_that_was_late_once_is_asked_again():
    stuck = Stuck()
    source = Guarded(stuck, limit_s=0.05)
    assert source.watts() == {}
    stuck.let_go.set()
    source._apart._limit_s = PATIENCE_S
    with source._apart._free:  # it is back
        pass
    assert source.watts() == {"a": 2.0}
    source.close()
    assert stuck.back.is_set()


def test_the_thread_of_a_source_ends_with_it():
    meter = Meter()
    meter.name = "meter that ends"
    source = Guarded(meter)
    source.joules()
    (thread,) = [each for each in threading.enumerate() if each.name == "pytest-accel meter that ends"]
    assert thread.daemon
    source.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_an_end_of_pytests_own_is_an_error_of_the_source_and_no_end():
    def joules():
        pytest.fail("no meter here")

    meter = Meter()
    meter.joules = joules
    source = Guarded(meter)
    assert source.joules() == {}
    assert source.problem == "joules raised Failed: no meter here"


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
         r"the rails of x are \['a'\], not pytest_accel.stats.energy.Rail"),
    ],
)  # fmt: skip
def test_what_is_no_source_is_one_clear_error(answer, complaint):
    with pytest.raises(ValueError, match=f"^pytest_accel_power_sources: .*{complaint}"):
        from_hook([answer])
