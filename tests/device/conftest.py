"""What tests on a real GPU share."""

from __future__ import annotations

import pytest


@pytest.fixture
def group(accel_device):
    """A process group of one rank, as a gang of one device has it."""
    from tests.studies.ddp import group_of_one

    with group_of_one(accel_device) as opened:
        yield opened
