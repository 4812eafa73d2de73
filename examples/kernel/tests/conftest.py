"""Inputs that correctness and speed share: what is timed is what is checked."""

import pytest
import torch


@pytest.fixture
def attention():
    """Scores and a causal mask, for `attention(rows, device)`."""

    def make(rows, device="cpu"):
        source = torch.Generator().manual_seed(0)
        scores = torch.randn(8, rows, rows, generator=source)
        return scores.to(device), torch.ones(rows, rows, dtype=torch.bool).tril().to(device)

    return make
