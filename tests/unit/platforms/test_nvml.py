"""The one door to NVIDIA's driver: what it answers, what it refuses, and that it is closed again."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from pytest_accel.platforms.nvml import NO_PACKAGE, Refused, opened


class FakeError(Exception):
    """As NVMLError: with NVML's code."""

    def __init__(self, value=999):
        super().__init__("Unknown Error")
        self.value = value


@pytest.fixture
def driver(monkeypatch):
    """A package whose functions answer what they are given; an exception is raised."""
    package = ModuleType("pynvml")
    package.calls = []

    def add(**answers):
        for name, answer in {"nvmlInit": None, "nvmlShutdown": None, **answers}.items():

            def call(*arguments, name=name, answer=answer):
                package.calls.append((name, *arguments))
                if isinstance(answer, Exception):
                    raise answer
                return answer

            setattr(package, name, call)
        monkeypatch.setitem(sys.modules, "pynvml", package)
        return package

    return add


def test_answers_and_refusals(driver):
    driver(nvmlName=b"H200", nvmlLost=FakeError(15), nvmlOdd=FakeError())
    with opened() as nvml:
        assert nvml.problem == ""
        assert nvml.text("nvmlName") == "H200"
        assert nvml.ask("nvmlLost") is None
        assert nvml.attempt("nvmlLost") == (None, "GPU is lost")
        assert nvml.attempt("nvmlOdd") == (None, "unknown error")
        assert nvml.ask("nvmlOfTheFuture") is None
        assert nvml.constant("NVML_OF_THE_FUTURE") is None
        with pytest.raises(Refused, match="GPU is lost"):
            nvml.demand("nvmlLost")


def test_it_is_closed_even_after_an_error(driver):
    package = driver(nvmlShutdown=FakeError())
    with pytest.raises(KeyError), opened():
        raise KeyError
    assert [call[0] for call in package.calls] == ["nvmlInit", "nvmlShutdown"]


def test_without_the_package_nothing_is_answered(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with opened() as nvml:
        assert nvml.problem == NO_PACKAGE
        assert nvml.attempt("nvmlDeviceGetCount") == (None, NO_PACKAGE)
        assert nvml.constant("NVML_CLOCK_SM") is None
        with pytest.raises(Refused, match="nvidia-ml-py"):
            nvml.demand("nvmlDeviceGetCount")


def test_a_driver_that_does_not_start_is_not_shut_down(driver):
    package = driver(nvmlInit=FakeError(9))
    with opened() as nvml:
        assert nvml.problem == "driver not loaded"
    assert [call[0] for call in package.calls] == ["nvmlInit"]


def test_devices_are_found_by_uuid_in_either_spelling(driver):
    package = driver()

    def by_uuid(uuid):
        if uuid != "MIG-a":
            raise FakeError(6)
        return "handle"

    package.nvmlDeviceGetHandleByUUID = by_uuid
    with opened() as nvml:
        assert nvml.handle("a") == nvml.handle("MIG-a") == "handle"
        assert nvml.handle("GPU-a") is None
        assert nvml.handle("") is None
        assert nvml.handle(None) is None
