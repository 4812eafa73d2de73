"""PEARC'22, Table 2: fine-tuning BERT-base to answer the questions of SQuAD. docs/suites/bert.md"""

from __future__ import annotations

import pytest

from pytest_accel import cpu, on

LR = 3e-5


@cpu
def test_small_fine_tuning(train):
    train("zoo/bert-tiny", sequence=64, batch_size=8, precision="fp32", lr=LR)


@on("a100 a100x4 b200 gb200 gh200 gh200x4 h100 h100x4 h200 h200x4 l40s")
@pytest.mark.parametrize(
    "sequence",
    [pytest.param(384, marks=pytest.mark.accel(reference="pearc22/bert/bert_base/squad")), 128],
)
def test_fine_tuning(train, sequence):
    train(
        "zoo/bert-base",
        sequence=sequence,
        batch_size=32,
        precision="bf16",
        optimizer="adamw",
        lr=LR,
        clip=1.0,  # as the authors' own code
        millions=108.9,
    )
