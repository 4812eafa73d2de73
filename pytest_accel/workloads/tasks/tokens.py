"""Tokens with the next ones: synthetic, or cut from texts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from pytest_accel.workloads.data.errors import DataError, existing_root
from pytest_accel.workloads.data.sources import Batch
from pytest_accel.workloads.data.text import Sequences, TokenFile, TokenSource, open_texts
from pytest_accel.workloads.feeding import (
    DataChoices,
    Destination,
    Facts,
    Feed,
    Task,
    opened,
)
from pytest_accel.workloads.losses import smoothed_cross_entropy
from pytest_accel.workloads.plan import NamedLoss, Plan

MADE_UP = "tokens"  # the name of data that is never real


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPlan(Plan):
    """Sequences of one length; the target of a token is the one after it."""

    name: str
    batch_size: int
    vocabulary: int
    sequence: int
    unit: ClassVar[str] = "tokens"

    @property
    def classes(self) -> int:  # type: ignore[override] # it is one, and it is known only here
        return self.vocabulary

    @property
    def work(self) -> int:
        return self.batch_size * self.sequence

    @property
    def input_shape(self) -> str:
        return str(self.sequence)

    @property
    def described(self) -> Facts:
        return {"vocabulary": self.vocabulary}

    def draw(self, random: torch.Generator, dtype: torch.dtype, memory_format: str) -> Batch:  # noqa: ARG002 - whole numbers, without channels
        size = (self.batch_size, self.sequence + 1)
        tokens = torch.randint(self.vocabulary, size, generator=random, device=random.device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def on_meta(self) -> Batch:
        tokens = torch.empty((self.batch_size, self.sequence), device="meta", dtype=torch.long)
        return tokens, torch.empty_like(tokens)

    def batch_bytes(self, dtype: torch.dtype) -> int:  # noqa: ARG002 - as above
        return 2 * self.batch_size * self.sequence * torch.long.itemsize

    def loss(self, label_smoothing: float) -> NamedLoss:
        return NamedLoss("cross_entropy", smoothed_cross_entropy(label_smoothing))

    def feed(self, choices: DataChoices, to: Destination, *, task: Task) -> Feed:
        _check_choices(choices)
        if self.name == MADE_UP:
            return self.synthetic(to)
        file = opened(choices, lambda root: _open(root, self))
        if file is None:
            return self.synthetic(to)
        sequences = Sequences(file, length=self.sequence)
        order = self.order(to, length=len(sequences), shuffle=task == "train")
        facts: Facts = {"data_source": "texts", "data_sequences": len(sequences)}
        source = TokenSource(sequences, order, to.device)
        return Feed(source=source, configuration=facts, order=order)


def _check_choices(choices: DataChoices) -> None:
    if choices.source not in {"auto", "synthetic"}:
        raise ValueError(
            f"source: {choices.source!r} is for images; tokens are synthetic, or read from memory. Leave it out."
        )
    if choices.workers is not None:
        raise ValueError(
            "workers: those of a loader of images; tokens are synthetic, or read from memory. Leave workers out."
        )
    if choices.decode != "auto":
        raise ValueError(f"decode: {choices.decode!r} is for encoded photographs. Leave it out.")


def _open(root: Path | None, plan: TokenPlan) -> TokenFile:
    root = existing_root(root, plan.name)
    file = open_texts(root)
    # A token outside the model's vocabulary is a device-side assertion on CUDA, which ends the process.
    if file.vocabulary > plan.vocabulary:
        raise DataError(
            f"vocabulary: that under {root / 'gpt2'} has {file.vocabulary} tokens, and the model knows "
            f"{plan.vocabulary}.\nPass vocabulary={file.vocabulary}, or put the vocabulary there that the model is for."
        )
    return file
