"""Question answering with BERT on the CPU: model, loss, steps and real data."""

from __future__ import annotations

import json

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F

from pytest_accel.workloads.data.files import DataError
from pytest_accel.workloads.data.text import Answers, open_squad
from pytest_accel.workloads.models.build import build_model
from pytest_accel.workloads.step import InferStep, TrainStep
from pytest_accel.workloads.tasks.text import QuestionPlan, span_cross_entropy
from tests.support.plans import made, step_config
from tests.support.vocabularies import PIECES, write_wordpiece

pytest.importorskip("transformers")

SMALL = {"layers": 1, "width": 32, "heads": 2, "inner": 64}
STEP = {"batch_size": 2, "sequence": 64, "lr": 1e-3, "model_options": SMALL}
PARAGRAPH = "The cats sat on a mat. It sat on the mat, unaffable."


def write_squad(root, questions=6, name="train-v1.1.json"):
    (root / "squad").mkdir(parents=True, exist_ok=True)
    words = PARAGRAPH.split()
    entries = [
        # Each its own answer, to tell them apart: its first word, its first two, ...
        {
            "id": str(n),
            "question": "Who sat?",
            "answers": [{"text": " ".join(words[: n + 1]), "answer_start": 0}],
        }
        for n in range(questions)
    ]
    article = {"paragraphs": [{"context": PARAGRAPH, "qas": entries}]}
    (root / "squad" / name).write_text(json.dumps({"data": [article]}))


@pytest.fixture
def root(tmp_path):
    write_squad(tmp_path)
    write_squad(tmp_path, questions=5, name="dev-v1.1.json")
    write_wordpiece(tmp_path / "bert-base-uncased")
    return tmp_path


@pytest.fixture
def small():
    model, _ = build_model("zoo/bert-tiny", **SMALL)
    return model.eval()


def plan_for(batch_size=2, **changes):
    return QuestionPlan(
        **{"name": "squad", "batch_size": batch_size, "vocabulary": 30522, "sequence": 64} | changes
    )


def opened(plan, task="train", rank=0, world=1, **choices):
    return plan.open(step_config(task, rank=rank, world=world, **choices))


# The model.


def test_bert_base_has_the_published_size():
    model, info = build_model("zoo/bert-base", device="meta")
    assert info.parameters == 108_893_186
    assert (info.task, info.vocabulary, info.sequence) == ("answering", 30522, 512)
    assert not info.convolutional
    dropouts = {layer.p for layer in model.modules() if isinstance(layer, torch.nn.Dropout)}
    assert dropouts == {0.1}


@torch.no_grad()
def test_attention_mask_equals_that_of_transformers(small):
    questions, _ = made(plan_for())
    own = small.answering(**questions._asdict())
    found = small(questions)
    torch.testing.assert_close(found, Answers(own.start_logits, own.end_logits))


def test_step_is_one_graph_for_any_mask(small):
    counter = CompileCounter()
    model = small.train()
    step = torch.compile(
        lambda questions, answers: span_cross_entropy(model(questions), answers),
        backend=counter,
        fullgraph=True,
        dynamic=False,
    )
    questions, answers = made(plan_for())
    whole = questions._replace(attention_mask=torch.ones_like(questions.attention_mask))
    batches = [(questions, answers), (whole, answers), made(plan_for(), 1)]
    for batch in batches:
        step(*batch).backward()
    assert counter.frame_count == 1


# Batches.


def test_real_questions_are_resident_and_read_once_an_epoch(root):
    seen = []
    for rank in range(2):
        found = opened(plan_for(batch_size=3), data_root=root, rank=rank, world=2)
        assert found.configuration == {"data_source": "resident", "data_windows": 6}
        assert found.order is not None
        questions, answers = next(found.source)
        assert questions.input_ids.shape == (3, 64)
        seen.append(answers.end.tolist())
    ends = open_squad(root, "train", sequence=64)[1].end.tolist()
    assert sorted(seen[0] + seen[1]) == sorted(set(ends))


# The loss.


def test_loss_equals_that_of_transformers(small):
    questions, answers = made(plan_for(batch_size=4))
    own = small.answering(**questions._asdict(), start_positions=answers.start, end_positions=answers.end)
    torch.testing.assert_close(span_cross_entropy(small(questions), answers), own.loss)
    by_hand = F.cross_entropy(own.start_logits, answers.start) + F.cross_entropy(own.end_logits, answers.end)
    torch.testing.assert_close(own.loss, by_hand / 2)


# Steps.


def test_loss_falls_and_operations_are_those_of_the_architecture():
    with TrainStep.build("zoo/bert-tiny", **STEP | {"model_options": SMALL | {"dropout": 0.0}}) as step:
        step()
        first = step.loss_value()
        for _ in range(12):  # four batches in turn: the last is the first again
            step()
        step.check()
        assert step.loss_value() < first
        # A layer's four projections, its two wide ones, the head; scores and what is made of them. Backward is twice that.
        weights = 4 * 32**2 + 2 * 32 * 64 + 2 * 32
        tokens = 2 * 64
        assert step.demand.flops == 3 * (2 * weights * tokens + 4 * 64 * tokens * 32)


@pytest.mark.parametrize("build", [TrainStep.build, InferStep.build])
def test_squad_is_read_by_training_and_inference(root, build):
    settings = {key: value for key, value in STEP.items() if key != "lr"}
    with build("zoo/bert-tiny", **settings, data_root=root, data_required=True) as step:
        for _ in range(5):  # more than an epoch
            step()
        step.check()
        assert step.configuration["data_source"] == "resident"


# Broken data.


def test_tokens_outside_the_vocabulary_of_the_model_are_an_error(root):
    words = ("the", "cat", "who", "sat")
    late = [*(piece for piece in PIECES if piece not in words), *(f"w{n}" for n in range(2000)), *words]
    write_wordpiece(root / "bert-base-uncased", late)
    with pytest.raises(
        DataError, match=r"gives tokens up to 20\d\d, and the model knows 1500.\nUse the vocabulary"
    ):
        opened(plan_for(vocabulary=1500), data_root=root)
