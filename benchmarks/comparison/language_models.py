"""Language models as transformers and nanoGPT train them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it
from transformers import BertConfig, BertForQuestionAnswering, GPT2Config, GPT2LMHeadModel

from benchmarks.comparison.catalogue import Comparison
from benchmarks.comparison.implementations import Step, autocast, compiled, plain_loop, plain_optimizer
from pytest_accel.workloads.build import make_batch
from pytest_accel.workloads.models.gpt import GPT_SHAPES, GptShape
from pytest_accel.workloads.models.zoo import BERT_SHAPES

LR, BETAS, WEIGHT_DECAY, CLIP = 6e-4, (0.9, 0.95), 0.1, 1.0  # of nanoGPT


def gpt2_step(comparison: Comparison, device: torch.device) -> Step:
    """Return a step of transformers' GPT-2 with our number of layers, width, heads, vocabulary and sequence."""
    shape = GPT_SHAPES[comparison.model.removeprefix("zoo/")]
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
    tokens = torch.randint(shape.vocabulary, (comparison.batch_size, shape.sequence), device=device)

    def loss_of() -> torch.Tensor:
        return model(tokens, labels=tokens).loss

    return plain_loop(comparison, device, loss_of, plain_optimizer(comparison, model, default="adamw"))


def bert_step(comparison: Comparison, device: torch.device) -> Step:
    """Return a step of transformers' BERT that is fine-tuned on questions, with the tokenizer's mask."""
    shape = BERT_SHAPES[comparison.model.removeprefix("zoo/")]
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
        batch_size=comparison.batch_size,
        sequence=comparison.options["sequence"],
        vocabulary=shape.vocabulary,
        device=device,
    )

    def loss_of() -> torch.Tensor:
        return model(**questions._asdict(), start_positions=answers.start, end_positions=answers.end).loss

    return plain_loop(comparison, device, loss_of, plain_optimizer(comparison, model, default="adamw"))


def nanogpt_step(comparison: Comparison, device: torch.device) -> Step:
    """Return a step of nanoGPT's training loop with a model of its kind in our shape.

    Compiled, bf16 autocast, gradients clipped to 1, fused AdamW at 6e-4 with weight decay of matrices only, the loss read
    at every update. nanoGPT accumulates 40 micro-batches of 12 sequences; here one batch is one update, as in ours.
    """
    shape = GPT_SHAPES[comparison.model.removeprefix("zoo/")]
    model = NanoGpt(shape).to(device).train()
    forward = compiled(model, device)
    matrices, others = (
        [each for each in model.parameters() if (each.dim() > 1) is wide] for wide in (True, False)
    )
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}],
        lr=LR,
        betas=BETAS,
        fused=device.type == "cuda",
    )
    drawn = torch.randint(shape.vocabulary, (comparison.batch_size, shape.sequence + 1), device=device)
    tokens, targets = drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()

    def train() -> None:
        with autocast(comparison, device):
            loss = forward(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return train


class NanoGpt(nn.Module):
    """GPT with learned positions, pre-norm, no biases and tied embeddings; returns the mean cross entropy."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.padded_vocabulary, shape.width)
        self.positions = nn.Embedding(shape.sequence, shape.width)
        self.layers = nn.ModuleList(NanoGptLayer(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.positions(places)
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class NanoGptLayer(nn.Module):
    """Transformer layer: attention and MLP, each pre-norm with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(2))
        self.project, self.merge = (nn.Linear(width, by * width, bias=False) for by in (3, 1))
        self.widen, self.narrow = (
            nn.Linear(width, 4 * width, bias=False),
            nn.Linear(4 * width, width, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.project(self.norms[0](x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.merge(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.widen(self.norms[1](x))))
