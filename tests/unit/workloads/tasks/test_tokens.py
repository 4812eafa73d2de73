"""Language models on texts: training, epochs and vocabularies."""

import numpy as np
import pytest

from pytest_accel.workloads.measured_step import steps_for_epochs
from pytest_accel.workloads.step import TrainStep

GPT = {"layers": 1, "width": 32, "heads": 2}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "oscar").mkdir()
    sentence = np.random.default_rng(0).integers(0, 300, 50)
    np.tile(sentence, 40).astype(np.uint16).tofile(folder / "oscar/train.bin")
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
