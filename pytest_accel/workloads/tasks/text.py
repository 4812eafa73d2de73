"""Language modelling on synthetic tokens or texts, and question answering on synthetic windows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch.nn import functional as F

from pytest_accel.workloads.config import Configuration, Loss, StepConfig
from pytest_accel.workloads.data.files import Split
from pytest_accel.workloads.data.sources import Batch, MemorySource
from pytest_accel.workloads.data.text import (
    SEQUENCE,
    VOCABULARY,
    Sequences,
    open_tokens,
    synthetic_squad,
)
from pytest_accel.workloads.input_pipeline import (
    InputPipeline,
    Plan,
    Sizes,
    no_smoothing,
    smoothed_cross_entropy,
)

if TYPE_CHECKING:
    from pytest_accel.workloads.models.build import ModelInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPlan(Plan):
    """Sequences of one length; the target of a token is the next one."""

    name: str
    batch_size: int
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
        return "cross_entropy", smoothed_cross_entropy(label_smoothing)

    def find(self, root: Path | None, split: Split) -> Sequences:  # noqa: ARG002 - texts have one
        return open_tokens(root, length=self.sequence, vocabulary=self.vocabulary)

    def read(self, config: StepConfig, data: Sequences) -> InputPipeline:
        order = self.order(config, length=len(data))
        return InputPipeline(
            source=MemorySource(order, partial(data.read, device=config.device)),
            configuration={"data_source": "texts", "data_sequences": len(data)},
            order=order,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionPlan(Plan):
    """Windows of one length, a question and a part of its paragraph each; targets are a first and a last token.

    Always synthetic: with one length for all, the words of SQuAD do not change the work of a step.
    """

    name: str
    batch_size: int
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
        no_smoothing(label_smoothing, "question answering")
        return "span_cross_entropy", span_cross_entropy


def span_cross_entropy(logits: Any, answers: Any) -> Any:
    """Return the mean of the cross entropies of an answer's first and last token."""
    if not (isinstance(logits, tuple) and len(logits) == 2):
        raise TypeError(
            f"the model returned {type(logits).__name__}, and an answer needs two tensors of logits over the tokens of a "
            "window, for its first and its last. Return both, or pass loss=, a callable of what the model returned "
            "and the targets."
        )
    start, end = logits
    return (F.cross_entropy(start, answers.start) + F.cross_entropy(end, answers.end)) / 2
