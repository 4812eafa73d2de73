"""Language modelling and question answering: synthetic tokens, texts, or SQuAD resident on the device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from pytest_accel.workloads.config import Configuration, StepConfig
from pytest_accel.workloads.data.errors import DataError, Split, existing_root
from pytest_accel.workloads.data.sources import Batch
from pytest_accel.workloads.data.squad import (
    SEQUENCE,
    VOCABULARY,
    Answers,
    Questions,
    QuestionSource,
    Windows,
    open_squad,
    synthetic_squad,
)
from pytest_accel.workloads.data.text import Sequences, TokenFile, TokenSource, open_texts
from pytest_accel.workloads.input_pipeline import (
    Destination,
    InputPipeline,
    NamedLoss,
    Plan,
    check_pipeline,
    no_smoothing,
    open_real_data,
    smoothed_cross_entropy,
    split_of,
)

SYNTHETIC_TOKENS = "tokens"  # data that is never real


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPlan(Plan):
    """Sequences of one length; the target of a token is the next one."""

    name: str
    batch_size: int
    vocabulary: int
    sequence: int
    unit: ClassVar[str] = "tokens"

    @property
    def classes(self) -> int:  # type: ignore[override] # a class attribute of the base
        return self.vocabulary

    @property
    def work(self) -> int:
        return self.batch_size * self.sequence

    @property
    def input_shape(self) -> str:
        return str(self.sequence)

    @property
    def described(self) -> Configuration:
        return {"vocabulary": self.vocabulary}

    def draw(self, random: torch.Generator, dtype: torch.dtype, memory_format: str) -> Batch:  # noqa: ARG002 - integers, without channels
        size = (self.batch_size, self.sequence + 1)
        tokens = torch.randint(self.vocabulary, size, generator=random, device=random.device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def on_meta(self) -> Batch:
        tokens = torch.empty((self.batch_size, self.sequence), device="meta", dtype=torch.long)
        return tokens, torch.empty_like(tokens)

    def batch_bytes(self, dtype: torch.dtype) -> int:  # noqa: ARG002 - integers
        return 2 * self.batch_size * self.sequence * torch.long.itemsize

    def loss(self, label_smoothing: float) -> NamedLoss:
        return NamedLoss("cross_entropy", smoothed_cross_entropy(label_smoothing))

    def open(self, config: StepConfig, to: Destination) -> InputPipeline:
        check_pipeline(config, self.name, sources=("auto", "synthetic"))
        if self.name == SYNTHETIC_TOKENS:
            return self.synthetic(to)
        file = open_real_data(config, lambda root: _open_texts(root, self))
        if file is None:
            return self.synthetic(to)
        sequences = Sequences(file, length=self.sequence)
        order = self.order(to, length=len(sequences), shuffle=config.training)
        return InputPipeline(
            source=TokenSource(sequences, order, to.device),
            configuration={"data_source": "texts", "data_sequences": len(sequences)},
            order=order,
        )


def _open_texts(root: Path | None, plan: TokenPlan) -> TokenFile:
    root = existing_root(root, plan.name)
    file = open_texts(root)
    # A token outside the model's vocabulary is a device-side assertion on CUDA, which ends the process.
    if file.vocabulary > plan.vocabulary:
        raise DataError(
            f"vocabulary: that under {root / 'gpt2'} has {file.vocabulary} tokens, and the model knows "
            f"{plan.vocabulary}.\nPass vocabulary={file.vocabulary}, or put the vocabulary there that the model is for."
        )
    return file


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionPlan(Plan):
    """Windows of one length, a question and a part of its paragraph each; targets are a first and a last token."""

    name: str
    batch_size: int
    vocabulary: int
    sequence: int
    unit: ClassVar[str] = "sequences"

    @property
    def work(self) -> int:
        return self.batch_size

    @property
    def input_shape(self) -> str:
        return str(self.sequence)

    @property
    def described(self) -> Configuration:
        return {"sequence": self.sequence, "vocabulary": self.vocabulary}

    def draw(self, random: torch.Generator, dtype: torch.dtype, memory_format: str) -> Batch:  # noqa: ARG002 - integers, without channels
        return synthetic_squad(self.batch_size, self.sequence, self.vocabulary, random)

    def on_meta(self) -> Batch:
        def empty(*size: int) -> Any:
            return torch.empty(size, device="meta", dtype=torch.long)

        tokens, places = (self.batch_size, self.sequence), (self.batch_size,)
        return Questions(*(empty(*tokens) for _ in range(3))), Answers(empty(*places), empty(*places))

    def batch_bytes(self, dtype: torch.dtype) -> int:  # noqa: ARG002 - integers
        return self.batch_size * (3 * self.sequence + 2) * torch.long.itemsize

    def loss(self, label_smoothing: float) -> NamedLoss:
        no_smoothing(label_smoothing, "question answering")
        return NamedLoss("span_cross_entropy", span_cross_entropy)

    def open(self, config: StepConfig, to: Destination) -> InputPipeline:
        check_pipeline(config, self.name, sources=("auto", "synthetic", "resident"))
        windows = open_real_data(config, lambda root: _open_squad(root, split_of(config), self))
        if windows is None:
            return self.synthetic(to)
        order = self.order(to, length=len(windows), shuffle=config.training)
        return InputPipeline(
            source=QuestionSource(windows, order, to.device),
            configuration={"data_source": "resident", "data_windows": len(windows)},
            order=order,
        )


def plan_questions(
    name: str,
    *,
    batch_size: int,
    model: str = "",
    positions: int | None = None,
    tokens: int | None = None,
    sequence: int | None = None,
    vocabulary: int | None = None,
) -> QuestionPlan:
    """Fit windows to a model of so many positions and tokens, by default the published ones.

    What its embeddings do not hold is refused: on CUDA it would be a device-side assertion, which ends the process.
    """
    for argument, given, most in (("sequence", sequence, positions), ("vocabulary", vocabulary, tokens)):
        if given and most and given > most:
            raise ValueError(f"{argument}: {given} is too much for {model}. Valid: {most} or less.")
    return QuestionPlan(
        name=name,
        batch_size=batch_size,
        vocabulary=vocabulary or tokens or VOCABULARY,
        sequence=sequence or min(SEQUENCE, positions or SEQUENCE),
    )


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


def _open_squad(root: Path | None, split: Split, plan: QuestionPlan) -> Windows:
    root = existing_root(root, plan.name)
    windows = open_squad(root, split, sequence=plan.sequence)
    # A token outside the model's vocabulary is a device-side assertion on CUDA, which ends the process.
    most = int(windows.tokens.max())
    if most >= plan.vocabulary:
        raise DataError(
            f"vocabulary: that under {root} gives tokens up to {most}, and the model knows {plan.vocabulary}.\n"
            f"Use the vocabulary that the model was made for: bert-base-uncased has {VOCABULARY} tokens."
        )
    return windows
