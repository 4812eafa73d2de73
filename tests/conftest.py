"""What all tests share."""

from __future__ import annotations

import os

# These tests run pytest in pytest. Under xdist (`make test` uses both cores) the inner one is no worker of the
# outer one, and pytest-benchmark would switch itself off in it.
for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
    os.environ.pop(name, None)
