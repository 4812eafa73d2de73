"""transformers' own BERT, fine-tuned on questions by a plain loop, with the tokeniser's mask of two dimensions."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertForQuestionAnswering

from benchmarks.peers.contests import Contest
from benchmarks.peers.ways import Step
from benchmarks.peers.ways.plain_loop import plain_loop, plain_optimizer
from pytest_accel.workloads.build import make_batch
from pytest_accel.workloads.models.bert import BERT_SHAPES


def step(contest: Contest, device: torch.device) -> Step:
    shape = BERT_SHAPES[contest.model.removeprefix("zoo/")]
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
        batch_size=contest.batch_size,
        sequence=contest.choices["sequence"],
        vocabulary=shape.vocabulary,
        device=device,
    )

    def loss_of() -> torch.Tensor:
        return model(**questions._asdict(), start_positions=answers.start, end_positions=answers.end).loss

    return plain_loop(contest, device, loss_of, plain_optimizer(contest, model, unasked="adamw"))
