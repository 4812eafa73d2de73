"""A benchmark that does not fit in memory: an end of its own, neither a failure nor a silent skip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest
from _pytest.outcomes import Skipped  # pytest.skip.Exception, under the name that mypy knows as a class

from pytest_accel.options import settings_of
from pytest_accel.session.environment import environment_of
from pytest_accel.session.placement import open_device
from pytest_accel.stats.environment import Environment
from pytest_accel.stats.keys import Scalar


class DoesNotFit(Skipped):
    """Ends a test as pytest's skip does; raised by `does_not_fit` alone, which leaves word of it."""

    __module__ = "builtins"  # as pytest's own: its name stands in reports without ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """What did not fit, and where: whether it did before is for the session to say."""

    text: str
    environment: Environment
    configuration: Mapping[str, Scalar] | None = None  # None: it did not come so far as to have one
    nothing_built: bool = False  # it was known before: the device is as it was

    def to_plain(self) -> dict[str, Any]:
        identity, context = dict(self.environment.identity), dict(self.environment.context)
        return {
            "text": self.text,
            "environment": {"identity": identity, "context": context},
            "configuration": None if self.configuration is None else dict(self.configuration),
            "nothing_built": self.nothing_built,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Unfit:
        return cls(
            text=plain["text"],
            environment=Environment(**plain["environment"]),
            configuration=plain.get("configuration"),
            nothing_built=plain.get("nothing_built", False),
        )


UNFIT = pytest.StashKey[Unfit]()
CONFIGURATION = pytest.StashKey[Mapping[str, Scalar]]()  # of the step that was built, before it is measured


def does_not_fit(item: pytest.Item, text: str, *, nothing_built: bool = False) -> NoReturn:
    """End the test of a benchmark so; `text` says what did not fit in which memory.

    For fixtures, from any rank of a gang: the others need not notice.
    """
    settings = settings_of(item)
    platform, device, hardware = open_device(item, settings)
    here = environment_of(item, settings, platform, device, hardware)
    built = item.stash.get(CONFIGURATION, None)
    item.stash[UNFIT] = Unfit(text=text, environment=here, configuration=built, nothing_built=nothing_built)
    raise DoesNotFit(text, _use_item_location=True) from None
