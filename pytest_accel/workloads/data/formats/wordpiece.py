"""BERT's uncased tokeniser, read from its vocab.txt: pieces, and the characters of the text that each stands for.

Devlin et al., arXiv:1810.04805: words are cleaned, lowered, stripped of accents and cut at punctuation and around
ideographs; a word is then the longest piece of the vocabulary that it begins with, then the next. The place of every
piece in the text is kept, since an answer is a range of characters.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from pytest_accel.workloads.data import checksums
from pytest_accel.workloads.data.errors import missing, reading, unreadable
from pytest_accel.workloads.data.formats.places import find_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VOCABULARY = "vocab.txt"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
CONTINUED = "##"  # before a piece that does not begin a word
LONGEST_WORD = 200  # characters; a longer one is unknown, as in the published tokeniser
KEPT_WORDS = 2**18  # whose pieces are remembered
REMEDY = "Download vocab.txt again."
# As the published tokeniser counts ideographs: the blocks of CJK, without kana and hangul, whose words have spaces.
_IDEOGRAPHS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


class Piece(NamedTuple):
    """A token, and the characters from `start` to `end` that it was made of."""

    token: int
    start: int
    end: int


class WordPiece:
    """A vocabulary of pieces of words."""

    def __init__(self, tokens: list[str]) -> None:
        self.size = len(tokens)
        self.tokens = tuple(tokens)
        self._numbers = {token: number for number, token in enumerate(tokens)}
        self.pad, self.unknown, self.cls, self.sep = (self._numbers[each] for each in SPECIAL)
        self._words: dict[str, list[Piece]] = {}

    def pieces(self, text: str) -> list[Piece]:
        """Return the pieces of a text, in order."""
        found: list[Piece] = []
        for match in _not_spaces().finditer(text):
            start = match.start()
            found += [Piece(token, start + first, start + last) for token, first, last in self._of(match[0])]
        return found

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text alone."""
        return [piece.token for piece in self.pieces(text)]

    def decode(self, tokens: list[int]) -> str:
        """Return the words that tokens stand for, a space between them: lowered, without accents, cut at punctuation."""
        return " ".join(self.tokens[each] for each in tokens).replace(f" {CONTINUED}", "")

    def _of(self, chunk: str) -> list[Piece]:
        found = self._words.get(chunk)
        if found is None:
            found = [piece for word in words(chunk) for piece in self._cut(word)]
            if len(self._words) >= KEPT_WORDS:
                self._words.clear()
            self._words[chunk] = found
        return found

    def _cut(self, word: list[tuple[str, int]]) -> list[Piece]:
        """The longest piece from the left, again and again; unknown where there is none for the rest."""
        characters = "".join(character for character, _ in word)
        unknown = [Piece(self.unknown, word[0][1], word[-1][1] + 1)]
        if len(word) > LONGEST_WORD:
            return unknown
        found: list[Piece] = []
        first = 0
        while first < len(word):
            prefix = CONTINUED if first else ""
            for last in range(len(word), first, -1):
                token = self._numbers.get(prefix + characters[first:last])
                if token is not None:
                    break
            else:
                return unknown
            found.append(Piece(token, word[first][1], word[last - 1][1] + 1))
            first = last
        return found


def words(chunk: str) -> Iterator[list[tuple[str, int]]]:
    """Cut what stands between spaces into words: characters, each with its place in the chunk."""
    kept = [(character, place) for place, character in enumerate(chunk) if not _is_dropped(character)]
    for alone, group in groupby(kept, key=lambda each: each[1] if _is_ideograph(each[0]) else -1):
        part = list(group)
        yield from [part] if alone >= 0 else _cut_at_punctuation(_normal(part))


def _normal(part: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Lower and decompose, and drop the accents: one character may become several, or none."""
    # Lowered as a whole: a sigma that ends a word has a form of its own. No other character minds its neighbours.
    lowered = iter("".join(character for character, _ in part).lower())
    placed = [(next(lowered), place) for character, place in part for _ in character.lower()]
    parts = [(each, place) for character, place in placed for each in unicodedata.normalize("NFD", character)]
    ordered: list[tuple[str, int]] = []
    for _, group in groupby(parts, key=lambda each: unicodedata.combining(each[0]) > 0):
        # The canonical order of marks that follow one letter, as decomposing all of it at once would have them.
        ordered += sorted(group, key=lambda each: unicodedata.combining(each[0]))
    return [each for each in ordered if unicodedata.category(each[0]) != "Mn"]


def _cut_at_punctuation(part: list[tuple[str, int]]) -> Iterator[list[tuple[str, int]]]:
    word: list[tuple[str, int]] = []
    for each in part:
        if is_punctuation(each[0]):
            if word:
                yield word
            yield [each]
            word = []
        else:
            word.append(each)
    if word:
        yield word


def is_punctuation(character: str) -> bool:
    """Whether it stands alone: Unicode's punctuation, and all of ASCII that is neither letter, digit nor control."""
    of_ascii = "!" <= character <= "~" and not character.isalnum()
    return of_ascii or unicodedata.category(character)[0] == "P"


def _is_dropped(character: str) -> bool:
    """Control characters, and what stands for a character that could not be read; spaces are not asked about."""
    return character == "\ufffd" or unicodedata.category(character) in {"Cc", "Cf"}


def _is_ideograph(character: str) -> bool:
    return character >= "\u3400" and any(first <= ord(character) <= last for first, last in _IDEOGRAPHS)


@cache
def _not_spaces() -> re.Pattern[str]:
    """What stands between spaces. Control characters that Python counts as spaces are dropped from words instead."""
    spaces = "".join(
        chr(each)
        for each in range(sys.maxunicode + 1)
        if unicodedata.category(chr(each)) in {"Zs", "Zl", "Zp"}
    )
    return re.compile(f"[^\\t\\n\\r{re.escape(spaces)}]+")


def find_wordpiece(root: Path) -> Path:
    """Return the folder of the vocabulary under the root of all data sets."""
    return find_folder(root, "the vocabulary of BERT", "bert-base-uncased")


def read_wordpiece(folder: Path) -> WordPiece:
    """Read the vocabulary in a folder, a token a line; DataMissing where there is none, DataError where it is damaged."""
    path = folder / VOCABULARY
    if not path.is_file():
        raise missing("the vocabulary of BERT", [path], "Download it there.")
    checksums.verify(path, folder=folder)
    with reading(path):
        data = path.read_bytes()
    try:
        lines = data.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        torn_line = data.count(b"\n", 0, error.start) + 1
        raise unreadable(f"{path}:{torn_line}", "not UTF-8", REMEDY) from None
    tokens: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        token = line.removesuffix("\r")
        if not token:
            raise unreadable(f"{path}:{number}", "empty, where a token should stand", REMEDY)
        if token in tokens:
            raise unreadable(f"{path}:{number}", f"{token!r} stands on line {tokens[token]} too", REMEDY)
        tokens[token] = number
    for special in SPECIAL:
        if special not in tokens:
            raise unreadable(path, f"{special} is not in it", REMEDY)
    return WordPiece(list(tokens))
