"""nanoGPT's training loop in our words, over a model of its kind in the shape of the contest's.

The model: learned positions, pre-norm, no biases, exact GELU, torch's fused causal attention, a head that shares the weights of
the embedding, a padded vocabulary. The loop: compiled, bf16 autocast, gradients clipped to a norm of 1, fused AdamW (betas .9 and
.95, weight decay .1 of matrices alone) at 6e-4, the loss read at every update. Its default adds up 40 micro-batches of 12
sequences to an update; here a batch is an update, as in ours. Left out: its reading of tokens from a file.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

from benchmarks.peers.contests import Contest
from benchmarks.peers.ways import Step
from benchmarks.peers.ways.plain_loop import autocast, compiled
from pytest_accel.workloads.models.gpt import GPT_SHAPES, GptShape

LR, BETAS, WEIGHT_DECAY, CLIP = 6e-4, (0.9, 0.95), 0.1, 1.0


def step(contest: Contest, device: torch.device) -> Step:
    shape = GPT_SHAPES[contest.model.removeprefix("zoo/")]
    model = LearnedPositions(shape).to(device).train()
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
    drawn = torch.randint(shape.vocabulary, (contest.batch_size, shape.sequence + 1), device=device)
    tokens, targets = drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()

    def train() -> None:
        with autocast(contest, device):
            loss = forward(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return train


class LearnedPositions(nn.Module):
    """(batch, sequence) tokens and the next ones -> their mean cross entropy."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.padded_vocabulary, shape.width)
        self.positions = nn.Embedding(shape.sequence, shape.width)
        self.layers = nn.ModuleList(Layer(shape.width, shape.heads) for _ in range(shape.layers))
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


class Layer(nn.Module):
    """Attention and a wide layer, each behind a norm and added to what came in."""

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
