"""Language modelling on synthetic tokens or texts, and question answering on synthetic windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from pytest_accel.workloads.config import Configuration, Loss, StepConfig
from pytest_accel.workloads.data.files import Split, find_folder, missing, reading, unreadable
from pytest_accel.workloads.data.sources import Batch, BatchSource
from pytest_accel.workloads.input_pipeline import InputPipeline, ModelInfo, Plan, Sizes

TEXTS = "train.bin"
SEQUENCE = 384  # tokens of a window, as BERT is fine-tuned (arXiv:1810.04805, section 4.2)
MAX_QUESTION = 64  # tokens
VOCABULARY = 30522  # of bert-base-uncased
PAD, CLS, SEP, FIRST_WORD = 0, 101, 102, 999  # tokens of that vocabulary


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sequences:
    """Sequences of `length` inputs and as many targets, which are the inputs one token later.

    A sequence begins where the last one stopped, so that every token is a target once; the rest at the end that fills no
    sequence is not used.
    """

    path: Path  # of the tokens
    tokens: NDArray[Any]  # uint16 (N,), mapped
    vocabulary: int  # tokens are below
    length: int

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def read(self, indices: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
        """Return inputs and targets on the device, int64 (sequences, length) each."""
        rows = [self.tokens[index * self.length :][: self.length + 1] for index in indices]
        tokens = torch.from_numpy(np.stack(rows).astype(np.int64))
        # A token outside the vocabulary is a device-side assertion on CUDA, which ends the process.
        if (most := int(tokens.max())) >= self.vocabulary:
            problem = f"it has the token {most}, and the model knows {self.vocabulary}"
            raise unreadable(self.path, problem, "Write it with the vocabulary that the model is for.")
        if device.type == "cuda":  # pinned, a few hundred kilobytes cross without a wait
            tokens = tokens.pin_memory().to(device, non_blocking=True)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def open_tokens(root: Path | None, *, length: int, vocabulary: int) -> Sequences:
    """Map the tokens of `oscar/train.bin`, uint16 as nanoGPT and Megatron-LM write them; DataMissing where it is not there."""
    path = find_folder(root, "oscar", "oscar") / TEXTS
    if not path.is_file():
        remedy = "Encode the texts with GPT-2's vocabulary, as nanoGPT's prepare.py does."
        raise missing("oscar", [path], remedy)
    with reading(path):
        size_bytes = path.stat().st_size
        if size_bytes % 2 or size_bytes // 2 <= length:
            problem = (
                f"{size_bytes} bytes are not one sequence of {length} tokens and its targets, two bytes each"
            )
            raise unreadable(path, problem, "Put more texts there, or ask for shorter sequences.")
        tokens = np.memmap(path, np.uint16, mode="r")
    return Sequences(path=path, tokens=tokens, vocabulary=vocabulary, length=length)


class Questions(NamedTuple):
    input_ids: Tensor
    attention_mask: Tensor  # 1 for a token, 0 for padding
    token_type_ids: Tensor  # 0 in the question, 1 in the paragraph, 0 for padding


class Answers(NamedTuple):
    """The first and the last token of each answer, (batch,); or a model's logits of both, (batch, sequence)."""

    start: Tensor
    end: Tensor


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPlan(Plan):
    """Sequences of one length; the target of a token is the next one."""

    vocabulary: int
    sequence: int
    unit: ClassVar[str] = "tokens"
    sources: ClassVar[tuple[str, ...]] = ("auto", "synthetic")

    @classmethod
    def fit(cls, name: str, batch_size: int, info: ModelInfo, given: Sizes) -> Self:
        sequence, vocabulary = given.sequence or info.sequence, given.vocabulary or info.vocabulary
        if not sequence or not vocabulary:
            raise ValueError(
                f"data: {name!r} for {info.name} needs sequence= and vocabulary=: the model does not give them."
            )
        return cls(name=name, batch_size=batch_size, vocabulary=vocabulary, sequence=sequence)

    @property
    def classes(self) -> int:  # type: ignore[override] # a class attribute of the base
        return self.vocabulary

    @property
    def work(self) -> int:
        return self.batch_size * self.sequence

    @property
    def described(self) -> Configuration:
        return {"vocabulary": self.vocabulary}

    def draw(self, random: torch.Generator, dtype: torch.dtype, memory_format: str) -> Batch:  # noqa: ARG002 - integers, without channels
        size = (self.batch_size, self.sequence + 1)
        tokens = torch.randint(self.vocabulary, size, generator=random, device=random.device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def loss(self, label_smoothing: float) -> tuple[str, Loss]:
        return "cross_entropy", self.smoothed_cross_entropy(label_smoothing)

    def find(self, root: Path | None, split: Split) -> Sequences:  # noqa: ARG002 - texts have one
        return open_tokens(root, length=self.sequence, vocabulary=self.vocabulary)

    def read(self, config: StepConfig, data: Sequences) -> InputPipeline:
        order = self.order(config, length=len(data))
        read = partial(data.read, device=config.device)
        return InputPipeline(
            source=BatchSource(map(read, map(order.indices, count()))),
            configuration={"data_source": "texts", "data_sequences": len(data)},
            order=order,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionPlan(Plan):
    """Windows of one length, a question and a part of its paragraph each; targets are a first and a last token.

    Always synthetic: with one length for all, the words of SQuAD do not change the work of a step.
    """

    vocabulary: int
    sequence: int
    unit: ClassVar[str] = "sequences"
    sources: ClassVar[tuple[str, ...]] = ("auto", "synthetic")

    @classmethod
    def fit(cls, name: str, batch_size: int, info: ModelInfo, given: Sizes) -> Self:
        # What its embeddings do not hold would be a device-side assertion on CUDA, which ends the process.
        for argument in ("sequence", "vocabulary"):
            size, most = getattr(given, argument), getattr(info, argument)
            if size and most and size > most:
                raise ValueError(f"{argument}: {size} is too much for {info.name}. Valid: {most} or less.")
        return cls(
            name=name,
            batch_size=batch_size,
            vocabulary=given.vocabulary or info.vocabulary or VOCABULARY,
            sequence=given.sequence or min(SEQUENCE, info.sequence or SEQUENCE),
        )

    @property
    def described(self) -> Configuration:
        return {"sequence": self.sequence, "vocabulary": self.vocabulary}

    def draw(self, random: torch.Generator, dtype: torch.dtype, memory_format: str) -> Batch:  # noqa: ARG002 - integers, without channels
        return synthetic_squad(self.batch_size, self.sequence, self.vocabulary, random)

    def loss(self, label_smoothing: float) -> tuple[str, Loss]:
        self.no_smoothing(label_smoothing, "question answering")
        return "span_cross_entropy", span_cross_entropy


def span_cross_entropy(logits: Any, answers: Any) -> Any:
    if not (isinstance(logits, tuple) and len(logits) == 2):
        raise TypeError(
            f"the model returned {type(logits).__name__}, and an answer needs two tensors of logits over the tokens of a "
            "window, for its first and its last. Return both, or pass loss=, a callable of what the model returned "
            "and the targets."
        )
    start, end = logits
    return (F.cross_entropy(start, answers.start) + F.cross_entropy(end, answers.end)) / 2
