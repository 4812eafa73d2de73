"""Questions about paragraphs, and where their answers stand: synthetic, or SQuAD resident on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

from pytest_accel.workloads.data.errors import DataError, existing_root
from pytest_accel.workloads.data.sources import Batch
from pytest_accel.workloads.data.squad import (
    SEQUENCE,
    VOCABULARY,
    Answers,
    Questions,
    QuestionSource,
    open_squad,
    synthetic_squad,
)
from pytest_accel.workloads.feeding import (
    DataChoices,
    Destination,
    Facts,
    Feed,
    Task,
    opened,
    split_of,
)
from pytest_accel.workloads.plan import NamedLoss, Plan, no_smoothing

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_accel.workloads.data.errors import Split
    from pytest_accel.workloads.data.squad import Windows
    from pytest_accel.workloads.models.build import ModelInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionPlan(Plan):
    """Windows of one length, each a question and a part of its paragraph; the target is a first and a last token."""

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
    def described(self) -> Facts:
        return {"sequence": self.sequence, "vocabulary": self.vocabulary}

    def draw(self, random: torch.Generator, dtype: torch.dtype, memory_format: str) -> Batch:  # noqa: ARG002 - whole numbers, without channels
        return synthetic_squad(self.batch_size, self.sequence, self.vocabulary, random)

    def on_meta(self) -> Batch:
        def whole(*size: int) -> Any:  # noqa: ANN401 - torch is untyped here
            return torch.empty(size, device="meta", dtype=torch.long)

        tokens, places = (self.batch_size, self.sequence), (self.batch_size,)
        return Questions(*(whole(*tokens) for _ in range(3))), Answers(whole(*places), whole(*places))

    def batch_bytes(self, dtype: torch.dtype) -> int:  # noqa: ARG002 - as above
        return self.batch_size * (3 * self.sequence + 2) * torch.long.itemsize

    def loss(self, label_smoothing: float) -> NamedLoss:
        no_smoothing(label_smoothing, "question answering")
        return NamedLoss("span_cross_entropy", span_cross_entropy)

    def feed(self, choices: DataChoices, to: Destination, *, task: Task) -> Feed:
        _check_choices(choices, self)
        split: Split = split_of(task)
        windows = opened(choices, lambda root: _open(root, split, self))
        if windows is None:
            return self.synthetic(to)
        order = self.order(to, length=len(windows), shuffle=task == "train")
        source = QuestionSource(windows, order, to.device)
        facts: Facts = {"data_source": "resident", "data_windows": len(windows)}
        return Feed(source=source, configuration=facts, order=order)


def plan_questions(
    name: str,
    *,
    batch_size: int,
    model: ModelInfo | None = None,
    sequence: int | None = None,
    vocabulary: int | None = None,
) -> QuestionPlan:
    """Fit windows to a model, by default the published ones.

    What its embeddings do not hold is refused: on CUDA it would be a device-side assertion, which ends the process.
    """
    positions, known = (model.sequence, model.vocabulary) if model else (None, None)
    for argument, asked, most in (("sequence", sequence, positions), ("vocabulary", vocabulary, known)):
        if model and asked and most and asked > most:
            raise ValueError(f"{argument}: {asked} is too much for {model.name}. Valid: {most} or less.")
    return QuestionPlan(
        name=name,
        batch_size=batch_size,
        vocabulary=vocabulary or known or VOCABULARY,
        sequence=sequence or min(SEQUENCE, positions or SEQUENCE),
    )


def span_cross_entropy(found: Any, answers: Any) -> Any:  # noqa: ANN401 - torch is untyped here
    """The mean of two cross entropies over the places of a window: of an answer's first token, and of its last."""
    if not (isinstance(found, tuple) and len(found) == 2):
        raise TypeError(
            f"the model returned {type(found).__name__}, and an answer needs two tensors of logits over the places of a "
            "window, for its first and its last token. Return both, or pass loss=, a callable of what the model "
            "returned and the targets."
        )
    start, end = found
    return (F.cross_entropy(start, answers.start) + F.cross_entropy(end, answers.end)) / 2


def _check_choices(choices: DataChoices, plan: QuestionPlan) -> None:
    if choices.source == "loader":
        raise ValueError(
            f"source: {plan.name} is small, lies on the device and needs no loader. Write source='resident', or leave it out."
        )
    if choices.workers is not None:
        raise ValueError(
            f"workers: {plan.name} is resident on the device and has no loader. Leave workers out."
        )
    if choices.decode != "auto":
        raise ValueError(f"decode: {choices.decode!r} is for encoded photographs. Leave it out.")


def _open(root: Path | None, split: Split, plan: QuestionPlan) -> Windows:
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
