"""transformers' GPT-2 of the same layers, width, heads, vocabulary and sequence, trained by a plain loop."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.peers.contests import Contest
from benchmarks.peers.ways import Step
from benchmarks.peers.ways.plain_loop import plain_loop, plain_optimizer
from pytest_accel.workloads.models.gpt import GPT_SHAPES


def step(contest: Contest, device: torch.device) -> Step:
    shape = GPT_SHAPES[contest.model.removeprefix("zoo/")]
    sizes = GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=shape.sequence,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        resid_pdrop=0.0,  # ours has no dropout
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(sizes).to(device).train()
    tokens = torch.randint(shape.vocabulary, (contest.batch_size, shape.sequence), device=device)

    def loss_of() -> torch.Tensor:
        return model(tokens, labels=tokens).loss

    return plain_loop(contest, device, loss_of, plain_optimizer(contest, model, unasked="adamw"))
