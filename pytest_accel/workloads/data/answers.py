"""Question answering as BERT reads it: windows of one shape, each a question and a part of its paragraph.

`[CLS] question [SEP] part of the paragraph [SEP]`, as Devlin et al. (arXiv:1810.04805, section 4.2) fine-tune on SQuAD.
Long paragraphs are cut into windows that overlap. A window's target is the first and the last token of the answer; both
are 0, the place of [CLS], where the answer is not in it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, fields, replace
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from pytest_accel.workloads.data.formats.squad import find_squad, read_squad
from pytest_accel.workloads.data.formats.wordpiece import find_wordpiece, read_wordpiece

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pytest_accel.workloads.data.formats.places import Split
    from pytest_accel.workloads.data.formats.squad import Squad
    from pytest_accel.workloads.data.formats.wordpiece import Piece, WordPiece
    from pytest_accel.workloads.data.order import TrainingOrder

Tensor: TypeAlias = Any  # torch is untyped here

SEQUENCE = 384  # tokens, as are the next two: the published fine-tuning's
STRIDE = 128  # from window to window
MOST_OF_QUESTION = 64
VOCABULARY = 30522  # of bert-base-uncased
SPECIAL_TOKENS = 3  # in a window: [CLS] and two [SEP]
# Of the published uncased vocabulary, for data that is made up.
PAD, CLS, SEP, FIRST_WORD = 0, 101, 102, 999


class Questions(NamedTuple):
    """What a model reads of a batch: int64, (batch, sequence)."""

    input_ids: Tensor
    attention_mask: Tensor
    token_type_ids: Tensor


class Answers(NamedTuple):
    """The first and the last token of each answer, int64 (batch,); or a model's logits of both, (batch, sequence)."""

    start: Tensor
    end: Tensor


class QuestionBatch(NamedTuple):
    """What BERT takes, by transformers' names: int64, (batch, sequence) and for positions (batch,)."""

    input_ids: Tensor
    attention_mask: Tensor  # 1 where there is a token, 0 where it was filled up
    token_type_ids: Tensor  # 0 in the question, 1 in the paragraph, 0 where it was filled up
    start_positions: Tensor
    end_positions: Tensor

    def split(self) -> tuple[Questions, Answers]:
        """What a model reads, and what it is asked for."""
        return Questions(*self[:3]), Answers(*self[3:])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Windows:
    """All windows of a set, in memory. Masks and types are made of two lengths when a batch is asked for."""

    tokens: Tensor  # int32 (N, sequence)
    question_ends: Tensor  # int32 (N,), behind the first [SEP]
    lengths: Tensor  # int32 (N,), behind the second
    starts: Tensor  # int32 (N,), of the answer
    ends: Tensor  # int32 (N,), of its last token
    questions: Tensor  # int32 (N,), of which question of the set
    unreached: int  # answers that are in no window: longer than windows overlap

    def __len__(self) -> int:
        return len(self.tokens)

    def to(self, device: torch.device) -> Windows:
        """The same in the memory of a device."""
        moved = {
            entry.name: getattr(self, entry.name).to(device)
            for entry in fields(self)
            if entry.name != "unreached"
        }
        return replace(self, **moved)

    def read(self, indices: Sequence[int]) -> QuestionBatch:
        chosen, device = torch.as_tensor(indices), self.tokens.device
        if device.type != "cpu":  # pinned, it crosses without anybody waiting
            chosen = chosen.pin_memory().to(device, non_blocking=True)
        place = torch.arange(self.tokens.shape[1], device=device)
        real = place < self.lengths[chosen, None]
        return QuestionBatch(
            input_ids=self.tokens[chosen].long(),
            attention_mask=real.long(),
            token_type_ids=(real & (place >= self.question_ends[chosen, None])).long(),
            start_positions=self.starts[chosen].long(),
            end_positions=self.ends[chosen].long(),
        )


def open_squad(root: Path, split: Split, *, version: str = "1.1", sequence: int = SEQUENCE) -> Windows:
    """Return the windows of `squad/` with the vocabulary of `bert-base-uncased/`, both under the root of all data sets.

    DataMissing where one of them is not there, DataError where it is and cannot be read.
    """
    path = find_squad(root, split, version=version)
    vocabulary = read_wordpiece(find_wordpiece(root))
    # A short sequence is not all question.
    longest = min(MOST_OF_QUESTION, sequence // 2)
    return cut_windows(read_squad(path), vocabulary, sequence=sequence, most_of_question=longest)


def cut_windows(
    squad: Squad,
    vocabulary: WordPiece,
    *,
    sequence: int = SEQUENCE,
    stride: int = STRIDE,
    most_of_question: int = MOST_OF_QUESTION,
) -> Windows:
    """Tokenise a set and cut it into windows; a question that is too long loses its end.

    Windows begin `stride` tokens after each other, or half of what they hold of a paragraph, if that is less: at
    sequence 128 windows would otherwise not overlap, and answers would fall between them.
    """
    room = sequence - SPECIAL_TOKENS - most_of_question
    if room < 2 or stride < 1 or most_of_question < 1:
        raise ValueError(
            f"sequence: {sequence} tokens with questions of {most_of_question} and a stride of {stride} hold no window. "
            f"Valid: a sequence of {most_of_question + SPECIAL_TOKENS + 2} or more, and positive numbers."
        )
    cut = _Cut(vocabulary, sequence)
    paragraphs: dict[int, list[Piece]] = {}
    for number, question in enumerate(squad.questions):
        pieces = paragraphs.get(question.paragraph)
        if pieces is None:
            # Questions of a paragraph stand together: the last one's pieces are enough.
            pieces = vocabulary.pieces(squad.paragraphs[question.paragraph])
            paragraphs = {question.paragraph: pieces}
        asked = vocabulary.encode(question.text)[:most_of_question]
        cut.add(number, asked, pieces, question.answer, stride)
    return cut.windows()


def spans(pieces: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """Where windows over a paragraph begin and end; the last one reaches its end."""
    step = min(stride, max(1, room // 2))
    for first in count(0, step):
        yield first, min(first + room, pieces)
        if first + room >= pieces:
            return


def answer_pieces(pieces: Sequence[Piece], answer: tuple[int, int]) -> tuple[int, int] | None:
    """The first and the last piece that an answer has characters of; None: it has none."""
    first = bisect_right(pieces, answer[0], key=lambda piece: piece.end)
    last = bisect_left(pieces, answer[1], key=lambda piece: piece.start) - 1
    return (first, last) if first <= last else None


class _Cut:
    """Windows as they are cut, row by row."""

    def __init__(self, vocabulary: WordPiece, sequence: int) -> None:
        self._vocabulary = vocabulary
        self._sequence = sequence
        self._rows: list[np.ndarray[Any, np.dtype[np.int32]]] = []
        self._facts: list[tuple[int, int, int, int, int]] = []
        self._unreached = 0

    def add(
        self,
        number: int,
        asked: list[int],
        pieces: list[Piece],
        answer: tuple[int, int] | None,
        stride: int,
    ) -> None:
        """All windows of one question."""
        cls, sep = self._vocabulary.cls, self._vocabulary.sep
        begin = len(asked) + 2
        room = self._sequence - begin - 1
        tokens = [piece.token for piece in pieces]
        wanted = answer_pieces(pieces, answer) if answer else None
        reached = False
        for first, end in spans(len(pieces), room, stride):
            row = np.full(self._sequence, self._vocabulary.pad, np.int32)
            length = begin + end - first + 1
            row[:length] = [cls, *asked, sep, *tokens[first:end], sep]
            start_position = end_position = 0
            if wanted and first <= wanted[0] and wanted[1] < end:
                start_position, end_position = (begin + each - first for each in wanted)
                reached = True
            self._rows.append(row)
            self._facts.append((begin, length, start_position, end_position, number))
        self._unreached += answer is not None and not reached

    def windows(self) -> Windows:
        facts = torch.tensor(self._facts, dtype=torch.int32).unbind(1)
        return Windows(
            tokens=torch.from_numpy(np.stack(self._rows)),
            question_ends=facts[0],
            lengths=facts[1],
            starts=facts[2],
            ends=facts[3],
            questions=facts[4],
            unreached=self._unreached,
        )


class QuestionSource:
    """Batches of windows in the order of a rank: endless, as a step takes them.

    All windows lie on the device, where a step picks its own: SQuAD's 90,000 of 384 tokens take 140 MB.
    """

    buffered, burst = 0, 1
    loads = True

    def __init__(self, windows: Windows, order: TrainingOrder, device: torch.device) -> None:
        if order.length != len(windows):
            raise ValueError(f"order: of {order.length} samples, and there are {len(windows)} windows.")
        self._windows: Windows | None = windows.to(device)
        self._order = order
        self._steps = count()

    def __next__(self) -> tuple[Questions, Answers]:
        if self._windows is None:
            raise StopIteration
        return self._windows.read(self._order.indices(next(self._steps))).split()

    def close(self) -> None:
        self._windows = None


def synthetic_squad(batch: int, sequence: int, vocabulary: int, generator: torch.Generator) -> QuestionBatch:
    """Make a batch up on the generator's device: windows of all lengths from half a sequence to a whole one.

    Every window has its answer. Its lengths are drawn, and are no statistics of SQuAD.
    """
    least = 8
    if sequence < 2 * least or vocabulary <= FIRST_WORD:
        raise ValueError(
            f"sequence: {sequence} tokens of a vocabulary of {vocabulary} are too few. "
            f"Valid: {2 * least} tokens or more, of {FIRST_WORD + 1} or more."
        )
    device = generator.device

    def drawn(low: int, high: int, *size: int) -> Tensor:
        return torch.randint(low, high, size, generator=generator, device=device)

    lengths = drawn(sequence // 2, sequence + 1, batch, 1)
    question_ends = drawn(3, max(4, min(MOST_OF_QUESTION, sequence // 4) + 3), batch, 1)
    place = torch.arange(sequence, device=device)
    tokens = drawn(FIRST_WORD, vocabulary, batch, sequence)
    tokens = torch.where((place == question_ends - 1) | (place == lengths - 1), SEP, tokens)
    tokens = torch.where(place == 0, CLS, torch.where(place < lengths, tokens, PAD))
    # Two places in the paragraph: the answer runs from the lower to the higher.
    ends = (
        question_ends
        + (torch.rand(batch, 2, generator=generator, device=device) * (lengths - 1 - question_ends)).long()
    )
    return QuestionBatch(
        input_ids=tokens,
        attention_mask=(place < lengths).long(),
        token_type_ids=((place >= question_ends) & (place < lengths)).long(),
        start_positions=ends.amin(1),
        end_positions=ends.amax(1),
    )
