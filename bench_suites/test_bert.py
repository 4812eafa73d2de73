"""PEARC'22, Table 2: fine-tuning BERT-base to answer the questions of SQuAD. docs/suites/bert.md"""

from __future__ import annotations

import pytest

from pytest_accel import accelerators, cpu, on

LR = 3e-5


@cpu
def test_small_fine_tuning(train):
    train("zoo/bert-tiny", sequence=64, batch_size=8, precision="fp32", lr=LR)


@on(accelerators(memory_gb=16, dtype="half", devices=(1, 4)))
@pytest.mark.parametrize(
    "sequence",
    [pytest.param(384, marks=pytest.mark.accel(reference="pearc22/bert/bert_base/squad")), 128],
)
def test_fine_tuning(train, sequence):
    train(
        "zoo/bert-base",
        sequence=sequence,
        batch_size=32,
        precision="half",
        optimizer="adamw",
        lr=LR,
        clip=1.0,  # as the authors' own code
        millions=108.9,
    )
