"""Vocabularies: tokens and offsets of GPT-2 and BERT; damaged files are one error with the line."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_accel.workloads.data.errors import DataError, DataMissing
from pytest_accel.workloads.data.vocabularies import END_OF_TEXT, find_bert, find_gpt2, read_bert, read_gpt2
from tests.support.vocabularies import PIECES, SENTENCES, train_bpe, write_bpe, write_wordpiece

TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.lists(
    st.sampled_from(["the ", "cat", "'ll", " 100", "über", "漢字", "😀", " ", "\n", "'s", "\u2003"]),
    max_size=12,
).map("".join)


@pytest.fixture(scope="module")
def trained():
    return train_bpe()


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory, trained):
    return read_gpt2(write_bpe(tmp_path_factory.mktemp("gpt2"), *trained))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return read_bert(write_wordpiece(tmp_path_factory.mktemp("bert")))


def refused(read, folder):
    with pytest.raises(DataError) as caught:
        read(folder)
    assert "\n" in str(caught.value)  # what is wrong, then what to do
    return str(caught.value).partition("\n")[0]


@given(TEXT)
@example(SENTENCES)
@example("a" * 5000)
def test_gpt2_tokens_decode_to_their_text(gpt2, text):
    tokens = gpt2.encode(text)
    assert tokens.dtype == np.uint16
    assert gpt2.tokenizer.decode(tokens.tolist(), skip_special_tokens=False) == text


def test_end_of_text_inside_a_text_is_plain_text(gpt2):
    assert gpt2.end_of_text not in gpt2.encode(f"a {END_OF_TEXT} b")


@pytest.mark.parametrize(
    "names",
    [("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"), ("gpt2-vocab.json", "gpt2-merges.txt")],
)
def test_gpt2_files_are_found_under_all_published_names(tmp_path, trained, gpt2, names):
    write_bpe(tmp_path / "gpt2", *trained, names=names)
    found = read_gpt2(find_gpt2(tmp_path))
    assert found.encode(SENTENCES).tolist() == gpt2.encode(SENTENCES).tolist()
    assert found.fingerprint == gpt2.fingerprint


def test_missing_gpt2_vocabulary_is_reported_with_its_places(tmp_path):
    with pytest.raises(DataMissing, match=r"vocab\.json with .*merges\.txt and .*encoder\.json"):
        read_gpt2(tmp_path)
    with pytest.raises(DataMissing, match="gpt2"):
        find_gpt2(tmp_path)


def test_fingerprint_and_size_follow_the_files(tmp_path, trained, gpt2):
    tokens, merges = trained
    larger = read_gpt2(write_bpe(tmp_path, [*tokens, *(f"<more{each}>" for each in range(2**16))], merges))
    assert larger.fingerprint != gpt2.fingerprint
    assert (larger.dtype, larger.size) == (np.uint32, gpt2.size + 2**16)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda numbers: numbers.pop("a"), "the numbers of its"),
        (lambda numbers: numbers.update(a=-1), "the numbers of its"),
        (lambda numbers: numbers.update(a=numbers["b"]), "the numbers of its"),
        (lambda numbers: numbers.update(a="1"), "not an object of tokens and their numbers"),
        (
            lambda numbers: numbers.update({"x" + END_OF_TEXT: numbers.pop(END_OF_TEXT)}),
            "'<|endoftext|>' is missing",
        ),
        (lambda numbers: numbers.update({"Ġ ": numbers.pop("Ġ")}), "'Ġ' is missing"),
    ],
)
def test_damaged_gpt2_vocabulary_is_reported(tmp_path, change, problem):
    path = write_bpe(tmp_path) / "vocab.json"
    numbers = json.loads(path.read_text())
    change(numbers)
    path.write_text(json.dumps(numbers))
    assert refused(read_gpt2, tmp_path).startswith(f"{path}: {problem}")


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 1', "[" * 100_000])
def test_gpt2_vocabulary_that_is_not_an_object_is_reported(tmp_path, text):
    path = write_bpe(tmp_path) / "vocab.json"
    path.write_text(text)
    assert refused(read_gpt2, tmp_path).startswith(f"{path}: not ")


@pytest.mark.parametrize("line", ["a", "a b c", "", "a zz", "Ġ q"])
def test_bad_merge_is_reported_with_its_line(tmp_path, line):
    path = write_bpe(tmp_path) / "merges.txt"
    lines = path.read_text(encoding="utf-8").split("\n")
    path.write_text("\n".join([*lines[:3], line, *lines[3:]]), encoding="utf-8")
    assert refused(read_gpt2, tmp_path).startswith(f"{path}:4: {line!r} is not two tokens")


def test_torn_merges_are_found_by_the_tokens_they_lack(tmp_path):
    path = write_bpe(tmp_path) / "merges.txt"
    lines = path.read_text(encoding="utf-8").split("\n")
    path.write_text("\n".join(lines[:40]), encoding="utf-8")
    assert "torn: no line makes" in refused(read_gpt2, tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the UNAFFABLE cats", ["the", "un", "##aff", "##able", "cat", "##s"]),
        ("Who?¿mat-sat", ["who", "?", "¿", "mat", "-", "sat"]),
        ("$50 (it)", ["$", "5", "##0", "(", "it", ")"]),
        ("Über u\u0308ber R\u00e9sume\u0301", ["uber", "uber", "resume"]),
        ("漢字the", ["漢", "字", "the"]),
        ("a" * 201, ["[UNK]"]),
        ("zzz\x00\ufffd the\u2028cat", ["[UNK]", "the", "cat"]),
    ],
)
def test_bert_words_are_cleaned_lowered_and_cut_into_the_longest_pieces(bert, text, expected):
    assert [PIECES[token] for token in bert.encode(text)[0]] == expected


def test_bert_offsets_are_characters_of_the_original_text(bert):
    text = " The\tUnaffable\u00a0cats, Gru\u0308ße 漢字\x00 "
    parts = [text[first:last] for first, last in bert.encode(text)[1]]
    assert parts == ["The", "Un", "aff", "able", "cat", "s", ",", "Gru\u0308ße", "漢", "字"]


@pytest.mark.parametrize(
    ("content", "where", "problem"),
    [
        (b"[PAD]\n\n[UNK]\n", ":2", "empty"),
        (b"[PAD]\n[UNK]\n[CLS]\n[PAD]\n", ":4", "'[PAD]' is on line 1 too"),
        (b"[PAD]\n\xff\n", ":2", "not UTF-8"),
        (b"[PAD]\n[UNK]\n[CLS]\nthe\n", "", "[SEP] is not in it"),
    ],
)
def test_damaged_bert_vocabulary_is_reported_with_its_line(tmp_path, content, where, problem):
    (tmp_path / "vocab.txt").write_bytes(content)
    assert refused(read_bert, tmp_path).startswith(f"{tmp_path / 'vocab.txt'}{where}: {problem}")


def test_bert_vocabulary_is_found_under_the_root(tmp_path):
    with pytest.raises(DataMissing, match="bert-base-uncased"):
        find_bert(tmp_path)
    (tmp_path / "bert-base-uncased").mkdir()
    with pytest.raises(DataMissing, match=r"vocab\.txt"):
        read_bert(find_bert(tmp_path))


@pytest.mark.parametrize(("read", "write"), [(read_gpt2, write_bpe), (read_bert, write_wordpiece)])
def test_missing_tokenizers_package_is_reported_with_the_command(tmp_path, monkeypatch, read, write):
    write(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        DataError, match=r"tokenizers package.* is not installed\.\nRun: pip install tokenizers"
    ):
        read(tmp_path)
