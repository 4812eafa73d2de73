"""What all tests share."""

from __future__ import annotations

import os
import signal

# A shell that runs CI in the background has its children ignore Ctrl-C, and they pass it on: tests of Ctrl-C would
# then wait for a process that never heard it.
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

# These tests run pytest in pytest. Under xdist (`make test` uses both cores) the inner one is no worker of the
# outer one, and pytest-benchmark would switch itself off in it.
for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
    os.environ.pop(name, None)
