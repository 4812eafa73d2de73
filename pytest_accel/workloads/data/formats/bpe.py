"""GPT-2's tokeniser, read from its two published files: text in, token numbers out, and back, byte for byte.

`encoder.json` and `vocab.bpe` (OpenAI), `vocab.json` and `merges.txt` (Hugging Face) or `gpt2-vocab.json` and
`gpt2-merges.txt` (Megatron): the same two files under three names. Radford et al., "Language Models are Unsupervised
Multitask Learners", section 2.2, describes the method; the order of merges is Sennrich et al., arXiv:1508.07909.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from pytest_accel.workloads.data import checksums
from pytest_accel.workloads.data.errors import missing, reading, unreadable
from pytest_accel.workloads.data.formats.places import find_folder
from pytest_accel.workloads.data.formats.words import word_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

Merges: TypeAlias = dict[
    tuple[int, int], tuple[int, int]
]  # two tokens -> the rank of their merge, its result

FILE_NAMES = (
    ("vocab.json", "merges.txt"),
    ("encoder.json", "vocab.bpe"),
    ("gpt2-vocab.json", "gpt2-merges.txt"),
)
END_OF_TEXT = "<|endoftext|>"
REMEDY = "Download both files of the vocabulary again: they belong together."
# Words whose tokens are remembered. Text is mostly the same few thousand; web text never stops to bring new ones.
KEPT_WORDS = 2**18
KEPT_CHARACTERS = 64  # a longer word hardly comes again
_SPECIAL = re.compile(r"<.+>")  # a token that no merge makes, and that no text becomes


class Bpe:
    """A byte-level vocabulary. Every text has tokens, and the tokens of a text decode to it."""

    def __init__(
        self, *, tokens: Sequence[bytes], merges: Merges, end_of_text: int, fingerprint: str
    ) -> None:
        self.size = len(tokens)
        self.end_of_text = end_of_text
        self.fingerprint = fingerprint  # of all that the tokens of a text depend on
        self.dtype = np.dtype(np.uint16 if self.size <= 2**16 else np.uint32)
        self._tokens = tuple(tokens)
        self._words = _Words(tokens, merges, self.dtype)

    def encode(self, text: str) -> NDArray[np.uint16] | NDArray[np.uint32]:
        """Return the tokens of a text. `<|endoftext|>` in it is text like any other.

        A text with half of a surrogate pair is none: UnicodeEncodeError.
        """
        return np.frombuffer(self.encode_packed(text), self.dtype)

    def encode_packed(self, text: str) -> bytes:
        """Return the same as bytes, each token in `dtype`: what a file of tokens is made of."""
        return b"".join(map(self._words.__getitem__, word_pattern().findall(text)))

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        return b"".join([self._tokens[each] for each in tokens])

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text; a character of which only a part is there becomes U+FFFD."""
        return self.decode_bytes(tokens).decode("utf-8", "replace")


class _Words(dict[str, bytes]):
    """The tokens of words, remembered: a dictionary that works out what it does not hold."""

    def __init__(self, tokens: Sequence[bytes], merges: Merges, dtype: np.dtype) -> None:
        super().__init__()
        numbers = {token: number for number, token in enumerate(tokens) if len(token) == 1}
        self._of_byte = [numbers[bytes([each])] for each in range(256)]
        self._merges = merges
        self._dtype = dtype

    def __missing__(self, word: str) -> bytes:
        symbols = [self._of_byte[each] for each in word.encode("utf-8")]
        packed = np.array(merged(symbols, self._merges), self._dtype).tobytes()
        if len(word) <= KEPT_CHARACTERS:
            if len(self) >= KEPT_WORDS:
                self.clear()  # the frequent ones are back in no time
            self[word] = packed
        return packed


def merged(symbols: list[int], merges: Merges) -> list[int]:
    """Merge the pair of the lowest rank wherever it stands, from the left, until no pair has a rank.

    With a heap of the pairs: a word may be a megabyte (base64, text without spaces), and looking through all of it
    after every merge would take hours.
    """
    end = len(symbols)
    before, after = list(range(-1, end - 1)), list(range(1, end + 1))
    symbols = [*symbols]
    waiting = [(merges[pair][0], place) for place, pair in enumerate(pairwise(symbols)) if pair in merges]
    heapify(waiting)
    while waiting:
        rank = waiting[0][0]
        changed: list[int] = []
        while waiting and waiting[0][0] == rank:  # all of this rank before any pair that they give rise to
            place = heappop(waiting)[1]
            right = after[place]
            found = merges.get((symbols[place], symbols[right])) if right < end else None
            if found is None or found[0] != rank:
                continue  # one of the two was merged meanwhile
            symbols[place], symbols[right] = found[1], -1  # no pair of a place that is gone has a rank
            after[place] = after[right]
            if after[place] < end:
                before[after[place]] = place
            changed.append(place)
        for place in changed:
            for left in (before[place], place):
                if left >= 0 and after[left] < end:
                    found = merges.get((symbols[left], symbols[after[left]]))
                    if found is not None:
                        heappush(waiting, (found[0], left))
    return [each for each in symbols if each >= 0]


def find_bpe(root: Path) -> Path:
    """Return the folder of the vocabulary under the root of all data sets."""
    return find_folder(root, "the vocabulary of GPT-2", "gpt2")


def read_bpe(folder: Path) -> Bpe:
    """Read the vocabulary that lies in a folder; DataMissing where there is none, DataError where it is not whole."""
    for names in FILE_NAMES:
        vocabulary, merges = (folder / name for name in names)
        if vocabulary.is_file() or merges.is_file():
            return _read(vocabulary, merges)
    looked = [" with ".join(str(folder / name) for name in names) for names in FILE_NAMES]
    raise missing("the vocabulary of GPT-2", looked, "Download both files there.")


def bytes_as_characters() -> list[str]:
    """The printable character that stands for each byte in the files.

    Printable bytes of Latin-1 stand for themselves; the others, in order, for the characters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _read(vocabulary: Path, merges: Path) -> Bpe:
    digest = hashlib.blake2b(unicodedata.unidata_version.encode(), digest_size=16)
    texts = []
    for path in (vocabulary, merges):
        checksums.verify(path, folder=path.parent)
        with reading(path):
            data = path.read_bytes()
        digest.update(hashlib.blake2b(data).digest())
        try:
            texts.append(data.decode("utf-8"))
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise unreadable(f"{path}:{line}", "not UTF-8", REMEDY) from None
    numbers = _numbers(vocabulary, texts[0])
    for character in bytes_as_characters():
        if character not in numbers:
            raise unreadable(vocabulary, f"{character!r}, which stands for a byte, is missing", REMEDY)
    if END_OF_TEXT not in numbers:
        raise unreadable(vocabulary, f"{END_OF_TEXT!r} is missing", REMEDY)
    found = _merges(merges, texts[1], numbers, vocabulary)
    return Bpe(
        tokens=_as_bytes(numbers, found, vocabulary, merges),
        merges=found,
        end_of_text=numbers[END_OF_TEXT],
        fingerprint=digest.hexdigest(),
    )


def _numbers(path: Path, text: str) -> dict[str, int]:
    """Tokens and their numbers: each once, from 0 on, without a gap."""
    try:
        pairs = json.loads(text, object_pairs_hook=list)  # a dictionary would drop the first of two
    except json.JSONDecodeError as error:
        raise unreadable(f"{path}:{error.lineno}", f"not JSON: {error.msg}", REMEDY) from None
    except (ValueError, RecursionError) as error:
        raise unreadable(path, f"not JSON: {error}", REMEDY) from None
    if not isinstance(pairs, list) or not all(isinstance(each, tuple) for each in pairs) or not pairs:
        raise unreadable(path, "not an object of tokens and their numbers", REMEDY)
    numbers: dict[str, int] = {}
    owners: dict[int, str] = {}
    for token, number in pairs:
        if type(number) is not int or not 0 <= number < len(pairs):
            raise unreadable(
                path,
                f"the token {token!r} has the number {str(number)[:20]}",
                f"Valid: 0 to {len(pairs) - 1}, as there are {len(pairs)} tokens. {REMEDY}",
            )
        if token in numbers or number in owners:
            other = f"{token!r} stands twice" if token in numbers else f"{owners[number]!r} and {token!r}"
            raise unreadable(path, f"the number {number} is not of one token: {other}", REMEDY)
        numbers[token] = number
        owners[number] = token
    return numbers  # as many numbers as tokens, all different, all below their count: no gap


def _merges(path: Path, text: str, numbers: dict[str, int], vocabulary: Path) -> Merges:
    found: Merges = {}
    made = set(bytes_as_characters())
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if number == 1 and line.startswith("#version"):
            continue
        if number == len(lines) and not line:
            continue
        where = f"{path}:{number}"
        parts = line.removesuffix("\r").split(" ")
        if len(parts) != 2 or not all(parts):
            raise unreadable(where, f"{line[:60]!r} is not two tokens with a space between them", REMEDY)
        for part in parts:
            if part not in made:
                why = "not made by a line before this one" if part in numbers else f"not in {vocabulary}"
                raise unreadable(where, f"the token {part!r} is {why}", REMEDY)
        whole = "".join(parts)
        if whole not in numbers or whole == END_OF_TEXT:
            raise unreadable(where, f"merges to {whole!r}, which is no token of {vocabulary}", REMEDY)
        pair = numbers[parts[0]], numbers[parts[1]]
        if pair in found:
            raise unreadable(where, f"{line!r} stands further up already", REMEDY)
        found[pair] = (len(found), numbers[whole])
        made.add(whole)
    return found


def _as_bytes(numbers: dict[str, int], merges: Merges, vocabulary: Path, path: Path) -> list[bytes]:
    """The bytes of every token; a token that nothing makes is a sign of a torn list of merges."""
    made = {whole for _, whole in merges.values()}
    of_character = {character: byte for byte, character in enumerate(bytes_as_characters())}
    tokens = [b""] * len(numbers)
    unmade: list[str] = []
    for token, number in numbers.items():
        if token in of_character or number in made:
            tokens[number] = bytes(of_character[each] for each in token)
        elif _SPECIAL.fullmatch(token):
            tokens[number] = token.encode("utf-8", "replace")
        else:
            unmade.append(token)
    if unmade:
        raise unreadable(
            path,
            f"torn: no line makes {unmade[0]!r}, which is in {vocabulary}; {len(unmade)} tokens lack theirs",
            REMEDY,
        )
    return tokens
