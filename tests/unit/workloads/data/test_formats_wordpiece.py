"""BERT's tokeniser against a slow one written here, and the places of its pieces."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_accel.workloads.data.errors import DataError, DataMissing
from pytest_accel.workloads.data.formats import wordpiece
from pytest_accel.workloads.data.formats.wordpiece import find_wordpiece, read_wordpiece
from tests.support.vocabularies import PIECES, write_wordpiece

SNIPPETS = (
    *(
        "the",
        "Cats",
        "unaffable",
        " ",
        "\n",
        "\u2028",
        "\x00",
        "\x0b",
        "\xad",
        "\ufffd",
        "Grüße",
        "u\u0308ber",
        "漢字",
    ),
    *(
        "ΟΔΟΣ",
        "Σ",
        "İ",
        "$50",
        "don't",
        "?",
        "\u037e",
        "¿",
        "。",
        "_",
        "re\u0301sume\u0301",
        "\u1b44",
        "\u0323\u0301",
    ),
)
TEXT = st.text() | st.lists(st.sampled_from(SNIPPETS), max_size=12).map("".join)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return read_wordpiece(write_wordpiece(tmp_path_factory.mktemp("bert")))


# A slow tokeniser: step after step over the whole text, with no thought of places.


def slow_words(text):
    cleaned = ""
    for character in text:
        category = unicodedata.category(character)
        if category == "Zs" or character in "\t\n\r":
            cleaned += " "
        elif category not in {"Cc", "Cf"} and character != "\ufffd":
            cleaned += f" {character} " if is_ideograph(ord(character)) else character
    found = []
    for word in cleaned.split():
        letters = unicodedata.normalize("NFD", word.lower())
        spaced = ""
        for letter in letters:
            if unicodedata.category(letter) == "Mn":
                continue
            ascii_sign = letter in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
            spaced += f" {letter} " if ascii_sign or unicodedata.category(letter).startswith("P") else letter
        found += spaced.split()
    return found


def is_ideograph(point):
    return (
        0x4E00 <= point <= 0x9FFF
        or 0x3400 <= point <= 0x4DBF
        or 0x20000 <= point <= 0x2A6DF
        or 0x2A700 <= point <= 0x2CEAF
        or 0xF900 <= point <= 0xFAFF
        or 0x2F800 <= point <= 0x2FA1F
    )


def slow_pieces(word, tokens=PIECES):
    if len(word) > 200:
        return ["[UNK]"]
    pieces, rest = [], word
    while rest:
        mark = "##" if pieces else ""
        fitting = [rest[:size] for size in range(1, len(rest) + 1) if mark + rest[:size] in tokens]
        if not fitting:
            return ["[UNK]"]
        pieces.append(mark + fitting[-1])
        rest = rest[len(fitting[-1]) :]
    return pieces


@given(TEXT)
@example("The unaffable cats' Grüße, \u2028 u\u0308ber \x0b\x00 ΟΔΟΣ 漢字 \u037e $500 ¿")
@example("a" * 201 + " cats" + "s" * 200)
def test_tokens_are_those_of_the_slow_tokeniser(vocabulary, text):
    slow = [piece for word in slow_words(text) for piece in slow_pieces(word)]
    assert [vocabulary.tokens[each] for each in vocabulary.encode(text)] == slow


@given(TEXT)
@example("a\u302e\u1b44b")  # marks that are no accents, in the wrong order
def test_words_are_those_of_the_slow_tokeniser(text):
    chunks = wordpiece._not_spaces().findall(text)
    found = ["".join(letter for letter, _ in word) for chunk in chunks for word in wordpiece.words(chunk)]
    assert found == slow_words(text)


@given(TEXT)
def test_pieces_stand_in_order_for_characters_of_the_text(vocabulary, text):
    pieces = vocabulary.pieces(text)
    assert all(0 <= piece.start < piece.end <= len(text) for piece in pieces)
    starts = [piece.start for piece in pieces]
    assert starts == sorted(starts)


def test_the_places_of_pieces_are_those_in_the_text(vocabulary):
    text = " The\tUnaffable\u00a0cats, Gru\u0308ße 漢字\x00 "
    pieces = [
        (vocabulary.tokens[piece.token], text[piece.start : piece.end]) for piece in vocabulary.pieces(text)
    ]
    assert pieces == [
        ("the", "The"),
        ("un", "Un"),
        ("##aff", "aff"),
        ("##able", "able"),
        ("cat", "cat"),
        ("##s", "s"),
        (",", ","),
        ("[UNK]", "Gru\u0308ße"),
        ("漢", "漢"),
        ("字", "字"),
    ]


def test_pieces_decode_to_words(vocabulary):
    assert vocabulary.decode(vocabulary.encode("The UNAFFABLE cats sat?")) == "the unaffable cats sat ?"


def test_remembered_words_are_bounded(vocabulary, monkeypatch):
    monkeypatch.setattr(wordpiece, "KEPT_WORDS", 2)
    assert vocabulary.decode(vocabulary.encode("the cat sat on a mat")) == "the cat sat on a mat"
    assert len(vocabulary._words) <= 2


def refused(folder):
    with pytest.raises(DataError) as caught:
        read_wordpiece(folder)
    assert "\n" in str(caught.value)  # what is wrong, then what to do
    return str(caught.value).partition("\n")[0]


def test_the_vocabulary_lies_under_the_root(tmp_path):
    with pytest.raises(DataMissing, match="bert-base-uncased"):
        find_wordpiece(tmp_path)
    (tmp_path / "bert-base-uncased").mkdir()
    with pytest.raises(DataMissing, match=r"vocab\.txt"):
        read_wordpiece(find_wordpiece(tmp_path))
    write_wordpiece(tmp_path / "bert-base-uncased")
    found = read_wordpiece(find_wordpiece(tmp_path))
    assert (found.size, found.pad, found.unknown, found.cls, found.sep) == (len(PIECES), 0, 1, 2, 3)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ([*PIECES[:6], "", *PIECES[6:]], ":7: empty, where a token should stand"),
        ([*PIECES, "cat"], f":{len(PIECES) + 1}: 'cat' stands on line 6 too"),
        ([each for each in PIECES if each != "[SEP]"], ": [SEP] is not in it"),
        ([], ":1: empty, where a token should stand"),
    ],
)
def test_a_damaged_vocabulary_is_named_with_its_line(tmp_path, tokens, said):
    assert refused(write_wordpiece(tmp_path, tokens)) == f"{tmp_path / 'vocab.txt'}{said}"


def test_a_vocabulary_that_is_not_text_is_named_with_its_line(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n[UNK]\n\xff\n")
    assert refused(tmp_path) == f"{tmp_path / 'vocab.txt'}:3: not UTF-8"
