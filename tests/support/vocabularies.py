"""Small vocabularies that tests write: a byte-level BPE trained on a few sentences, and a WordPiece one by hand."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from itertools import pairwise

from pytest_accel.workloads.data.vocabularies import END_OF_TEXT

SENTENCES = (
    "the cat sat on the mat, and the other cats sat on other mats. It's the 1st of 12 days; we'll see 100 more days. "
    "Übermäßig schöne Grüße übers Meer, übers Meer! 漢字と仮名、漢字と仮名。 aaaaaaaa aaaa 😀😀 "
)

WHITE_SPACE = set("\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | set(
    map(chr, range(0x2000, 0x200B))
)


def alphabet():
    """The characters of bytes, worked out in the other way round: what prints stays."""
    plain = [chr(each) for each in range(256)]
    shift = 0
    found = []
    for character in plain:
        if character in WHITE_SPACE or unicodedata.category(character) in {"Cc", "Cf"}:
            found.append(chr(256 + shift))
            shift += 1
        else:
            found.append(character)
    return found


def as_characters(text):
    characters = alphabet()
    return [characters[each] for each in text.encode()]


def train_bpe(text=SENTENCES, merges=60, split=str.split):
    """The tokens in order, and the merges in order: the most frequent pair, again and again."""
    words = [as_characters(word) for word in split(text)]
    tokens, found = sorted(alphabet()), []
    for _ in range(merges):
        pairs = Counter(pair for word in words for pair in pairwise(word))
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        found.append(best)
        tokens.append("".join(best))
        words = [replaced(word, best) for word in words]
    return [*tokens, END_OF_TEXT], found


def replaced(word, pair):
    """One pass from the left."""
    out, place = [], 0
    while place < len(word):
        if tuple(word[place : place + 2]) == pair:
            out.append("".join(pair))
            place += 2
        else:
            out.append(word[place])
            place += 1
    return out


def write_bpe(folder, tokens=None, merges=None, names=("vocab.json", "merges.txt")):
    """Write both files in the published layout; without arguments those of the sentences."""
    if tokens is None:
        tokens, merges = train_bpe()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    (folder / names[1]).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


PIECES = (
    *(
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "the",
        "cat",
        "##s",
        "sat",
        "on",
        "a",
        "mat",
        "un",
        "##aff",
        "##able",
        "who",
    ),
    *(
        "where",
        "did",
        "it",
        "sit",
        "?",
        ".",
        ",",
        "'",
        "-",
        "(",
        ")",
        "$",
        "5",
        "##0",
        "0",
        "grusse",
        "uber",
        "漢",
        "字",
    ),
    *("οδος", "s", "resume", "¿", ";"),
)


def write_wordpiece(folder, tokens=PIECES):
    """Write a vocabulary, a token a line."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    return folder
