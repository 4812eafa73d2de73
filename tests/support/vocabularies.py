"""Small vocabularies that tests write: a byte-level BPE trained on a few sentences, and a WordPiece one by hand."""

from __future__ import annotations

import json

from pytest_accel.workloads.data.text import END_OF_TEXT

SENTENCES = (
    "the cat sat on the mat, and the other cats sat on other mats. It's the 1st of 12 days; we'll see 100 more days. "
    "Übermäßig schöne Grüße übers Meer, übers Meer! 漢字と仮名、漢字と仮名。 aaaaaaaa aaaa 😀😀 "
)
PIECES = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "##s", "sat", "on", "a", "mat", "un", "##aff", "##able"),
    *("who", "where", "did", "it", "sit", "?", ".", ",", "'", "-", "(", ")", "$", "5", "##0", "0", "grusse", "uber"),
    *("漢", "字", "οδος", "s", "resume", "¿", ";"),
)  # fmt: skip


def train_bpe(text=SENTENCES, merges=60):
    """The tokens in order, and the merges in order."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=256 + merges, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return [*tokens, END_OF_TEXT], [tuple(pair) for pair in model["merges"]]


def write_bpe(folder, tokens=None, merges=None):
    """Write both files in the published layout; without arguments those of the sentences."""
    if tokens is None:
        tokens, merges = train_bpe()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def write_wordpiece(folder, tokens=PIECES):
    """Write a vocabulary, a token a line."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    return folder
