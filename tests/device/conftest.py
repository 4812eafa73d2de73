"""Fixtures of tests on a real GPU; elsewhere every test is skipped with the reason."""

import os
from unittest.mock import patch

import pytest

GPUS = ("a100", "b200", "gb200", "gh200", "h100", "h200", "l4", "l40s")


def pytest_collection_modifyitems(items):
    from pytest_accel.markers import platform_mark

    for item in items:
        if "tests/device" in item.nodeid:
            for name in GPUS:
                item.add_marker(platform_mark(name))


@pytest.fixture
def gpu(accel_device):
    return accel_device


@pytest.fixture(scope="session")
def platform():
    from pytest_accel.platforms.machine import detect

    return next(device.key for device in detect().devices if device.key)


@pytest.fixture
def group(accel_device):
    """A process group of one rank over NCCL."""
    from pytest_accel.distributed.process_group import open_process_group
    from tests.support.gloo import free_port

    variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with patch.dict(os.environ, variables):
        opened = open_process_group(accel_device, rendezvous_s=60, timeout_s=600)
        try:
            yield opened
        finally:
            opened.close()


@pytest.fixture
def no_sync():
    """Run steps in which any wait for the device is an error."""
    import torch

    def run(step, steps=6):
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(steps):
                step()
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return run
