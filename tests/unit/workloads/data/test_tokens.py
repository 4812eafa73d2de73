"""Texts become a file of tokens once; sequences of it come once an epoch, whatever the world."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import warnings
from collections import Counter
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.workloads.data import token_files
from pytest_accel.workloads.data.errors import DataError, DataMissing, RebuiltCacheWarning
from pytest_accel.workloads.data.formats.bpe import Bpe, read_bpe
from pytest_accel.workloads.data.order import TrainingOrder
from pytest_accel.workloads.data.token_files import HEADER_BYTES, TokenFile, open_tokens, user_cache
from pytest_accel.workloads.data.tokens import IGNORED, Sequences, TokenSource, open_texts
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
    """The files of tokens in a folder, and what is left of writing them; a lock may stay."""
    return sorted(each.name for each in folder.iterdir() if each.suffix not in {".jsonl", ".lock"})


def expected(root):
    vocabulary = read_bpe(root / "gpt2")
    return [[*vocabulary.encode(text).tolist(), vocabulary.end_of_text] for text in TEXTS]


@contextmanager
def silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_tokens_are_those_of_all_documents_with_ends_between(root):
    with silent():
        file = open_texts(root)
    documents = expected(root)
    assert file.tokens.tolist() == [*chain(*documents)]
    assert file.ends.tolist() == np.cumsum([len(each) for each in documents]).tolist()
    assert (file.tokens.dtype, isinstance(file.tokens, np.memmap)) == (np.uint16, True)
    assert kept(root / "oscar") == [file.path.name]


def test_a_later_session_reads_them_and_tokenises_nothing(root, monkeypatch):
    first = open_texts(root).tokens.tolist()
    monkeypatch.setattr(Bpe, "encode_packed", None)
    with silent():
        assert open_texts(root).tokens.tolist() == first


def test_a_large_vocabulary_is_kept_in_four_bytes(root, trained):
    write_bpe(root / "gpt2", [*trained[0], *(f"<more{each}>" for each in range(2**16))], trained[1])
    file = open_texts(root)
    assert file.tokens.dtype == np.uint32
    assert file.tokens.tolist() == [*chain(*expected(root))]
    assert file.ends[-1] == len(file)


@pytest.mark.parametrize("change", ["longer", "touched", "added", "removed"])
def test_other_texts_are_tokenised_anew_and_said(root, change):
    open_texts(root)
    match change:
        case "longer":
            write_texts(root / "oscar/b.jsonl", ["something else"])
        case "touched":
            os.utime(root / "oscar/b.jsonl", ns=(1, 1))
        case "added":
            write_texts(root / "oscar/c.jsonl", ["more"])
        case "removed":
            (root / "oscar/b.jsonl").unlink()
    with pytest.warns(RebuiltCacheWarning, match="made of other texts"):
        file = open_texts(root)
    vocabulary = read_bpe(root / "gpt2")
    last = {"longer": "something else", "touched": TEXTS[-1], "added": "more", "removed": "a"}[change]
    assert vocabulary.decode(file.tokens[file.ends[-2] : -1]) == last
    assert kept(root / "oscar") == [file.path.name]
    with silent():
        open_texts(root)


def test_another_vocabulary_has_a_file_of_its_own(root, trained):
    first = open_texts(root)
    write_bpe(root / "gpt2", [*trained[0], "<more>"], trained[1])
    with silent():
        second = open_texts(root)
    assert first.path != second.path
    assert second.vocabulary == first.vocabulary + 1


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:-1], "torn: .* bytes are not"),
        (lambda data: data + b"x", "torn: .* bytes are not"),
        (lambda data: data[:HEADER_BYTES], "torn: .* bytes are not"),
        (lambda data: data[:100], "its header cannot be read"),
        (lambda data: b"", "its header cannot be read"),
        (lambda data: b"\xff" * len(data), "its header cannot be read"),
        (lambda data: b"[]".ljust(HEADER_BYTES) + data[HEADER_BYTES:], "its header cannot be read"),
        (lambda data: data.replace(b'"tokens": ', b'"tokens": -'), "cannot be read|bytes are not"),
        (lambda data: data.replace(b'"version": 1', b'"version": 0'), "not of this version"),
        (lambda data: data.replace(b"<u2", b"O  "), "its header cannot be read|bytes are not"),
    ],
)
def test_a_damaged_file_is_made_anew_and_said(root, damage, said):
    file = open_texts(root)
    whole = file.path.read_bytes()
    damaged = damage(whole)
    assert damaged != whole
    file.path.unlink()  # the mapping of a file that shrinks would end this process
    file.path.write_bytes(damaged)
    with pytest.warns(RebuiltCacheWarning, match=said) as warned:
        assert open_texts(root).tokens.tolist() == [*chain(*expected(root))]
    assert str(file.path) in str(warned[0].message)
    assert file.path.read_bytes() == whole


def test_a_cache_folder_is_used_when_named(root):
    file = open_texts(root, cache=root / "deep/cache")
    assert file.path.parent == root / "deep/cache"
    assert kept(root / "oscar") == []
    with silent():
        assert open_texts(root, cache=root / "deep/cache").path == file.path


def test_two_folders_of_one_name_do_not_share_a_file_in_the_cache(root):
    vocabulary = read_bpe(root / "gpt2")
    (root / "other").mkdir()
    write_texts(root / "other/a.jsonl", ["alone"])
    (root / "other").rename(root / "gpt2/oscar")
    one = open_tokens([root / "oscar/a.jsonl"], vocabulary, cache=root / "cache")
    two = open_tokens([root / "gpt2/oscar/a.jsonl"], vocabulary, cache=root / "cache")
    assert one.path != two.path
    assert len(two.ends) == 1


def test_a_read_only_folder_of_texts_is_left_alone(root, monkeypatch):
    # Rights do not bind root, who runs some of our machines.
    monkeypatch.setattr(token_files, "is_open", lambda folder: not folder.is_relative_to(root / "oscar"))
    file = open_texts(root)
    assert file.path.parent == user_cache() == root / "home-cache/pytest-accel"
    assert kept(root / "oscar") == []
    with silent():
        assert open_texts(root).path == file.path


def test_tokens_beside_the_texts_are_read_where_nothing_can_be_written(root, monkeypatch):
    file = open_texts(root)
    monkeypatch.setattr(token_files, "is_open", lambda folder: False)
    with silent():
        assert open_texts(root).path == file.path


def test_no_home_is_no_obstacle(monkeypatch):
    def homeless():
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert user_cache() is None


@contextmanager
def no_room_beyond(size_bytes):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_room_is_one_error_and_leaves_nothing(root):
    write_texts(root / "oscar/a.jsonl", TEXTS * 500)
    with no_room_beyond(HEADER_BYTES + 100), pytest.raises(DataError) as caught:
        open_texts(root)
    first, remedy = str(caught.value).split("\n")
    assert first.startswith(str(root / "oscar/tokens-"))
    assert "could not be written" in first
    assert remedy.startswith("Free some")
    assert kept(root / "oscar") == []
    with silent():  # the next session finds nothing to complain of
        assert len(open_texts(root).ends) == 4 * 500 + 1


def test_no_room_keeps_what_stood_there(root):
    file = open_texts(root)
    whole = file.path.read_bytes()
    write_texts(root / "oscar/a.jsonl", TEXTS * 500)
    with (
        no_room_beyond(HEADER_BYTES + 100),
        pytest.warns(RebuiltCacheWarning),
        pytest.raises(DataError, match="could not be written"),
    ):
        open_texts(root)
    assert file.path.read_bytes() == whole
    assert kept(root / "oscar") == [file.path.name]


def test_a_bad_line_is_told_and_leaves_nothing(root):
    (root / "oscar/b.jsonl").write_text('{"text": "fine"}\nnot json\n')
    with pytest.raises(DataError, match=r"b\.jsonl:2: not JSON"):
        open_texts(root)
    assert kept(root / "oscar") == []


def test_a_cache_that_cannot_be_made_is_named(root):
    (root / "file").touch()
    with pytest.raises(DataError, match="could not be written"):
        open_texts(root, cache=root / "file/cache")


def test_empty_files_are_one_error_and_one_of_several_is_none(root):
    (root / "oscar/a.jsonl").write_text("")
    assert len(open_texts(root).ends) == 1
    (root / "oscar/b.jsonl").write_text("\n")
    with pytest.warns(RebuiltCacheWarning), pytest.raises(DataError, match=r"a\.jsonl: no document in it"):
        open_texts(root)


def test_a_missing_half_is_missing(root):
    (root / "gpt2").rename(root / "elsewhere")
    with pytest.raises(DataMissing, match="gpt2"):
        open_texts(root)


def _open_in_a_process(root, results):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        file = open_texts(root)
    results.put((file.path.stat().st_ino, len(file), len(caught)))


def test_ranks_that_start_together_make_one_file(root):
    write_texts(root / "oscar/a.jsonl", TEXTS * 500)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    ranks = [context.Process(target=_open_in_a_process, args=(root, results)) for _ in range(4)]
    for rank in ranks:
        rank.start()
    found = {results.get(timeout=60) for _ in ranks}
    for rank in ranks:
        rank.join()
    assert len(found) == 1  # one inode: nobody made it twice
    assert len(kept(root / "oscar")) == 1


# Sequences


def file_of(lengths, tmp="tokens.bin"):
    """A file whose tokens say where they stand, of documents of some lengths, each with its end."""
    tokens = np.arange(1, sum(lengths) + len(lengths) + 1, dtype=np.uint32)
    ends = np.cumsum([each + 1 for each in lengths])
    tokens[ends - 1] = 0
    return TokenFile(path=Path(tmp), tokens=tokens, ends=ends, vocabulary=10**6, end_of_text=0)


LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=12)


@given(LENGTHS, st.integers(1, 20))
def test_crossing_sequences_follow_each_other_without_a_gap(lengths, length):
    file = file_of(lengths)
    if len(file) <= length:
        with pytest.raises(DataError, match="not one sequence"):
            Sequences(file, length=length)
        return
    sequences = Sequences(file, length=length)
    inputs, targets = sequences.read(range(len(sequences)))
    assert (inputs.dtype, targets.dtype, inputs.shape) == (torch.int64, torch.int64, targets.shape)
    used = len(sequences) * length
    assert len(file) - 1 - used < length  # not one more would fit
    assert inputs.flatten().tolist() == file.tokens[:used].tolist()
    assert targets.flatten().tolist() == file.tokens[1 : used + 1].tolist()


@given(LENGTHS, st.integers(1, 20))
def test_sequences_that_do_not_cross_hold_one_document_and_miss_no_target(lengths, length):
    file = file_of(lengths)
    sequences = Sequences(file, length=length, crossing=False)
    inputs, targets = sequences.read(range(len(sequences)))
    assert inputs.shape == (len(sequences), length)
    starts = np.concatenate(([0], file.ends[:-1]))
    wanted = [
        token
        for start, end in zip(starts, file.ends, strict=True)
        for token in file.tokens[start + 1 : end].tolist()
    ]
    assert targets[targets != IGNORED].tolist() == wanted  # every token but the first of a document, in order
    for given_, wanted_ in zip(inputs.tolist(), targets.tolist(), strict=True):
        real = [each for each in wanted_ if each != IGNORED]
        assert real
        assert 0 not in given_[: len(real)]  # no end of a document is followed by anything
        assert given_[len(real) :] == [0] * (length - len(real))
        assert wanted_[len(real) :] == [IGNORED] * (length - len(real))
        assert given_[1 : len(real)] == real[:-1]


@given(
    LENGTHS, st.integers(1, 12), st.integers(1, 5), st.integers(1, 9), st.booleans(), st.integers(0, 2**40)
)
def test_every_sequence_comes_once_an_epoch_for_any_world(lengths, length, world, batch, crossing, seed):
    file = file_of([*lengths, length])
    sequences = Sequences(file, length=length, crossing=crossing)
    common = {"length": len(sequences), "batch_size": batch, "world": world, "seed": seed}
    orders = [TrainingOrder(rank=rank, **common) for rank in range(world)]
    sources = [TokenSource(sequences, order, torch.device("cpu")) for order in orders]
    dealt = []
    for _ in range(orders[0].steps_for_epochs(2)):
        for source in sources:
            inputs, targets = next(source)
            assert inputs.shape == targets.shape == (batch, length)
            dealt += zip(map(tuple, inputs.tolist()), map(tuple, targets.tolist()), strict=True)
    whole = sequences.read(range(len(sequences)))
    everything = Counter(zip(map(tuple, whole[0].tolist()), map(tuple, whole[1].tolist()), strict=True))
    for epoch in range(2):
        assert Counter(dealt[epoch * len(sequences) : (epoch + 1) * len(sequences)]) == everything


def test_a_source_is_shuffled_and_closes():
    sequences = Sequences(file_of([500]), length=5)
    source = TokenSource(sequences, TrainingOrder(length=len(sequences), batch_size=100), torch.device("cpu"))
    firsts = next(source)[0][:, 0].tolist()
    assert sorted(firsts) == list(range(1, 501, 5))
    assert firsts != sorted(firsts)
    source.close()


def test_an_order_of_another_length_is_refused():
    sequences = Sequences(file_of([50]), length=5)
    with pytest.raises(ValueError, match="order: of 3 samples, and there are 10 sequences"):
        TokenSource(sequences, TrainingOrder(length=3, batch_size=1), torch.device("cpu"))


@pytest.mark.parametrize("crossing", [True, False])
def test_a_token_outside_the_vocabulary_is_damage(crossing):
    file = file_of([50])
    file.tokens[13] = 10**6
    sequences = Sequences(file, length=5, crossing=crossing)
    sequences.read([0, 1, 3])
    with pytest.raises(DataError, match=r"tokens\.bin: damaged: the token 1000000 is in it"):
        sequences.read([0, 2])


@pytest.mark.parametrize("index", [-1, 10])
def test_an_index_outside_is_no_sequence(index):
    with pytest.raises(IndexError):
        Sequences(file_of([50]), length=5).read([index])


def test_a_length_of_nothing_is_refused():
    with pytest.raises(ValueError, match="length: 0"):
        Sequences(file_of([50]), length=0)


def test_no_files_are_refused(root):
    with pytest.raises(ValueError, match="files: none"):
        open_tokens([], read_bpe(root / "gpt2"))
