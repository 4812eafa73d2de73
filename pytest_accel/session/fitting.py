"""Failures in plain words, and the end of a benchmark that does not fit in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import pytest
from _pytest.outcomes import Skipped  # pytest.skip.Exception, under the name that mypy knows as a class

from pytest_accel.options import settings_of
from pytest_accel.session.device import environment_of, open_device
from pytest_accel.stats.environment import Environment
from pytest_accel.stats.run import Scalar


class DoesNotFit(Skipped):
    """Ends a test as pytest's skip does; raised by `does_not_fit` alone."""

    __module__ = "builtins"  # as pytest's own, so that reports show its bare name


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """What did not fit, and where; the session decides whether it did before."""

    text: str
    environment: Environment
    configuration: Mapping[str, Scalar] | None = None  # None: it was not built
    nothing_built: bool = False  # known before anything was built: the device is untouched


UNFIT = pytest.StashKey[Unfit]()
CONFIGURATION = pytest.StashKey[Mapping[str, Scalar]]()  # of the step that was built, before it is measured


def fail_plainly(text: str) -> NoReturn:
    """Fail a test with these words alone, without a traceback."""
    raise pytest.fail.Exception(text, pytrace=False) from None


def does_not_fit(item: pytest.Item, text: str, *, nothing_built: bool = False) -> NoReturn:
    """End the test of a benchmark; `text` says what did not fit in which memory.

    For fixtures, from any rank of a process group.
    """
    settings = settings_of(item)
    platform, device, hardware = open_device(item, settings)
    here = environment_of(item, settings, platform, device, hardware)
    built = item.stash.get(CONFIGURATION, None)
    item.stash[UNFIT] = Unfit(text=text, environment=here, configuration=built, nothing_built=nothing_built)
    raise DoesNotFit(text, _use_item_location=True) from None
