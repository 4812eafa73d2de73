"""Question answering on SQuAD 1.1: windows of one length, `[CLS] question [SEP] part of the paragraph [SEP]`.

As BERT is fine-tuned (arXiv:1810.04805, section 4.2): long paragraphs are cut into overlapping windows. The target of a
window is the first and the last token of the answer, or 0 twice, the position of [CLS], where the answer is not in it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, fields, replace
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from pytest_accel.workloads.data.errors import find_folder, missing, read_json, unreadable
from pytest_accel.workloads.data.vocabularies import find_bert, read_bert

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pytest_accel.workloads.data.errors import Split
    from pytest_accel.workloads.data.order import TrainingOrder
    from pytest_accel.workloads.data.vocabularies import BertVocabulary

Tensor: TypeAlias = Any  # torch is untyped here

FILES = {"train": "train-v1.1.json", "test": "dev-v1.1.json"}  # the test set's answers were never published
REMEDY = "Download the file again."
MISPLACED_SHARE = 0.01  # of the answers, that may be dropped; with more the file is something else

SEQUENCE = 384  # tokens, as are the next two, of the published fine-tuning
STRIDE = 128  # from window to window
MAX_QUESTION = 64
VOCABULARY = 30522  # of bert-base-uncased
SPECIAL_TOKENS = 3  # of a window: [CLS] and two [SEP]
# Of the published uncased vocabulary, for synthetic data.
PAD, CLS, SEP, FIRST_WORD = 0, 101, 102, 999


class Question(NamedTuple):
    """A question about a paragraph, and the characters of its first answer there."""

    text: str
    paragraph: str
    answer: tuple[int, int]  # first, last + 1


def find_squad(root: Path, split: Split) -> Path:
    """Return the file of a split under the root of all data sets."""
    path = find_folder(root, "squad", "squad") / FILES[split]
    if not path.is_file():
        raise missing("squad", [path], "Download it there.")
    return path


def read_squad(path: Path) -> list[Question]:
    """Read a file; DataError with the question where it is not SQuAD.

    Some of 100,000 answers are not at their answer_start: they are dropped, up to one in a hundred.
    """
    content = read_json(path, REMEDY)
    questions: list[Question] = []
    misplaced: list[str] = []
    where = "the file"
    try:
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                context = _string(paragraph["context"])
                for asked in paragraph["qas"]:
                    where = f"question {asked['id']}"
                    answer, start = asked["answers"][0]["text"], asked["answers"][0]["answer_start"]
                    question = Question(_string(asked["question"]), context, (start, start + len(answer)))
                    if start >= 0 and answer.strip() and context[start : start + len(answer)] == answer:
                        questions.append(question)
                    else:
                        misplaced.append(where)
    except KeyError as error:
        raise unreadable(path, f"{where}, or the one after it: has no {error}", REMEDY) from None
    except (TypeError, IndexError, AttributeError) as error:
        raise unreadable(path, f"{where}, or the one after it: {error}", REMEDY) from None
    answers = len(questions) + len(misplaced)
    if len(misplaced) > MISPLACED_SHARE * answers:
        problem = (
            f"{misplaced[0]}: its answer is not at its answer_start; {len(misplaced)} of {answers} are so"
        )
        raise unreadable(path, problem, f"{REMEDY} Up to {MISPLACED_SHARE:.0%} are dropped.")
    if not questions:
        raise unreadable(path, "no question in it", REMEDY)
    return questions


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:60]} is not a string")
    return value


class Questions(NamedTuple):
    """Inputs of a model: int64, (batch, sequence)."""

    input_ids: Tensor
    attention_mask: Tensor  # 1 for a token, 0 for padding
    token_type_ids: Tensor  # 0 in the question, 1 in the paragraph, 0 for padding


class Answers(NamedTuple):
    """The first and the last token of each answer, int64 (batch,); or a model's logits of both, (batch, sequence)."""

    start: Tensor
    end: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Windows:
    """All windows of a set, in memory. Masks and types are computed for each batch from two lengths."""

    tokens: Tensor  # int32 (N, sequence)
    question_ends: Tensor  # int32 (N,), after the first [SEP]
    lengths: Tensor  # int32 (N,), after the second
    starts: Tensor  # int32 (N,), of the answer
    ends: Tensor  # int32 (N,), of its last token

    def __len__(self) -> int:
        return len(self.tokens)

    def to(self, device: torch.device) -> Windows:
        """Return a copy on a device."""
        return replace(self, **{each.name: getattr(self, each.name).to(device) for each in fields(self)})

    def read(self, indices: Sequence[int]) -> tuple[Questions, Answers]:
        """Return a batch on the device of the windows."""
        chosen, device = torch.as_tensor(indices), self.tokens.device
        if device.type != "cpu":  # pinned, it crosses without a wait
            chosen = chosen.pin_memory().to(device, non_blocking=True)
        place = torch.arange(self.tokens.shape[1], device=device)
        real = place < self.lengths[chosen, None]
        questions = Questions(
            input_ids=self.tokens[chosen].long(),
            attention_mask=real.long(),
            token_type_ids=(real & (place >= self.question_ends[chosen, None])).long(),
        )
        return questions, Answers(start=self.starts[chosen].long(), end=self.ends[chosen].long())


def open_squad(root: Path, split: Split, *, sequence: int = SEQUENCE) -> Windows:
    """Return the windows of `squad/` with the vocabulary of `bert-base-uncased/`, both under the root of all data sets.

    DataMissing where one of them is not there, DataError where it cannot be read.
    """
    path = find_squad(root, split)
    vocabulary = read_bert(find_bert(root))
    # A question takes at most half of a short sequence.
    return cut_windows(
        read_squad(path), vocabulary, sequence=sequence, max_question=min(MAX_QUESTION, sequence // 2)
    )


def cut_windows(
    questions: Sequence[Question],
    vocabulary: BertVocabulary,
    *,
    sequence: int = SEQUENCE,
    stride: int = STRIDE,
    max_question: int = MAX_QUESTION,
) -> Windows:
    """Encode a set and cut it into windows; a question that is too long loses its end.

    Windows begin `stride` tokens after each other, or half of their part of a paragraph if that is less: at sequence
    128 windows would otherwise not overlap, and answers would be cut.
    """
    if sequence - SPECIAL_TOKENS - max_question < 2 or stride < 1 or max_question < 1:
        raise ValueError(
            f"sequence: {sequence} tokens with questions of {max_question} and a stride of {stride} hold no window. "
            f"Valid: a sequence of {max_question + SPECIAL_TOKENS + 2} or more, and positive numbers."
        )
    rows: list[Any] = []
    facts: list[tuple[int, int, int, int]] = []
    context: str | None = None
    tokens: list[int] = []
    offsets: list[tuple[int, int]] = []
    for text, paragraph, answer in questions:
        if paragraph is not context:  # questions of one paragraph follow each other
            context = paragraph
            tokens, offsets = vocabulary.encode(paragraph)
        question = vocabulary.encode(text)[0][:max_question]
        begin = len(question) + 2
        wanted = answer_tokens(offsets, answer)
        for first, end in spans(len(tokens), sequence - begin - 1, stride):
            row = np.full(sequence, vocabulary.pad, np.int32)
            length = begin + end - first + 1
            row[:length] = [vocabulary.cls, *question, vocabulary.sep, *tokens[first:end], vocabulary.sep]
            start_position = end_position = 0
            if wanted and first <= wanted[0] and wanted[1] < end:
                start_position, end_position = (begin + each - first for each in wanted)
            rows.append(row)
            facts.append((begin, length, start_position, end_position))
    question_ends, lengths, starts, ends = torch.tensor(facts, dtype=torch.int32).unbind(1)
    return Windows(
        tokens=torch.from_numpy(np.stack(rows)),
        question_ends=question_ends,
        lengths=lengths,
        starts=starts,
        ends=ends,
    )


def spans(tokens: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """Yield where windows over a paragraph begin and end; the last one reaches its end."""
    step = min(stride, max(1, room // 2))
    for first in count(0, step):
        yield first, min(first + room, tokens)
        if first + room >= tokens:
            return


def answer_tokens(offsets: Sequence[tuple[int, int]], answer: tuple[int, int]) -> tuple[int, int] | None:
    """Return the first and the last token that has characters of an answer; None where none has."""
    first = bisect_right(offsets, answer[0], key=lambda offset: offset[1])
    last = bisect_left(offsets, answer[1], key=lambda offset: offset[0]) - 1
    return (first, last) if first <= last else None


class QuestionSource:
    """Batch source of windows in the order of a rank, all on the device: SQuAD's 90,000 of 384 tokens take 140 MB."""

    buffered, burst = 0, 1
    loads = True

    def __init__(self, windows: Windows, order: TrainingOrder, device: torch.device) -> None:
        self._windows: Windows | None = windows.to(device)
        self._order = order
        self._steps = count()

    def __next__(self) -> tuple[Questions, Answers]:
        if self._windows is None:
            raise StopIteration
        return self._windows.read(self._order.indices(next(self._steps)))

    def close(self) -> None:
        self._windows = None


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
