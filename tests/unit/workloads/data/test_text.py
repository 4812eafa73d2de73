"""Text data: token files that are written once, sequences once an epoch, answers in their windows."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import resource
import sys
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.workloads.data import files as files_module
from pytest_accel.workloads.data import text as module
from pytest_accel.workloads.data.files import DataError, DataMissing
from pytest_accel.workloads.data.text import (
    CLS,
    END_OF_TEXT,
    PAD,
    SEP,
    Question,
    Sequences,
    cut_windows,
    encode_texts,
    find_texts,
    load_bert,
    load_gpt2,
    open_squad,
    open_texts,
    read_squad,
    synthetic_squad,
)
from tests.support.vocabularies import PIECES, SENTENCES, train_bpe, write_bpe, write_wordpiece

CPU = torch.device("cpu")
TEXTS = ["the cat sat on the mat", "übers Meer", "a", "other cats, other mats: 12 days"]


@pytest.fixture(scope="module")
def trained():
    return train_bpe()


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory, trained):
    return load_gpt2(write_bpe(tmp_path_factory.mktemp("gpt2"), *trained))


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """Cuts questions into windows, with a tokenizer of its own: it keeps the length."""
    folder = write_wordpiece(tmp_path_factory.mktemp("bert"))
    return lambda asked, sequence: cut_windows(asked, load_bert(folder), sequence=sequence)


def refused(call, *arguments):
    """Return the first line of the error: what is wrong; the second says what to do."""
    with pytest.raises(DataError) as caught:
        call(*arguments)
    first, _, remedy = str(caught.value).partition("\n")
    assert remedy
    return first


# Vocabularies


def test_end_of_text_inside_a_text_is_plain_text(gpt2):
    tokens = gpt2.encode(f"{SENTENCES} {END_OF_TEXT} b").ids
    assert gpt2.token_to_id(END_OF_TEXT) not in tokens
    assert gpt2.decode(tokens, skip_special_tokens=False) == f"{SENTENCES} {END_OF_TEXT} b"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("vocab.json", lambda text: ""),
        ("vocab.json", lambda text: "[1]"),
        ("vocab.json", lambda text: '{"a": 1}'),
        ("vocab.json", lambda text: text.replace(END_OF_TEXT, "<end>")),
        ("merges.txt", lambda text: text.replace("\n", "\na zz\n", 1)),
        ("merges.txt", lambda text: "\n".join(text.split("\n")[:40])),
    ],
)
def test_damaged_gpt2_vocabulary_is_reported(tmp_path, name, change):
    path = write_bpe(tmp_path) / name
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    assert refused(load_gpt2, tmp_path).startswith(f"{tmp_path}/vocab.json and {tmp_path}/merges.txt: ")


@pytest.mark.parametrize("content", [b"[PAD]\n\xff\n", b"[PAD]\n[UNK]\n[CLS]\nthe\n", b""])
def test_damaged_bert_vocabulary_is_reported(tmp_path, content):
    (tmp_path / "vocab.txt").write_bytes(content)
    assert refused(load_bert, tmp_path).startswith(f"{tmp_path}/vocab.txt: ")


@pytest.mark.parametrize(("load", "write"), [(load_gpt2, write_bpe), (load_bert, write_wordpiece)])
def test_missing_vocabulary_or_package_is_reported(tmp_path, monkeypatch, load, write):
    with pytest.raises(DataMissing, match="vocab"):
        load(tmp_path)
    write(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        DataError, match=r"tokenizers package.* is not installed\nRun: pip install tokenizers"
    ):
        load(tmp_path)


# Texts


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


def expected(gpt2, texts=TEXTS):
    end = gpt2.token_to_id(END_OF_TEXT)
    return [*chain(*([*gpt2.encode(text).ids, end] for text in texts))]


@pytest.mark.parametrize("key", ["text", "content"])
@pytest.mark.parametrize("compressed", [False, True])
def test_texts_are_read_as_written_without_empty_ones(tmp_path, gpt2, key, compressed):
    texts = ["ä\n漢😀", "", "two"]
    data = "\n\n".join(json.dumps({"id": 1, key: text}, ensure_ascii=False) for text in texts).encode()
    path = tmp_path / ("a.jsonl.gz" if compressed else "a.jsonl")
    path.write_bytes(gzip.compress(data) if compressed else data)
    assert [gpt2.decode(each[:-1]) for each in encode_texts(path, gpt2)] == ["ä\n漢😀", "two"]


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b'{"text": "torn',
        b"[" * 100_000,
        b'"text"',
        b'{"other": "x"}',
        b'{"text": 5}',
        b'{"text": "\xff"}',
        b'{"text": "\\ud800"}',
    ],
)
def test_line_without_a_text_is_reported_with_its_number(tmp_path, gpt2, line):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "fine"}\n\n' + line + b"\n")
    assert refused(list, encode_texts(path, gpt2)).startswith(f"{path}:3: ")


def test_torn_gzip_is_reported_with_the_line_it_reaches(tmp_path, gpt2):
    whole = gzip.compress(b'{"text": "fine"}\n' * 3)
    path = tmp_path / "a.jsonl.gz"
    for broken in (whole[:-9], whole[:-8] + bytes(8), b"no gzip"):
        path.write_bytes(broken)
        assert refused(list, encode_texts(path, gpt2)).startswith(f"{path}")


def test_files_are_found_in_the_order_of_their_names(tmp_path):
    (tmp_path / "oscar").mkdir()
    with pytest.raises(DataMissing, match=r"oscar/\*\.jsonl"):
        find_texts(tmp_path)
    for name in ("b.jsonl", "a.jsonl.gz", ".hidden.jsonl", "c.txt"):
        (tmp_path / "oscar" / name).touch()
    with pytest.raises(DataMissing, match="gpt2"):
        find_texts(tmp_path)
    (tmp_path / "gpt2").mkdir()
    assert [each.name for each in find_texts(tmp_path)[0]] == ["a.jsonl.gz", "b.jsonl"]


# Token files


def test_tokens_of_all_documents_are_encoded_once_with_end_of_text_between(root, gpt2, monkeypatch):
    file = open_texts(root, length=1)
    assert file.tokens.tolist() == expected(gpt2)
    assert (file.tokens.dtype, isinstance(file.tokens, np.memmap)) == (np.uint16, True)
    assert kept(root / "oscar") == [file.path.name]
    monkeypatch.setattr(module, "encode_texts", None)
    assert open_texts(root, length=1).tokens.tolist() == expected(gpt2)


@pytest.mark.parametrize("change", ["longer", "touched", "added", "removed", "vocabulary"])
def test_changed_texts_are_encoded_again_and_old_files_are_removed(root, gpt2, trained, change):
    first = open_texts(root, length=1)
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
        case "vocabulary":
            write_bpe(root / "gpt2", [*trained[0], "<more>"], trained[1])
    file = open_texts(root, length=1)
    assert file.tokens.tolist() == expected(gpt2, texts)
    assert file.path != first.path
    assert kept(root / "oscar") == [file.path.name]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: b"x" * 999])
def test_damaged_token_file_is_written_again(root, gpt2, damage):
    file = open_texts(root, length=1)
    whole = file.path.read_bytes()
    file.path.unlink()  # the mapping of a file that shrinks would end this process
    file.path.write_bytes(damage(whole))
    assert open_texts(root, length=1).tokens.tolist() == expected(gpt2)
    assert file.path.read_bytes() == whole


def test_read_only_folder_of_texts_is_left_alone(root, monkeypatch):
    # Rights do not bind root, who runs some of our machines.
    monkeypatch.setattr(files_module, "is_writable_folder", lambda folder: folder != root / "oscar")
    file = open_texts(root, length=1)
    assert file.path.parent == root / "home-cache/pytest-accel"
    assert kept(root / "oscar") == []
    monkeypatch.setattr(module, "encode_texts", None)
    assert open_texts(root, length=1).path == file.path


def test_full_disk_is_one_error_and_leaves_nothing(root):
    write_texts(root / "oscar/a.jsonl", TEXTS * 500)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        said = refused(partial(open_texts, length=1), root)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert said.startswith(str(root / "oscar/pytest-accel-tokens-"))
    assert "cannot be written: File too large" in said
    assert kept(root / "oscar") == []


def test_bad_or_empty_texts_are_one_error_and_leave_nothing(root):
    (root / "oscar/b.jsonl").write_text('{"text": "fine"}\nnot json\n')
    assert "b.jsonl:2: " in refused(partial(open_texts, length=1), root)
    for name in ("a.jsonl", "b.jsonl"):
        (root / "oscar" / name).write_text("\n")
    assert "a.jsonl: no document in it" in refused(partial(open_texts, length=1), root)
    assert kept(root / "oscar") == []


def _open_in_a_process(root, results):
    file = open_texts(root, length=1)
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


def sequences_of(tokens, length):
    path, numbers = Path("tokens.npy"), np.arange(tokens, dtype=np.uint32)
    return Sequences(path=path, tokens=numbers, vocabulary=10**6, length=length)


@given(st.integers(1, 200), st.integers(1, 20))
def test_sequences_follow_each_other_without_a_gap(tokens, length):
    if tokens <= length:
        with pytest.raises(DataError, match="not one sequence"):
            sequences_of(tokens, length)
        return
    sequences = sequences_of(tokens, length)
    inputs, targets = sequences.read(range(len(sequences)), CPU)
    used = len(sequences) * length
    assert tokens - 1 - used < length  # not one more would fit
    assert inputs.flatten().tolist() == list(range(used))
    assert torch.equal(targets, inputs + 1)


def test_token_outside_the_vocabulary_is_reported_as_damage():
    sequences = sequences_of(51, 5)
    sequences.tokens[13] = 10**6
    sequences.read([0, 1, 3], CPU)
    with pytest.raises(DataError, match=r"tokens\.npy: damaged: it has the token 1000000"):
        sequences.read([0, 2], CPU)


# SQuAD

CONTEXT = "The cat sat on a mat."
WORDS = ("the", "Cats", "sat", "on", "a", "mat,", "unaffable", "$50", "(it)", "Über", "zzz")


def question(text="a mat", start=15, number=0, **changes):
    answers = [{"text": text, "answer_start": start}, {"text": "other", "answer_start": 0}]
    entry = {"id": f"q{number}", "question": "Where did it sit?", "answers": answers} | changes
    return {key: value for key, value in entry.items() if value is not None}


def write_questions(path, *questions):
    content = {"data": [{"title": "it", "paragraphs": [{"context": CONTEXT, "qas": [*questions]}]}]}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def test_questions_are_read_with_their_first_answer(tmp_path):
    (found,) = read_squad(write_questions(tmp_path / "a.json", question()))
    assert found == Question("Where did it sit?", CONTEXT, (15, 20))


@pytest.mark.parametrize(
    ("text", "start"), [("a mat", 14), ("a mat", -6), ("a mat", 5000), ("dog", 4), ("", 3)]
)
def test_misplaced_answer_is_dropped(tmp_path, text, start):
    path = write_questions(tmp_path / "a.json", question(), question(text, start))
    assert len(read_squad(path)) == 1
    path = write_questions(path, question(text, start))
    assert "no question with an answer in it" in refused(read_squad, path)


@pytest.mark.parametrize(
    "changes",
    [{"question": None}, {"answers": None}, {"answers": []}, {"answers": [{"text": 1, "answer_start": 15}]}],
)
def test_wrong_question_is_reported(tmp_path, changes):
    path = write_questions(tmp_path / "a.json", question(**changes))
    assert refused(read_squad, path).startswith(f"{path}: question q0 or the next one: ")


@pytest.mark.parametrize("text", ["[]", "{}", '{"data": [7]}', '{"data": []}', "", '{"data": [', "\xff"])
def test_file_that_is_not_squad_is_one_error(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("latin-1"))
    assert refused(read_squad, path).startswith(str(path))


def test_window_holds_the_question_and_the_paragraph(cut):
    asked = [Question("Where?", "The cats sat on a mat.", (13, 21))]
    (window,) = cut(asked, 20)
    tokens = [PIECES[each] for each in window["input_ids"]]
    assert tokens == [
        *("[CLS]", "where", "?", "[SEP]", "the", "cat", "##s", "sat", "on", "a", "mat", ".", "[SEP]"),
        *["[PAD]"] * 7,
    ]
    assert window["attention_mask"].tolist() == [1] * 13 + [0] * 7
    assert window["token_type_ids"].tolist() == [0] * 4 + [1] * 9 + [0] * 7
    assert (window["start"], window["end"]) == (8, 10)


def test_long_question_loses_its_end_and_a_long_paragraph_has_several_windows(cut):
    paragraph = "cat " * 8 + "mat " + "cat " * 11  # 20 tokens
    windows = cut([Question("who " * 9, paragraph, (32, 35))], 16)
    # 8 tokens of question and 3 special ones leave 5, of which two windows share 2: from 0, 3, 6, 9, ... on.
    assert (windows["input_ids"][:, 1:9] == PIECES.index("who")).all()
    assert windows["start"].tolist() == [0, 0, 10 + 8 - 6, 0, 0, 0]
    assert windows["end"].tolist() == windows["start"].tolist()


@st.composite
def questions(draw):
    """Questions about one paragraph, whose answers are whole words of it."""
    words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=60))
    starts, text = [], ""
    for word in words:
        text += draw(st.sampled_from([" ", "  ", "\n"]))
        starts.append(len(text))
        text += word
    found = []
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(0, len(words) - 1))
        last = draw(st.integers(first, min(first + 2, len(words) - 1)))
        asked = " ".join(draw(st.lists(st.sampled_from(WORDS), max_size=8)))
        found.append(Question(asked, text, (starts[first], starts[last] + len(words[last]))))
    return found


@given(questions(), st.integers(46, 90))
def test_tokens_of_an_answer_are_the_answer_and_every_answer_is_in_a_window(cut, asked, sequence):
    for each in asked:
        windows = cut([each], sequence)
        assert windows["input_ids"].shape == (len(windows), sequence)
        assert windows["start"].any()  # three words of 3 tokens at most, and windows overlap by as many
        (answer,) = cut(
            [each._replace(paragraph=each.paragraph[slice(*each.answer)], answer=(0, 1))], sequence
        )
        wanted = answer["input_ids"][answer["token_type_ids"] == 1][:-1].tolist()
        for window in windows[windows["start"] > 0]:
            span = slice(window["start"], window["end"] + 1)
            assert (window["token_type_ids"][span] == 1).all()
            assert window["input_ids"][span].tolist() == wanted


def test_set_under_the_root_is_cut_once(tmp_path, monkeypatch):
    path = write_questions(tmp_path / "squad/train-v1.1.json", *(question(number=each) for each in range(5)))
    with pytest.raises(DataMissing, match="bert-base-uncased"):
        open_squad(tmp_path, "train")
    write_wordpiece(tmp_path / "bert-base-uncased")
    inputs, answers = open_squad(tmp_path, "train", sequence=128)
    assert inputs.input_ids.shape == (5, 128)
    assert [part.dtype for part in inputs] == [torch.int32, torch.uint8, torch.uint8]
    monkeypatch.setattr(module, "read_squad", None)
    again = open_squad(tmp_path, "train", sequence=128)
    assert torch.equal(again[1].end, answers.end)
    assert len(list(path.parent.glob("pytest-accel-squad-train-128-*.npy"))) == 1


def test_shape_that_holds_no_window_is_refused(cut):
    with pytest.raises(ValueError, match=r"8 tokens hold no window\. Valid: 10 or more"):
        cut([Question("who?", "cat", (0, 3))], 8)


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
