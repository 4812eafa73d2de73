"""GPT-2's tokeniser against a slow one written here, and on files that contradict each other."""

from __future__ import annotations

import json
import unicodedata
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_accel.workloads.data.errors import DataError, DataMissing
from pytest_accel.workloads.data.formats import bpe
from pytest_accel.workloads.data.formats.bpe import (
    END_OF_TEXT,
    bytes_as_characters,
    find_bpe,
    merged,
    read_bpe,
)
from pytest_accel.workloads.data.formats.words import word_pattern
from tests.support.vocabularies import (
    SENTENCES,
    WHITE_SPACE,
    alphabet,
    as_characters,
    replaced,
    train_bpe,
    write_bpe,
)

TEXT = st.text() | st.text(alphabet="aeht .'sl1\uff12½\n\t\u00a0\x1cü漢😀\U0001d7d9\U0001d518Ⅳ_", max_size=40)


@pytest.fixture(scope="module")
def trained():
    return train_bpe(split=word_pattern().findall)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory, trained):
    return read_bpe(write_bpe(tmp_path_factory.mktemp("gpt2"), *trained))


# A slow tokeniser: what the pattern says, character by character; then pass after pass over the word.


def kind(character):
    if character in WHITE_SPACE:
        return "space"
    return unicodedata.category(character)[0] if unicodedata.category(character)[0] in "LN" else "other"


def slow_words(text):
    place, words = 0, []
    while place < len(text):
        end = slow_word(text, place)
        words.append(text[place:end])
        place = end
    return words


def slow_word(text, place):
    for suffix in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d"):
        if text.startswith(suffix, place):
            return place + len(suffix)
    first = place + 1 if text[place] == " " and place + 1 < len(text) else place
    if kind(text[first]) == "space":
        first = place
    end = first
    while end < len(text) and kind(text[end]) == kind(text[first]):
        end += 1
    if kind(text[first]) == "space" and end < len(text) and end - place > 1:
        end -= 1  # the last one belongs to the word that follows
    return end


def slow_tokens(text, tokens, merges):
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    found = []
    for word in slow_words(text):
        symbols = as_characters(word)
        while pairs := [pair for pair in pairwise(symbols) if pair in ranks]:
            symbols = replaced(symbols, min(pairs, key=ranks.__getitem__))
        found += [tokens.index(symbol) for symbol in symbols]
    return found


@given(TEXT)
@example("a 'll 're  'x\n\n b\x1c c \u2003d 1½Ⅳ २ \U0001d7d9a\U0001d518😀 ")
def test_words_are_cut_as_the_pattern_says(text):
    assert word_pattern().findall(text) == slow_words(text)


@given(TEXT)
@example(SENTENCES)
def test_tokens_are_those_of_the_slow_tokeniser(vocabulary, trained, text):
    assert vocabulary.encode(text).tolist() == slow_tokens(text, *trained)


@given(TEXT)
def test_every_text_comes_back(vocabulary, text):
    tokens = vocabulary.encode(text)
    assert tokens.dtype == np.uint16
    assert vocabulary.decode(tokens.tolist()) == text


PAIRS = [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc"), ("a", "a"), ("abc", "a"), ("aa", "b"), ("c", "a")]
ORDERS = st.permutations(range(len(PAIRS)))


@given(st.lists(st.sampled_from(["a", "b", "c", "abc", "aab", "abcabc"]), max_size=9).map("".join), ORDERS)
@example("abcabc", [1, 2, 5, 3, 0, 4, 6, 7])  # abca is before the second abc, which the same pass makes
@example("cabc", [1, 0, 7, 3, 2, 4, 5, 6])  # ab was waiting, and its b went to bc: abc has to wait for ca
def test_merges_of_any_order_are_those_of_passes(word, order):
    # Two ways to the same token: a heap that takes one pair at a time comes to another end here.
    pairs = [PAIRS[each] for each in order]
    names = sorted({*"abc", *("".join(pair) for pair in pairs)})
    merges = {
        (names.index(left), names.index(right)): (rank, names.index(left + right))
        for rank, (left, right) in enumerate(pairs)
    }
    symbols = [*word]
    fast = merged([names.index(each) for each in symbols], merges)
    while found := [pair for pair in pairwise(symbols) if pair in pairs]:
        symbols = replaced(symbols, min(found, key=pairs.index))
    assert [names[each] for each in fast] == symbols


def test_frequent_words_became_single_tokens(vocabulary):
    assert len(vocabulary.encode(" the cat")) < len(" the cat") / 2


def test_the_characters_of_bytes_are_the_published_ones():
    assert bytes_as_characters() == alphabet()
    assert bytes_as_characters()[ord(" ")] == "Ġ"
    assert len(set(bytes_as_characters())) == 256


def test_the_end_of_text_is_a_token_that_no_text_becomes(vocabulary):
    assert vocabulary.end_of_text == vocabulary.size - 1
    assert vocabulary.end_of_text not in vocabulary.encode(f"a{END_OF_TEXT}b")
    assert vocabulary.decode([vocabulary.end_of_text]) == END_OF_TEXT


def test_half_a_character_decodes_to_a_replacement(vocabulary):
    tokens = vocabulary.encode("ÿ").tolist()
    assert vocabulary.decode(tokens[:1]) == "\ufffd"
    assert vocabulary.decode_bytes(tokens[:1]) == b"\xc3"


def test_half_a_surrogate_pair_is_no_text(vocabulary):
    with pytest.raises(UnicodeEncodeError):
        vocabulary.encode("a\ud800")


def test_remembered_words_are_bounded_and_tokens_stay_the_same(tmp_path, trained, monkeypatch):
    monkeypatch.setattr(bpe, "KEPT_WORDS", 3)
    few = read_bpe(write_bpe(tmp_path, *trained))
    assert few.encode(SENTENCES * 3).tolist() == slow_tokens(SENTENCES * 3, *trained)
    assert len(few._words) <= 3


def test_a_long_word_is_not_remembered(vocabulary):
    word = "a" * 5000
    assert vocabulary.decode(vocabulary.encode(word).tolist()) == word
    assert word not in vocabulary._words


@pytest.mark.parametrize("names", bpe.FILE_NAMES)
def test_all_published_names_are_found(tmp_path, trained, names):
    folder = write_bpe(tmp_path / "gpt2", *trained, names=names)
    assert read_bpe(find_bpe(tmp_path)).size == len(trained[0])
    (folder / names[1]).unlink()
    with pytest.raises(DataError, match=f"{names[1]}: missing"):
        read_bpe(folder)


def test_no_vocabulary_is_missing_and_names_where_was_looked(tmp_path):
    with pytest.raises(DataMissing, match="gpt2"):
        find_bpe(tmp_path)
    with pytest.raises(DataMissing, match=r"vocab\.json.*encoder\.json"):
        read_bpe(tmp_path)


def test_a_large_vocabulary_takes_four_bytes(tmp_path, trained):
    tokens, merges = trained
    tokens = [*tokens, *(f"<more{each}>" for each in range(2**16))]
    large = read_bpe(write_bpe(tmp_path, tokens, merges))
    assert large.dtype == np.uint32
    assert large.encode("the cat").tolist() == slow_tokens("the cat", *trained)


def test_the_fingerprint_is_of_both_files(tmp_path, trained):
    tokens, merges = trained
    swapped = [merges[1], merges[0], *merges[2:]]
    first = read_bpe(write_bpe(tmp_path / "a", tokens, merges)).fingerprint
    again = read_bpe(write_bpe(tmp_path / "b", tokens, merges, names=bpe.FILE_NAMES[1])).fingerprint
    other = read_bpe(write_bpe(tmp_path / "c", tokens, swapped)).fingerprint
    assert first == again != other


# Files that are torn, or contradict each other


def refused(folder):
    with pytest.raises(DataError) as caught:
        read_bpe(folder)
    assert "\n" in str(caught.value)  # what is wrong, then what to do
    return str(caught.value).partition("\n")[0]


def changed_vocabulary(folder, trained, change):
    write_bpe(folder, *trained)
    path = folder / "vocab.json"
    pairs = list(json.loads(path.read_text()).items())
    change(pairs)
    path.write_text(
        "{" + ", ".join(f"{json.dumps(token)}: {json.dumps(number)}" for token, number in pairs) + "}"
    )
    return path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda pairs: pairs.append(("<x>", 3)), "the number 3 is not of one token"),
        (lambda pairs: pairs.append((pairs[300][0], len(pairs))), "stands twice"),
        (lambda pairs: pairs.append(("<x>", len(pairs) + 1)), "the token '<x>' has the number"),  # a gap
        (lambda pairs: pairs.append(("<x>", "7")), "the token '<x>' has the number 7"),
        (lambda pairs: pairs.append(("<x>", True)), "the token '<x>' has the number True"),
        (lambda pairs: pairs.append(("<x>", -1)), "the token '<x>' has the number -1"),
        (lambda pairs: pairs.append(("<x>", {"a": 1})), "the token '<x>' has the number"),
        (lambda pairs: pairs.__setitem__(-1, ("<x>", pairs[-1][1])), "'<|endoftext|>' is missing"),
        (lambda pairs: pairs.__setitem__(0, ("<x>", 0)), "which stands for a byte, is missing"),
    ],
)
def test_numbers_that_contradict_each_other_are_one_error(tmp_path, trained, change, said):
    path = changed_vocabulary(tmp_path, trained, change)
    text = refused(tmp_path)
    assert text.startswith(f"{path}: ")
    assert said in text


@pytest.mark.parametrize("text", ["[]", "7", "{}", '[["a", 1]]', "null"])
def test_json_that_is_no_vocabulary_is_one_error(tmp_path, trained, text):
    write_bpe(tmp_path, *trained)
    (tmp_path / "vocab.json").write_text(text)
    assert "not an object of tokens and their numbers" in refused(tmp_path)


def test_a_torn_vocabulary_is_named_with_its_line(tmp_path, trained):
    path = write_bpe(tmp_path, *trained) / "vocab.json"
    path.write_text(path.read_text()[:200].replace(", ", ",\n", 3))
    assert refused(tmp_path).startswith(f"{path}:4: not JSON: ")


def lines_of(folder, trained):
    path = write_bpe(folder, *trained) / "merges.txt"
    return path, path.read_text(encoding="utf-8").split("\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("onlyone", "not two tokens"),
        ("a b c", "not two tokens"),
        ("", "not two tokens"),
        ("a ", "not two tokens"),
        ("a unheard", "the token 'unheard' is not in"),
        ("q z", "merges to 'qz', which is no token of"),
        ("< |endoftext|>", "the token '|endoftext|>' is not in"),
    ],
)
def test_a_bad_merge_is_named_with_its_line(tmp_path, trained, line, said):
    path, lines = lines_of(tmp_path, trained)
    lines.insert(4, line)
    path.write_text("\n".join(lines), encoding="utf-8")
    text = refused(tmp_path)
    assert text.startswith(f"{path}:5: ")
    assert said in text


def test_a_merge_that_stands_twice_is_named(tmp_path, trained):
    path, lines = lines_of(tmp_path, trained)
    lines.insert(6, lines[2])
    path.write_text("\n".join(lines), encoding="utf-8")
    assert refused(tmp_path) == f"{path}:7: {lines[2]!r} stands further up already"


def test_a_merge_before_its_parts_are_made_is_named(tmp_path, trained):
    path, lines = lines_of(tmp_path, trained)
    late = next(line for line in lines[1:] if max(map(len, line.split())) > 1)
    path.write_text("\n".join([lines[0], late, *lines[1:]]), encoding="utf-8")
    text = refused(tmp_path)
    assert text.startswith(f"{path}:2: ")
    assert text.endswith("is not made by a line before this one")


def test_torn_merges_are_found_by_the_tokens_they_lack(tmp_path, trained):
    path, lines = lines_of(tmp_path, trained)
    path.write_text("\n".join(lines[:-6]), encoding="utf-8")
    text = refused(tmp_path)
    assert text.startswith(f"{path}: torn: no line makes ")
    assert text.endswith("5 tokens lack theirs")


def test_merges_that_are_not_text_are_named_with_their_line(tmp_path, trained):
    path, _ = lines_of(tmp_path, trained)
    path.write_bytes(b"#version: 0.2\n\xff\xfe\n")
    assert refused(tmp_path) == f"{path}:2: not UTF-8"


def test_sums_beside_the_vocabulary_are_honoured(tmp_path, trained):
    write_bpe(tmp_path, *trained)
    (tmp_path / "MD5SUMS").write_text("0" * 32 + "  merges.txt\n")
    assert "wrong checksum" in refused(tmp_path)
