"""Vocabularies of GPT-2 and BERT, read from their published files; the `tokenizers` package encodes.

The files are checked before they are used: `tokenizers` silently drops bytes that a damaged GPT-2 vocabulary lacks, and
silently merges less with a torn list of merges.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pytest_accel.workloads.data.errors import DataError, find_folder, missing, read_text, unreadable

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

Tokenizer: TypeAlias = Any  # tokenizers' types are not checked here

# Of Hugging Face, OpenAI and Megatron: the same two files.
GPT2_FILES = (
    ("vocab.json", "merges.txt"),
    ("encoder.json", "vocab.bpe"),
    ("gpt2-vocab.json", "gpt2-merges.txt"),
)
GPT2_REMEDY = "Download both files of the vocabulary again: they belong together."
END_OF_TEXT = "<|endoftext|>"
BERT_REMEDY = "Download vocab.txt again."
BERT_UNKNOWN = "[UNK]"
BERT_SPECIAL = ("[PAD]", BERT_UNKNOWN, "[CLS]", "[SEP]")
LONGEST_WORD = 200  # characters; a longer word is unknown, as in the published tokenizer
_SPECIAL = re.compile(r"<.+>")  # a token that no merge makes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gpt2Vocabulary:
    """Byte-level BPE: every text has tokens, and they decode to it. `<|endoftext|>` in a text is plain text."""

    tokenizer: Tokenizer
    size: int
    end_of_text: int
    fingerprint: str  # of both files and the version of tokenizers

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint16 if self.size <= 2**16 else np.uint32)

    def encode(self, text: str) -> NDArray[Any]:
        """Return the tokens of a text, in `dtype`."""
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BertVocabulary:
    """Uncased WordPiece: tokens, and the characters of the text that each covers."""

    tokenizer: Tokenizer
    size: int
    pad: int
    cls: int
    sep: int

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the tokens of a text, and the first and last + 1 character of each."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets


def find_gpt2(root: Path) -> Path:
    """Return the folder of GPT-2's vocabulary under the root of all data sets."""
    return find_folder(root, "the vocabulary of GPT-2", "gpt2")


def find_bert(root: Path) -> Path:
    """Return the folder of BERT's vocabulary under the root of all data sets."""
    return find_folder(root, "the vocabulary of BERT", "bert-base-uncased")


def read_gpt2(folder: Path) -> Gpt2Vocabulary:
    """Read GPT-2's vocabulary; DataMissing where there is none, DataError where it is damaged."""
    for names in GPT2_FILES:
        vocabulary, merges = (folder / name for name in names)
        if vocabulary.is_file() or merges.is_file():
            return _read_gpt2(vocabulary, merges)
    searched = [" with ".join(str(folder / name) for name in names) for names in GPT2_FILES]
    raise missing("the vocabulary of GPT-2", searched, "Download both files there.")


def _read_gpt2(vocabulary: Path, merges: Path) -> Gpt2Vocabulary:
    library = _library(vocabulary)
    tokens_text, merges_text = (read_text(path, GPT2_REMEDY) for path in (vocabulary, merges))
    numbers = _numbers(vocabulary, tokens_text)
    alphabet = set(library.pre_tokenizers.ByteLevel.alphabet())
    for needed in (*sorted(alphabet), END_OF_TEXT):
        if needed not in numbers:
            raise unreadable(vocabulary, f"{needed!r} is missing", GPT2_REMEDY)
    pairs = _merges(merges, merges_text, numbers)
    made = alphabet | {left + right for left, right in pairs}
    if unmade := [token for token in numbers if token not in made and not _SPECIAL.fullmatch(token)]:
        problem = f"torn: no line makes {unmade[0]!r} of {vocabulary}; {len(unmade)} tokens lack theirs"
        raise unreadable(merges, problem, GPT2_REMEDY)
    tokenizer = library.Tokenizer(library.models.BPE(vocab=numbers, merges=pairs))
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    digest = hashlib.blake2b(library.__version__.encode(), digest_size=16)
    digest.update(f"{len(tokens_text)}/{tokens_text}{merges_text}".encode())
    return Gpt2Vocabulary(
        tokenizer=tokenizer,
        size=len(numbers),
        end_of_text=numbers[END_OF_TEXT],
        fingerprint=digest.hexdigest(),
    )


def _numbers(path: Path, text: str) -> dict[str, int]:
    """Return tokens and their numbers, from 0 on without a gap or a duplicate."""
    try:
        numbers = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise unreadable(path, f"not JSON: {error}", GPT2_REMEDY) from None
    if not isinstance(numbers, dict) or not all(type(number) is int for number in numbers.values()):
        raise unreadable(path, "not an object of tokens and their numbers", GPT2_REMEDY)
    if sorted(numbers.values()) != list(range(len(numbers))):
        problem = f"the numbers of its {len(numbers)} tokens are not 0 to {len(numbers) - 1}, each once"
        raise unreadable(path, problem, GPT2_REMEDY)
    return numbers


def _merges(path: Path, text: str, numbers: dict[str, int]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for line_number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        if line_number == 1 and line.startswith("#version"):
            continue
        parts = line.removesuffix("\r").split(" ")
        if len(parts) != 2 or not all(part in numbers for part in (*parts, "".join(parts))):
            problem = f"{line[:60]!r} is not two tokens of the vocabulary that make a third"
            raise unreadable(f"{path}:{line_number}", problem, GPT2_REMEDY)
        pairs.append((parts[0], parts[1]))
    return pairs


def read_bert(folder: Path) -> BertVocabulary:
    """Read BERT's vocabulary, one token a line; DataMissing where there is none, DataError where it is damaged."""
    path = folder / "vocab.txt"
    if not path.is_file():
        raise missing("the vocabulary of BERT", [path], "Download it there.")
    library = _library(path)
    numbers: dict[str, int] = {}
    for number, line in enumerate(read_text(path, BERT_REMEDY).removesuffix("\n").split("\n")):
        token = line.removesuffix("\r")
        if not token or token in numbers:
            problem = f"{token!r} is on line {numbers[token] + 1} too" if token else "empty, not a token"
            raise unreadable(f"{path}:{number + 1}", problem, BERT_REMEDY)
        numbers[token] = number
    for special in BERT_SPECIAL:
        if special not in numbers:
            raise unreadable(path, f"{special} is not in it", BERT_REMEDY)
    model = library.models.WordPiece(
        vocab=numbers, unk_token=BERT_UNKNOWN, max_input_chars_per_word=LONGEST_WORD
    )
    tokenizer = library.Tokenizer(model)
    tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    return BertVocabulary(
        tokenizer=tokenizer,
        size=len(numbers),
        pad=numbers["[PAD]"],
        cls=numbers["[CLS]"],
        sep=numbers["[SEP]"],
    )


def _library(path: Path) -> Any:
    try:
        import tokenizers
    except ImportError:
        remedy = "Run: pip install tokenizers (it comes with transformers)"
        raise DataError(
            f"{path}: the tokenizers package, which reads it, is not installed.\n{remedy}"
        ) from None
    return tokenizers
