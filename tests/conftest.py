"""What all tests share."""

import gc
import itertools
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# Nobody's code is slow because this machine is busy. CI has the same examples every time: what it finds, it finds again; other
# runs find new ones.
settings.register_profile(
    "tests",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
    max_examples=50,
)
settings.load_profile("tests")

# For torch here and in every process that tests start: two threads on a shared host are slower and bimodal, and wait for each
# other by spinning.
os.environ["OMP_NUM_THREADS"] = "1"

# A shell that runs CI in the background has its children ignore Ctrl-C, and they pass it on: tests of Ctrl-C would
# then wait for a process that never heard it.
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

# These tests run pytest in pytest. Under xdist (`make test` uses both cores) the inner one is no worker of the
# outer one, and pytest-benchmark would switch itself off in it. Its workers have COLUMNS=80, which would wrap lines.
for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID", "COLUMNS"):
    os.environ.pop(name, None)

_numbers = itertools.count()
_OF_SO_MANY = 200  # a quarter of a second each time


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Freeze what there is: all of torch is imported by now, and whoever collects (a measurement, a step that ends) would walk through it for a third of a second.

    Garbage is frozen with it, which a test in so many throws away.
    """
    if next(_numbers) % _OF_SO_MANY == 0:
        gc.unfreeze()
        gc.collect()
    gc.freeze()
