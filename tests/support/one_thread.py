"""Real torch, on one thread: two threads on a shared host are slower and bimodal. For conftests of such tests."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
