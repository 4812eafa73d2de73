"""Plans to open."""

import pytest

from tests.support.plans import step_config


@pytest.fixture
def opened():
    """Open plans; their sources are closed at the end of the test."""
    sources = []

    def open_plan(plan, *, task="train", **choices):
        found = plan.open(step_config(task, **choices))
        sources.append(found.source)
        return found

    yield open_plan
    for source in sources:
        source.close()
