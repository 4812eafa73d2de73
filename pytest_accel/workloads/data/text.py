"""Text data: GPT-2's texts in a token file that is mapped into memory, and SQuAD's questions for BERT.

The `tokenizers` package encodes with the vocabularies' published files. SQuAD is cut as BERT is fine-tuned
(arXiv:1810.04805, section 4.2): windows of one length, `[CLS] question [SEP] part of the paragraph [SEP]`. The target of a
window is the first and the last token of the answer, or 0 twice, the position of [CLS], where the answer is not in it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from pytest_accel.workloads.data.files import (
    Split,
    cached_array,
    find_folder,
    missing,
    read_json,
    reading,
    unreadable,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

Tensor: TypeAlias = Any  # torch is untyped here
Tokenizer: TypeAlias = Any  # tokenizers' types are not checked here

TEXT_ENDINGS = (".jsonl", ".jsonl.gz")
TEXT_KEYS = ("text", "content")  # OSCAR of 2019, and from 22.01 on
TEXT_REMEDY = 'Valid: an object with a string "text" on every line. Correct or remove the line, or download the file again.'
END_OF_TEXT = "<|endoftext|>"
_SPECIAL = re.compile(r"<.+>")  # a token that no merge makes

SQUAD_FILES = {
    "train": "train-v1.1.json",
    "test": "dev-v1.1.json",
}  # answers of the test set are not published
SEQUENCE = 384  # tokens, as are the next two, of the published fine-tuning
OVERLAP = 128  # of two windows of one paragraph
MAX_QUESTION = 64
SPECIAL_TOKENS = 3  # of a window: [CLS] and two [SEP]
VOCABULARY = 30522  # of bert-base-uncased
# Of the published uncased vocabulary, for synthetic data.
PAD, CLS, SEP, FIRST_WORD = 0, 101, 102, 999


@contextmanager
def _vocabulary(*files: Path) -> Iterator[tuple[Any, list[str]]]:
    """Give the tokenizers package, and the paths of a vocabulary's files; DataMissing where one is not there."""
    if not all(file.is_file() for file in files):
        raise missing("the vocabulary", files, "Download it there.")
    where = " and ".join(map(str, files))
    try:
        import tokenizers

        yield tokenizers, [str(file) for file in files]
    except ImportError:
        problem = "the tokenizers package, which reads it, is not installed"
        raise unreadable(where, problem, "Run: pip install tokenizers (it comes with transformers)") from None
    except Exception as error:  # noqa: BLE001 - tokenizers raises nothing narrower
        raise unreadable(where, error) from None


def _fingerprint(tokenizer: Tokenizer) -> str:
    return hashlib.blake2b(tokenizer.to_str().encode()).hexdigest()


# --- texts ------------------------------------------------------------------------------------------


def load_gpt2(folder: Path) -> Tokenizer:
    """Load GPT-2's byte-level BPE: every text has tokens, and they decode to it. `<|endoftext|>` in a text is plain text."""
    with _vocabulary(folder / "vocab.json", folder / "merges.txt") as (tokenizers, paths):
        numbers, merges = tokenizers.models.BPE.read_file(*paths)
        # tokenizers silently drops bytes that a vocabulary lacks, and merges less with a torn list of merges.
        if absent := {END_OF_TEXT, *tokenizers.pre_tokenizers.ByteLevel.alphabet()} - numbers.keys():
            raise ValueError(f"no token {min(absent)!r}")
        made = sum(not _SPECIAL.fullmatch(token) for token in numbers) - 256
        if made > len(merges):
            raise ValueError(f"torn: {len(merges)} merges cannot make {made} tokens")
        return tokenizers.ByteLevelBPETokenizer(numbers, merges)


def find_texts(root: Path | None, _split: Split = "train") -> tuple[list[Path], Path]:
    """Return the files of texts under the root of all data sets, in the order of their names, and the vocabulary's folder."""
    folder = find_folder(root, "oscar", "oscar")
    with reading(folder):
        found = sorted(each for each in folder.glob("[!.]*") if each.name.endswith(TEXT_ENDINGS))
    if not found:
        searched = [folder / f"*{ending}" for ending in TEXT_ENDINGS]
        raise missing("oscar", searched, "Put the files of texts there.")
    return found, find_folder(root, "the vocabulary of GPT-2", "gpt2")


def encode_texts(path: Path, tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Yield the tokens of each text of a file, and end_of_text; DataError with the line that cannot be read."""
    end_of_text = tokenizer.token_to_id(END_OF_TEXT)
    number = 0
    try:
        with reading(path), (gzip.open if path.suffix == ".gz" else open)(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):  # noqa: B007 - for the errors below
                if line.strip():
                    record = json.loads(line)
                    text = next((record[key] for key in TEXT_KEYS if key in record), None)
                    if text != "":
                        yield [*tokenizer.encode(text).ids, end_of_text]
    except (ValueError, TypeError, RecursionError) as error:
        raise unreadable(f"{path}:{number}", error, TEXT_REMEDY) from None
    except (EOFError, zlib.error) as error:
        raise unreadable(f"{path}:{number + 1}", f"torn: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sequences:
    """Sequences of `length` inputs and as many targets, which are the inputs one token later.

    Documents are end to end, each followed by end_of_text. A sequence begins where the last one stopped, so that every
    token is a target once; the rest at the end that fills no sequence is not used.
    """

    path: Path  # of the tokens
    tokens: NDArray[Any]  # uint16 or uint32 (N,), mapped
    vocabulary: int  # tokens are below
    length: int

    def __post_init__(self) -> None:
        if not len(self):
            problem = f"{len(self.tokens)} tokens are not one sequence of {self.length} and its targets"
            raise unreadable(self.path, problem, "Put more texts there, or ask for shorter sequences.")

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def read(self, indices: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
        """Return inputs and targets on the device, int64 (sequences, length) each."""
        rows = [self.tokens[index * self.length :][: self.length + 1] for index in indices]
        tokens = torch.from_numpy(np.stack(rows).astype(np.int64))
        # A token outside the vocabulary is a device-side assertion on CUDA, which ends the process.
        if (most := int(tokens.max())) >= self.vocabulary:
            problem = f"damaged: it has the token {most}, and there are {self.vocabulary}"
            raise unreadable(self.path, problem, "Remove it: it will be written again.")
        if device.type == "cuda":  # pinned, a few hundred kilobytes cross without a wait
            tokens = tokens.pin_memory().to(device, non_blocking=True)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def open_texts(root: Path | None, *, length: int) -> Sequences:
    """Return the tokens of `oscar/` with the vocabulary of `gpt2/`, both under the root; they are encoded once.

    DataMissing where a part is not there, DataError where it cannot be read.
    """
    files, folder = find_texts(root)
    tokenizer = load_gpt2(folder)
    size = max(tokenizer.get_vocab().values()) + 1
    dtype = np.uint16 if size <= 2**16 else np.uint32

    def build() -> NDArray[Any]:
        parts = [np.array(each, dtype) for file in files for each in encode_texts(file, tokenizer)]
        if not parts:
            raise unreadable(files[0], "no document in it, nor in any file beside it", "Put texts there.")
        return np.concatenate(parts)

    path, tokens = cached_array("tokens", files, _fingerprint(tokenizer), build)
    return Sequences(path=path, tokens=tokens, vocabulary=size, length=length)


# --- questions --------------------------------------------------------------------------------------


class Question(NamedTuple):
    """A question about a paragraph, and the characters of its first answer there."""

    text: str
    paragraph: str
    answer: tuple[int, int]  # first, last + 1


class Questions(NamedTuple):
    """Inputs of a model: (batch, sequence)."""

    input_ids: Tensor
    attention_mask: Tensor  # 1 for a token, 0 for padding
    token_type_ids: Tensor  # 0 in the question, 1 in the paragraph, 0 for padding


class Answers(NamedTuple):
    """The first and the last token of each answer, (batch,); or a model's logits of both, (batch, sequence)."""

    start: Tensor
    end: Tensor


def load_bert(folder: Path) -> Tokenizer:
    """Load BERT's uncased WordPiece."""
    with _vocabulary(folder / "vocab.txt") as (tokenizers, paths):
        numbers = tokenizers.models.WordPiece.read_file(*paths)
        if absent := {"[PAD]", "[UNK]", "[CLS]", "[SEP]"} - numbers.keys():
            raise ValueError(f"no token {min(absent)}")
        return tokenizers.BertWordPieceTokenizer(numbers)


def find_squad(root: Path | None, split: Split) -> tuple[Path, Path]:
    """Return the file of a split under the root of all data sets, and the vocabulary's folder."""
    path = find_folder(root, "squad", "squad") / SQUAD_FILES[split]
    if not path.is_file():
        raise missing("squad", [path], "Download it there.")
    return path, find_folder(root, "the vocabulary of BERT", "bert-base-uncased")


def read_squad(path: Path) -> list[Question]:
    """Read a file without the few answers that are not at their answer_start; DataError where it is not SQuAD."""
    questions: list[Question] = []
    where = "the file"
    try:
        for article in read_json(path)["data"]:
            for paragraph in article["paragraphs"]:
                context = paragraph["context"]
                for asked in paragraph["qas"]:
                    where = f"question {asked['id']}"
                    answer, start = asked["answers"][0]["text"], asked["answers"][0]["answer_start"]
                    end = start + len(answer)
                    if 0 <= start < end and context[start:end] == answer:
                        questions.append(Question(asked["question"], context, (start, end)))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise unreadable(f"{path}: {where} or the next one", error) from None
    if not questions:
        raise unreadable(path, "no question with an answer in it")
    return questions


def open_squad(root: Path | None, split: Split, *, sequence: int = SEQUENCE) -> tuple[Questions, Answers]:
    """Return the windows of `squad/` with the vocabulary of `bert-base-uncased/`, both under the root; they are cut once.

    DataMissing where one of them is not there, DataError where it cannot be read.
    """
    path, folder = find_squad(root, split)
    tokenizer = load_bert(folder)
    _, windows = cached_array(
        f"squad-{split}-{sequence}",
        [path],
        _fingerprint(tokenizer),
        lambda: cut_windows(read_squad(path), tokenizer, sequence=sequence),
    )
    columns = [torch.from_numpy(np.array(windows[name])) for name in windows.dtype.names or ()]
    return Questions(*columns[:3]), Answers(*columns[3:])


def cut_windows(
    questions: Sequence[Question], tokenizer: Tokenizer, *, sequence: int = SEQUENCE
) -> NDArray[Any]:
    """Encode a set and cut it into windows of one length, which overlap where a paragraph needs several.

    A record has the fields of Questions and Answers. SQuAD's 90,000 windows of 384 tokens take 210 MB.
    """
    most = min(MAX_QUESTION, sequence // 2)  # tokens of a question: one that is longer loses its end
    room = sequence - SPECIAL_TOKENS - most  # for the paragraph, at least
    if room < 2:
        raise ValueError(
            f"sequence: {sequence} tokens hold no window. Valid: {2 * SPECIAL_TOKENS + 4} or more."
        )
    asked = [_cut(tokenizer, question.text, most) for question in questions]
    tokenizer.enable_truncation(sequence, stride=min(OVERLAP, room // 2), strategy="only_second")
    tokenizer.enable_padding(length=sequence, pad_id=tokenizer.token_to_id("[PAD]"))
    masks = [(name, np.uint8, sequence) for name in Questions._fields[1:]]
    places = [(name, np.int32) for name in Answers._fields]
    record = np.dtype([("input_ids", np.int32, sequence), *masks, *places])
    rows: list[NDArray[Any]] = []
    for text, (_, paragraph, answer) in zip(asked, questions, strict=True):
        whole = tokenizer.encode(text, paragraph)
        for window in (whole, *whole.overflowing):
            first, last = (window.char_to_token(each, 1) for each in (answer[0], answer[1] - 1))
            if first is None or last is None:
                first = last = 0
            tokens = window.ids, window.attention_mask, window.type_ids
            rows.append(np.array((*tokens, first, last), record))
    return np.stack(rows)


def _cut(tokenizer: Tokenizer, text: str, most: int) -> str:
    """Return a text up to the end of so many tokens."""
    offsets = tokenizer.encode(text, add_special_tokens=False).offsets
    return text if len(offsets) <= most else text[: offsets[most - 1][1]]


def synthetic_squad(
    batch: int, sequence: int, vocabulary: int, generator: torch.Generator
) -> tuple[Questions, Answers]:
    """Draw a batch on the generator's device: windows from half a sequence to a whole one, each with its answer.

    The lengths do not follow SQuAD's statistics.
    """
    least = 8
    if sequence < 2 * least or vocabulary <= FIRST_WORD:
        raise ValueError(
            f"sequence: {sequence} tokens of a vocabulary of {vocabulary} are too few. "
            f"Valid: {2 * least} tokens or more, of {FIRST_WORD + 1} or more."
        )
    device = generator.device

    def draw(low: int, high: int, *size: int) -> Tensor:
        return torch.randint(low, high, size, generator=generator, device=device)

    lengths = draw(sequence // 2, sequence + 1, batch, 1)
    question_ends = draw(3, max(4, min(MAX_QUESTION, sequence // 4) + 3), batch, 1)
    place = torch.arange(sequence, device=device)
    tokens = draw(FIRST_WORD, vocabulary, batch, sequence)
    tokens = torch.where((place == question_ends - 1) | (place == lengths - 1), SEP, tokens)
    tokens = torch.where(place == 0, CLS, torch.where(place < lengths, tokens, PAD))
    # Two positions in the paragraph: the answer runs from the lower to the higher.
    shares = torch.rand(batch, 2, generator=generator, device=device)
    ends = question_ends + (shares * (lengths - 1 - question_ends)).long()
    real = place < lengths
    questions = Questions(
        input_ids=tokens,
        attention_mask=real.long(),
        token_type_ids=((place >= question_ends) & real).long(),
    )
    return questions, Answers(start=ends.amin(1), end=ends.amax(1))
