"""Is it right? These run everywhere, in milliseconds, and measure nothing."""

import torch

from rowwise import masked_softmax


def test_rows_sum_to_one(attention):
    torch.testing.assert_close(masked_softmax(*attention(32)).sum(-1), torch.ones(8, 32))


def test_what_is_masked_gets_nothing(attention):
    scores, mask = attention(32)
    assert not masked_softmax(scores, mask)[:, ~mask].any()


def test_it_is_softmax_of_scaled_scores(attention):
    scores, mask = attention(32)
    expected = torch.softmax(torch.where(mask, scores * 0.5, float("-inf")), -1)
    torch.testing.assert_close(masked_softmax(scores, mask, 0.5), expected)
