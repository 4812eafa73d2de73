"""Text data: every token of a file is a target once, damage is named, synthetic questions look like real ones."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.workloads.data.files import DataError
from pytest_accel.workloads.tasks.text import CLS, PAD, SEP, Sequences, open_tokens, synthetic_squad

CPU = torch.device("cpu")


def test_tokens_are_mapped_from_their_file(tmp_path):
    (tmp_path / "oscar").mkdir()
    np.arange(50000, 50010, dtype=np.uint16).tofile(tmp_path / "oscar/train.bin")
    inputs, targets = open_tokens(tmp_path, length=4, vocabulary=50257).read([1], CPU)
    assert inputs.tolist() == [[50004, 50005, 50006, 50007]]
    assert targets.tolist() == [[50005, 50006, 50007, 50008]]


@pytest.mark.parametrize("content", [b"", b"x", b"xyz", bytes(8)])
def test_file_of_too_few_bytes_is_named(tmp_path, content):
    path = tmp_path / "oscar/train.bin"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"^{path}: .*\n."):
        open_tokens(tmp_path, length=4, vocabulary=9)


def sequences_of(tokens, length):
    numbers = np.arange(tokens, dtype=np.uint32)
    return Sequences(path=Path("train.bin"), tokens=numbers, vocabulary=10**6, length=length)


@given(st.integers(21, 200), st.integers(1, 20))
def test_sequences_follow_each_other_without_a_gap(tokens, length):
    sequences = sequences_of(tokens, length)
    inputs, targets = sequences.read(range(len(sequences)), CPU)
    used = len(sequences) * length
    assert tokens - 1 - used < length  # not one more would fit
    assert inputs.flatten().tolist() == list(range(used))
    assert torch.equal(targets, inputs + 1)


def test_token_outside_the_vocabulary_is_reported():
    sequences = sequences_of(51, 5)
    sequences.tokens[13] = 10**6
    sequences.read([0, 1, 3], CPU)
    with pytest.raises(DataError, match=r"train\.bin: it has the token 1000000, and the model knows"):
        sequences.read([0, 2], CPU)


@pytest.mark.parametrize("sequence", [16, 128, 384])
def test_synthetic_windows_have_the_shape_of_real_ones(sequence):
    inputs, answers = synthetic_squad(64, sequence, 30522, torch.Generator().manual_seed(1))
    assert [tuple(each.shape) for each in (*inputs, *answers)] == [(64, sequence)] * 3 + [(64,)] * 2
    for ids, mask, types, start, end in zip(*(each.tolist() for each in (*inputs, *answers)), strict=True):
        length, begin = sum(mask), types.index(1)
        assert mask == [1] * length + [0] * (sequence - length)
        assert types == [0] * begin + [1] * (length - begin) + [0] * (sequence - length)
        assert (ids[0], ids[begin - 1], ids[length - 1]) == (CLS, SEP, SEP)
        assert ids[length:] == [PAD] * (sequence - length)
        assert all(999 <= each < 30522 for each in (*ids[1 : begin - 1], *ids[begin : length - 1]))
        assert begin <= start <= end < length - 1
