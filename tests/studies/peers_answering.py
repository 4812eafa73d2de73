"""How a plain loop fine-tunes transformers' own BERT on SQuAD: what our step is compared with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import BertConfig, BertForQuestionAnswering

from pytest_accel.workloads.tasks import make_batch
from pytest_accel.workloads.zoo.bert import BERT_SHAPES

SEQUENCES = {"bert-base": 384, "bert-tiny": 64}


def plain_step(
    name: str, batch_size: int, device: torch.device, sequence: int | None = None
) -> Callable[[], None]:
    """Eager, autocast, the model's own loss, and the loss read at every step; the mask is the plain one of two dimensions."""
    name = name.removeprefix("zoo/")
    shape = BERT_SHAPES[name]
    sizes = BertConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.inner,
        max_position_embeddings=shape.sequence,
        hidden_dropout_prob=shape.dropout,
        attention_probs_dropout_prob=shape.dropout,
    )
    model = BertForQuestionAnswering(sizes).to(device).train()
    questions, answers = make_batch(
        "squad",
        batch_size=batch_size,
        sequence=sequence or SEQUENCES[name],
        vocabulary=shape.vocabulary,
        device=device,
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-5)

    def train() -> None:
        optimiser.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            found = model(**questions._asdict(), start_positions=answers.start, end_positions=answers.end)
        found.loss.backward()
        optimiser.step()
        found.loss.item()

    return train
