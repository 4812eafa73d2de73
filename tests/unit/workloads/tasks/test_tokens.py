"""Language models read texts where there are some, made-up tokens elsewhere, and never a token they do not know."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch

from pytest_accel.measure.ranks import Alone
from pytest_accel.workloads import InferStep, TrainStep
from pytest_accel.workloads.data.errors import DataError, SyntheticDataWarning
from pytest_accel.workloads.measured_step import steps_for_epochs
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
    asked = {"data": "oscar", "batch_size": 2, "sequence": 16, "vocabulary": 1024, "model_options": GPT}
    return asked | changes


def build(**changes):
    return TrainStep.build("zoo/gpt-tiny", **choices(**changes))


@dataclass
class Rank(Alone):
    rank: int = 0
    size: int = 2


@pytest.mark.parametrize("micro", [None, 1])
def test_texts_are_trained_on(root, micro):
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


def test_targets_are_the_tokens_after(root):
    with build(data_root=root) as step:
        inputs, targets = next(step._source)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert inputs.shape == (2, 16)


def test_ranks_read_different_texts_and_a_seed_the_same(root):
    found = []
    for rank in (0, 1, 1):
        with InferStep.build("zoo/gpt-tiny", **choices(data_root=root, ranks=Rank(rank=rank))) as step:
            found.append(next(step._source)[0])
    assert not torch.equal(found[0], found[1])
    assert torch.equal(found[1], found[2])


def test_inference_reads_in_order(root):
    with InferStep.build("zoo/gpt-tiny", **choices(data_root=root)) as step:
        inputs, targets = next(step._source)
        assert torch.equal(inputs[1, :1], targets[0, -1:])
        step()
        step.check()


def test_without_texts_tokens_are_made_up(tmp_path):
    with build() as step:
        assert not step.loads
        assert step.configuration["data_source"] == "synthetic"
    with pytest.warns(SyntheticDataWarning, match="oscar"), build(data_root=tmp_path) as step:
        assert step.configuration["data_source"] == "synthetic"
    with pytest.raises(DataError, match="required here"):
        build(data_root=tmp_path, data_required=True)


def test_made_up_data_stays_so_beside_texts(root):
    with build(data="tokens", data_root=root) as step, build(data_root=root, source="synthetic") as asked:
        assert step.configuration["data_source"] == asked.configuration["data_source"] == "synthetic"


def test_a_vocabulary_beyond_the_models_is_one_clear_error(root):
    with pytest.raises(
        DataError, match=r"gpt2 has \d+ tokens, and the model knows 128.\nPass vocabulary=\d+"
    ):
        build(data_root=root, vocabulary=128)


def test_texts_on_a_disk_that_nobody_writes_to(root, tmp_path, monkeypatch):
    """Their tokens are kept in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for kept in (root / "oscar").glob("*.npy"):
        kept.unlink()
    monkeypatch.setattr(
        "pytest_accel.workloads.data.text.is_writable_folder",
        lambda folder: root not in (folder, *folder.parents),
    )
    with build(data_root=root) as step:
        assert step.configuration["data_source"] == "texts"
    assert list((tmp_path / "pytest-accel").glob("tokens-*.npy"))
    assert not list((root / "oscar").glob("*.npy"))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"source": "loader"}, "source: 'loader' is not possible for oscar"),
        ({"workers": 2}, "workers: .*Leave workers out"),
        ({"decode": "host"}, "decode: 'host' is not possible for oscar"),
        ({"data": "imagenet"}, "does not fit zoo/gpt-tiny, a model for language. Valid: tokens, oscar"),
    ],
)
def test_what_texts_do_not_have_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        build(**wrong)


def test_a_classifier_reads_no_texts():
    with pytest.raises(ValueError, match="'oscar' does not fit resnet18"):
        TrainStep.build("resnet18", data="oscar", batch_size=1)
