"""Real torch, on one thread."""

from __future__ import annotations

from tests.support.one_thread import one_thread  # noqa: F401 - a fixture of all tests here
