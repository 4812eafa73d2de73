"""A pynvml whose functions answer what a test says."""

import sys
from types import ModuleType

import pytest


@pytest.fixture
def driver(monkeypatch):
    """A package with these functions and their answers; an exception is raised, and any other function is missing."""

    def install(**answers):
        package = ModuleType("pynvml")
        package.calls = []
        for name, answer in {"nvmlInit": None, "nvmlShutdown": None, **answers}.items():

            def call(*arguments, name=name, answer=answer):
                package.calls.append(name)
                if isinstance(answer, Exception):
                    raise answer
                return answer

            setattr(package, name, call)
        monkeypatch.setitem(sys.modules, "pynvml", package)
        return package

    return install
