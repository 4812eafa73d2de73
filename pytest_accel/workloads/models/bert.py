"""BERT for question answering: transformers' own model, with random weights from a configuration that is written here.

Two things are ours. The mask comes ready: of two-dimensional ones transformers asks whether anything is masked at all,
which waits for the device, and makes one of a whole sequence squared. And the outputs are a plain pair.

Dropout is .1 in training, in attention too, as published (Devlin et al., arXiv:1810.04805, A.3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from pytest_accel.workloads.tasks.text import VOCABULARY, Answers, Questions


@dataclass(frozen=True, slots=True, kw_only=True)
class BertShape:
    """The sizes of a BERT, and its dropout."""

    layers: int
    width: int
    heads: int
    inner: int  # width of the feed-forward layers
    vocabulary: int = VOCABULARY
    sequence: int = 512  # positions: the longest input
    dropout: float = 0.1  # of what a layer adds, and of attention


BERT_SHAPES = {
    "bert-tiny": BertShape(layers=2, width=128, heads=2, inner=512),
    "bert-base": BertShape(layers=12, width=768, heads=12, inner=3072),
}


def build_bert(name: str, **changes: Any) -> Bert:
    """Return the named BERT; keyword arguments change single sizes of its shape."""
    return Bert(replace(BERT_SHAPES[name], **changes))


class Bert(nn.Module):
    """BERT with a linear layer that gives two numbers a token: does the answer begin here, does it end here?"""

    def __init__(self, shape: BertShape) -> None:
        from transformers import BertConfig, BertForQuestionAnswering

        super().__init__()
        self.shape = shape
        self.answering = BertForQuestionAnswering(
            BertConfig(
                vocab_size=shape.vocabulary,
                hidden_size=shape.width,
                num_hidden_layers=shape.layers,
                num_attention_heads=shape.heads,
                intermediate_size=shape.inner,
                max_position_embeddings=shape.sequence,
                type_vocab_size=2,
                hidden_act="gelu",
                hidden_dropout_prob=shape.dropout,
                attention_probs_dropout_prob=shape.dropout,
                attn_implementation="sdpa",
            )
        )

    def forward(self, questions: Questions) -> Answers:
        # (batch, 1, 1, sequence), true where there is a token: attention spreads it over heads and rows by itself.
        mask = questions.attention_mask[:, None, None, :].bool()
        found = self.answering(
            input_ids=questions.input_ids, attention_mask=mask, token_type_ids=questions.token_type_ids
        )
        return Answers(found.start_logits, found.end_logits)
