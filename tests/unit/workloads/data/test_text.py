"""Texts become a token file once; its sequences come once an epoch, for any number of ranks."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import resource
import warnings
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.workloads.data import text as module
from pytest_accel.workloads.data.errors import DataError, DataMissing, RebuiltCacheWarning
from pytest_accel.workloads.data.order import TrainingOrder
from pytest_accel.workloads.data.text import (
    Sequences,
    TokenFile,
    TokenSource,
    find_texts,
    open_texts,
    read_documents,
)
from pytest_accel.workloads.data.vocabularies import Gpt2Vocabulary, read_gpt2
from tests.support.vocabularies import train_bpe, write_bpe

TEXTS = ["the cat sat on the mat", "übers Meer", "a", "other cats, other mats: 12 days"]


@pytest.fixture(scope="module")
def trained():
    return train_bpe()


@pytest.fixture
def root(tmp_path, trained, monkeypatch):
    """A root of data with a vocabulary and two files of texts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home-cache"))
    write_bpe(tmp_path / "gpt2", *trained)
    write_texts(tmp_path / "oscar/a.jsonl", TEXTS[:3])
    write_texts(tmp_path / "oscar/b.jsonl", TEXTS[3:])
    return tmp_path


def write_texts(path, texts):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def kept(folder):
    """The token files in a folder, and temporary ones; a lock may stay."""
    return sorted(each.name for each in folder.iterdir() if each.suffix not in {".jsonl", ".lock"})


def expected(root, texts=TEXTS):
    vocabulary = read_gpt2(root / "gpt2")
    return [*chain(*([*vocabulary.encode(text).tolist(), vocabulary.end_of_text] for text in texts))]


@contextmanager
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# Texts


def refused(path):
    with pytest.raises(DataError) as caught:
        list(read_documents(path))
    return str(caught.value)


@pytest.mark.parametrize("key", ["text", "content"])
@pytest.mark.parametrize("compressed", [False, True])
def test_texts_are_read_as_written_without_empty_ones(tmp_path, key, compressed):
    texts = ["ä\n漢😀", "", "two"]
    data = "\n\n".join(json.dumps({"id": 1, key: text}, ensure_ascii=False) for text in texts).encode()
    path = tmp_path / "a.jsonl"
    path.write_bytes(gzip.compress(data) if compressed else data)
    assert list(read_documents(path)) == ["ä\n漢😀", "two"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"not json", "not JSON"),
        (b'{"text": "torn', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'"text"', "not an object"),
        (b'{"other": "x"}', 'no "text" in it'),
        (b'{"text": 5}', '"text" is int'),
        (b'{"text": "\xff"}', "not UTF-8 from its byte 10 on"),
        (b'{"text": "\\ud800"}', "half of a surrogate pair"),
    ],
)
def test_line_without_a_text_is_reported_with_its_number(tmp_path, line, problem):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "fine"}\n\n' + line + b"\n")
    assert refused(path).startswith(f"{path}:3: {problem}")


def test_torn_gzip_is_reported_with_the_line_it_reaches(tmp_path):
    whole = gzip.compress(b'{"text": "fine"}\n' * 3)
    path = tmp_path / "a.jsonl.gz"
    for broken in (whole[:-9], whole[:-8] + bytes(8)):
        path.write_bytes(broken)
        assert refused(path).startswith(f"{path}:")
        assert "torn" in refused(path)


def test_zstandard_is_refused_with_the_command(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"\x28\xb5\x2f\xfdwhatever")
    assert "unzstd" in refused(tmp_path / "a.jsonl")


def test_files_are_found_in_the_order_of_their_names(tmp_path):
    with pytest.raises(DataMissing, match="oscar"):
        find_texts(tmp_path)
    (tmp_path / "oscar").mkdir()
    with pytest.raises(DataMissing, match=r"\*\.jsonl"):
        find_texts(tmp_path)
    for name in ("b.jsonl", "a.jsonl.gz", ".hidden.jsonl", "c.txt"):
        (tmp_path / "oscar" / name).touch()
    assert [each.name for each in find_texts(tmp_path)] == ["a.jsonl.gz", "b.jsonl"]


# Token files


def test_tokens_of_all_documents_have_end_of_text_between(root):
    with no_warning():
        file = open_texts(root)
    assert file.tokens.tolist() == expected(root)
    assert (file.tokens.dtype, isinstance(file.tokens, np.memmap)) == (np.uint16, True)
    assert kept(root / "oscar") == [file.path.name]


def test_later_session_encodes_nothing(root, monkeypatch):
    first = open_texts(root).tokens.tolist()
    monkeypatch.setattr(Gpt2Vocabulary, "encode", None)
    with no_warning():
        assert open_texts(root).tokens.tolist() == first


@pytest.mark.parametrize("change", ["longer", "touched", "added", "removed"])
def test_changed_texts_are_encoded_again_and_the_old_file_is_removed(root, change):
    first = open_texts(root)
    texts = TEXTS
    match change:
        case "longer":
            texts = [*TEXTS[:3], "something else"]
            write_texts(root / "oscar/b.jsonl", texts[3:])
        case "touched":
            os.utime(root / "oscar/b.jsonl", ns=(1, 1))
        case "added":
            texts = [*TEXTS, "more"]
            write_texts(root / "oscar/c.jsonl", ["more"])
        case "removed":
            texts = TEXTS[:3]
            (root / "oscar/b.jsonl").unlink()
    file = open_texts(root)
    assert file.tokens.tolist() == expected(root, texts)
    assert file.path != first.path
    assert kept(root / "oscar") == [file.path.name]


def test_another_vocabulary_has_a_file_of_its_own(root, trained):
    first = open_texts(root)
    write_bpe(root / "gpt2", [*trained[0], "<more>"], trained[1])
    second = open_texts(root)
    assert kept(root / "oscar") == sorted([first.path.name, second.path.name])
    assert second.vocabulary == first.vocabulary + 1


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[:50], lambda data: b"", lambda data: b"x" * 999]
)
def test_damaged_token_file_is_written_again_with_a_warning(root, damage):
    file = open_texts(root)
    whole = file.path.read_bytes()
    file.path.unlink()  # the mapping of a file that shrinks would end this process
    file.path.write_bytes(damage(whole))
    with pytest.warns(RebuiltCacheWarning, match=f"{file.path}: torn or not readable"):
        assert open_texts(root).tokens.tolist() == expected(root)
    assert file.path.read_bytes() == whole


def test_read_only_folder_of_texts_is_left_alone(root, monkeypatch):
    # Rights do not bind root, who runs some of our machines.
    monkeypatch.setattr(
        module, "is_writable_folder", lambda folder: not folder.is_relative_to(root / "oscar")
    )
    file = open_texts(root)
    assert file.path.parent == root / "home-cache/pytest-accel"
    assert kept(root / "oscar") == []
    with no_warning():
        assert open_texts(root).path == file.path


def test_full_disk_is_one_error_and_leaves_nothing(root):
    write_texts(root / "oscar/a.jsonl", TEXTS * 500)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(DataError) as caught:
            open_texts(root)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    first, remedy = str(caught.value).split("\n")
    assert first.startswith(str(root / "oscar/tokens-"))
    assert "could not be written" in first
    assert remedy.startswith("Free some")
    assert kept(root / "oscar") == []


def test_bad_line_is_reported_and_leaves_nothing(root):
    (root / "oscar/b.jsonl").write_text('{"text": "fine"}\nnot json\n')
    with pytest.raises(DataError, match=r"b\.jsonl:2: not JSON"):
        open_texts(root)
    assert kept(root / "oscar") == []


def test_files_without_a_document_are_one_error(root):
    (root / "oscar/a.jsonl").write_text("")
    assert open_texts(root).tokens.tolist() == expected(root, TEXTS[3:])
    (root / "oscar/b.jsonl").write_text("\n")
    with pytest.raises(DataError, match=r"a\.jsonl: no document in it"):
        open_texts(root)


def _open_in_a_process(root, results):
    file = open_texts(root)
    results.put((file.path.stat().st_ino, len(file.tokens)))


def test_ranks_that_start_together_write_one_file(root):
    write_texts(root / "oscar/a.jsonl", TEXTS * 500)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    ranks = [context.Process(target=_open_in_a_process, args=(root, results)) for _ in range(4)]
    for rank in ranks:
        rank.start()
    found = {results.get(timeout=60) for _ in ranks}
    for rank in ranks:
        rank.join()
    assert len(found) == 1  # one inode: written once
    assert len(kept(root / "oscar")) == 1


# Sequences


def file_of(length):
    return TokenFile(path=Path("tokens.npy"), tokens=np.arange(length, dtype=np.uint32), vocabulary=10**6)


@given(st.integers(1, 200), st.integers(1, 20))
def test_sequences_follow_each_other_without_a_gap(tokens, length):
    file = file_of(tokens)
    if tokens <= length:
        with pytest.raises(DataError, match="not one sequence"):
            Sequences(file, length=length)
        return
    sequences = Sequences(file, length=length)
    inputs, targets = sequences.read(range(len(sequences)))
    used = len(sequences) * length
    assert tokens - 1 - used < length  # not one more would fit
    assert inputs.flatten().tolist() == list(range(used))
    assert torch.equal(targets, inputs + 1)


@given(st.integers(2, 100), st.integers(1, 12), st.integers(1, 5), st.integers(1, 9), st.integers(0, 2**40))
def test_every_sequence_comes_once_an_epoch_for_any_world(tokens, length, world, batch, seed):
    sequences = Sequences(file_of(tokens + length), length=length)
    common = {"length": len(sequences), "batch_size": batch, "world": world, "seed": seed}
    orders = [TrainingOrder(rank=rank, **common) for rank in range(world)]
    sources = [TokenSource(sequences, order, torch.device("cpu")) for order in orders]
    firsts = []
    for _ in range(orders[0].steps_for_epochs(2)):
        for source in sources:
            inputs, targets = next(source)
            assert torch.equal(targets, inputs + 1)
            firsts += inputs[:, 0].tolist()
    for epoch in range(2):
        part = firsts[epoch * len(sequences) : (epoch + 1) * len(sequences)]
        assert sorted(part) == [each * length for each in range(len(sequences))]


def test_token_outside_the_vocabulary_is_reported_as_damage():
    file = file_of(51)
    file.tokens[13] = 10**6
    sequences = Sequences(file, length=5)
    sequences.read([0, 1, 3])
    with pytest.raises(DataError, match=r"tokens\.npy: damaged: it has the token 1000000"):
        sequences.read([0, 2])
