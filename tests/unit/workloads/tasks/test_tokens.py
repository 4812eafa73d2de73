"""Language models on texts: training, order, ranks and vocabularies."""

from __future__ import annotations

import json

import pytest

from pytest_accel.workloads.data.files import DataError
from pytest_accel.workloads.measured_step import steps_for_epochs
from pytest_accel.workloads.step import TrainStep
from tests.support.vocabularies import SENTENCES, train_bpe, write_bpe

GPT = {"layers": 1, "width": 32, "heads": 2}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_bpe(folder / "gpt2", *train_bpe())
    (folder / "oscar").mkdir()
    texts = [f"{number}. {SENTENCES}" for number in range(40)]
    (folder / "oscar/a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


def choices(**changes):
    options = {"data": "oscar", "batch_size": 2, "sequence": 16, "vocabulary": 1024, "model_options": GPT}
    return options | changes


def build(**changes):
    return TrainStep.build("zoo/gpt-tiny", **choices(**changes))


@pytest.mark.parametrize("micro", [None, 1])
def test_model_learns_from_texts(root, micro):
    with build(data_root=root, lr=1e-2, micro_batch_size=micro) as step:
        assert step.loads
        assert (step.configuration["data"], step.configuration["data_source"]) == ("oscar", "texts")
        assert step.configuration["data_sequences"] > 40
        step()
        first = step.loss_value()
        for _ in range(20):
            step()
        step.check()
        assert step.loss_value() < first - 0.5  # sentences repeat; made-up tokens would stay at chance
        epoch = -(-step.configuration["data_sequences"] // 2)
        assert abs(steps_for_epochs(step, 1, None) - epoch) <= 1


def test_synthetic_tokens_do_not_read_texts(root):
    with build(data="tokens", data_root=root) as step, build(data_root=root, source="synthetic") as explicit:
        assert step.configuration["data_source"] == explicit.configuration["data_source"] == "synthetic"


def test_vocabulary_larger_than_that_of_the_model_is_an_error(root):
    with pytest.raises(
        DataError, match=r"gpt2 has \d+ tokens, and the model knows 128.\nPass vocabulary=\d+"
    ):
        build(data_root=root, vocabulary=128)
