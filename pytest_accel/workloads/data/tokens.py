"""Sequences for a language model: cut from a file of tokens at the speed of memory, each once an epoch over all ranks."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from pytest_accel.workloads.data.errors import unreadable
from pytest_accel.workloads.data.formats.bpe import find_bpe, read_bpe
from pytest_accel.workloads.data.formats.jsonl import find_texts
from pytest_accel.workloads.data.token_files import TokenFile, open_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pytest_accel.workloads.data.order import TrainingOrder

Tensor: TypeAlias = Any  # torch is untyped here

IGNORED = -100  # the target that torch's cross entropy leaves out


def open_texts(root: Path, *, cache: Path | None = None) -> TokenFile:
    """Return the tokens of `oscar/` with the vocabulary of `gpt2/`, both under the root of all data sets.

    DataMissing where one of them is not there, DataError where it is and cannot be read.
    """
    texts = find_texts(root)
    return open_tokens(texts, read_bpe(find_bpe(root)), cache=cache)


class Sequences:
    """Sequences of `length` inputs and as many targets, which are the inputs one token later.

    Sequence after sequence takes up where the last one stopped, so that every token is a target once: two share one
    token. With `crossing`, documents lie end to end; what is left at the very end and fills no sequence is not used.
    Without, a sequence is of one document only, and the last of a document is filled up: with end_of_text as inputs,
    with IGNORED as targets.
    """

    def __init__(self, file: TokenFile, *, length: int, crossing: bool = True) -> None:
        if length < 1:
            raise ValueError(f"length: {length} is not a positive number of tokens.")
        self.length = length
        self._file = file
        self._lasts: Any = None  # of each document, the number of sequences up to its end
        total = (len(file) - 1) // length
        if not crossing:
            starts = np.concatenate(([0], file.ends[:-1]))
            self._lasts = np.cumsum(-(-(file.ends - starts - 1) // length))
            total = int(self._lasts[-1])
        self._total = total
        if total < 1:
            raise unreadable(
                file.path,
                f"{len(file)} tokens are not one sequence of {length} and its targets",
                "Put more texts there, or ask for shorter sequences.",
            )

    def __len__(self) -> int:
        return self._total

    def read(self, indices: Sequence[int], *, pinned: bool = False) -> tuple[Tensor, Tensor]:
        """Return inputs and targets, int64 (sequences, length) each; pinned: in memory that a device copies from."""
        shape = (len(indices), self.length)
        inputs = torch.empty(shape, dtype=torch.int64, pin_memory=pinned)
        targets = torch.empty(shape, dtype=torch.int64, pin_memory=pinned)
        into_inputs, into_targets = inputs.numpy(), targets.numpy()
        tokens = self._file.tokens
        for row, index in enumerate(indices):
            first, stop = self._span(index)
            filled = stop - first
            into_inputs[row, :filled] = tokens[first:stop]
            into_targets[row, :filled] = tokens[first + 1 : stop + 1]
            if filled < self.length:
                into_inputs[row, filled:] = self._file.end_of_text
                into_targets[row, filled:] = IGNORED
        self._check(max(into_inputs.max(initial=0), into_targets.max(initial=0)))
        return inputs, targets

    def _span(self, index: int) -> tuple[int, int]:
        """Where the inputs of a sequence begin and end; its last target stands at the end."""
        if not 0 <= index < self._total:
            raise IndexError(f"index: {index} is not in a set of {self._total} sequences.")
        if self._lasts is None:
            return index * self.length, (index + 1) * self.length
        document = int(np.searchsorted(self._lasts, index, side="right"))
        begin, before = 0, 0
        if document:
            begin, before = int(self._file.ends[document - 1]), int(self._lasts[document - 1])
        first = begin + (index - before) * self.length
        return first, min(first + self.length, int(self._file.ends[document]) - 1)

    def _check(self, most: int) -> None:
        """A token outside the vocabulary is a device-side assertion on CUDA, which ends the process."""
        if most >= self._file.vocabulary:
            raise unreadable(
                self._file.path,
                f"damaged: the token {most} is in it, and there are {self._file.vocabulary}",
                "Remove it: it will be made anew.",
            )


class TokenSource:
    """A Source of sequences in the order of a rank. Reading a batch copies a few hundred kilobytes: no worker does it."""

    buffered, burst = 0, 1
    loads = True

    def __init__(self, sequences: Sequences, order: TrainingOrder, device: torch.device) -> None:
        if order.length != len(sequences):
            raise ValueError(f"order: of {order.length} samples, and there are {len(sequences)} sequences.")
        self._sequences = sequences
        self._order = order
        self._device = device
        self._steps = count()

    def __next__(self) -> tuple[Tensor, Tensor]:
        pinned = self._device.type == "cuda"
        inputs, targets = self._sequences.read(self._order.indices(next(self._steps)), pinned=pinned)
        return inputs.to(self._device, non_blocking=True), targets.to(self._device, non_blocking=True)

    def close(self) -> None:
        """Nothing is open but a mapping, which goes with its last user."""
