"""BERT answers questions: what its steps read, what they compute, what is refused; on the CPU."""

from __future__ import annotations

import json
import logging
import runpy
import socket
import sys
import warnings

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F

from pytest_accel.workloads import InferStep, TrainStep
from pytest_accel.workloads.build import make_batch
from pytest_accel.workloads.data.errors import DataError, SyntheticDataWarning
from pytest_accel.workloads.data.squad import Answers, Questions, open_squad
from pytest_accel.workloads.models import bert
from pytest_accel.workloads.models.build import build_model, task_of
from pytest_accel.workloads.tasks.text import QuestionPlan, span_cross_entropy
from tests.support.plans import CPU, going_to, made, step_config
from tests.support.vocabularies import PIECES, write_wordpiece

pytest.importorskip("transformers")

SMALL = {"layers": 1, "width": 32, "heads": 2, "inner": 64}
STEP = {"batch_size": 2, "sequence": 64, "lr": 1e-3, "model_options": SMALL}
PARAGRAPH = "The cats sat on a mat. It sat on the mat, unaffable."


def write_squad(root, questions=6, name="train-v1.1.json"):
    (root / "squad").mkdir(parents=True, exist_ok=True)
    words = PARAGRAPH.split()
    asked = [
        # Each its own answer, to tell them apart: its first word, its first two, ...
        {
            "id": str(n),
            "question": "Who sat?",
            "answers": [{"text": " ".join(words[: n + 1]), "answer_start": 0}],
        }
        for n in range(questions)
    ]
    article = {"paragraphs": [{"context": PARAGRAPH, "qas": asked}]}
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
    return plan.open(step_config(task, **choices), going_to(rank, world))


# The model.


def test_base_has_the_published_size():
    model, info = build_model("zoo/bert-base", device="meta")
    assert info.parameters == 108_893_186
    assert (info.task, info.vocabulary, info.sequence) == ("answering", 30522, 512)
    assert not info.convolutional
    dropouts = {layer.p for layer in model.modules() if isinstance(layer, torch.nn.Dropout)}
    assert dropouts == {0.1}


@torch.no_grad()
def test_the_ready_mask_gives_what_transformers_own_gives(small):
    questions, _ = made(plan_for())
    own = small.answering(**questions._asdict())
    found = small(questions)
    torch.testing.assert_close(found, Answers(own.start_logits, own.end_logits))


@torch.no_grad()
def test_padding_is_not_attended_to(small):
    questions, _ = made(plan_for())
    real = questions.attention_mask.bool()
    assert not bool(real.all())
    filled = questions._replace(input_ids=torch.where(real, questions.input_ids, 2000))
    torch.testing.assert_close(small(filled).start[real], small(questions).start[real])
    blind = filled._replace(attention_mask=torch.ones_like(filled.attention_mask))
    assert not torch.allclose(small(blind).start[real], small(questions).start[real])


def test_a_step_is_one_graph_whatever_is_masked(small):
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


def test_building_is_silent_and_asks_nobody(monkeypatch, caplog):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection"))
    logger = logging.getLogger("transformers")  # does not propagate
    logger.addHandler(caplog.handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model, _ = build_model("zoo/bert-tiny", **SMALL)
            span_cross_entropy(model(made(plan_for())[0]), made(plan_for())[1]).backward()
    finally:
        logger.removeHandler(caplog.handler)
    assert caplog.records == []


def test_one_seed_gives_the_same_weights():
    one, two, other = (build_model("zoo/bert-tiny", seed=seed, **SMALL)[0] for seed in (0, 0, 1))
    weights = [model.answering.qa_outputs.weight for model in (one, two, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_zoo_knows_it_without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)  # importing it fails
    assert task_of("zoo/bert-base") == "answering"
    names = runpy.run_path(bert.__file__)
    monkeypatch.setitem(names["build_bert"].__globals__, "find_spec", lambda _: None)
    with pytest.raises(
        ValueError, match=r"'zoo/bert-base' needs transformers. pip install 'pytest-accel\[suites\]'"
    ):
        names["build_bert"]("bert-base")


# Batches.


def test_a_batch_is_questions_and_answers():
    plan = plan_for(batch_size=3)
    questions, answers = made(plan)
    assert isinstance(questions, Questions)
    assert isinstance(answers, Answers)
    shadows = plan.on_meta()
    for batch in ((questions, answers), shadows):
        assert [tuple(each.shape) for part in batch for each in part] == [(3, 64)] * 3 + [(3,)] * 2
        assert {each.dtype for part in batch for each in part} == {torch.int64}
    assert plan.batch_bytes(torch.bfloat16) == sum(
        each.numel() * each.itemsize for part in (questions, answers) for each in part
    )
    assert (plan.work, plan.unit, plan.input_shape) == (3, "sequences", "64")


def test_batches_follow_from_seed_index_and_rank():
    plan = plan_for()
    assert torch.equal(made(plan)[0].input_ids, made(plan)[0].input_ids)
    others = [made(plan, 1), made(plan, seed=1), made(plan, rank=1)]
    assert not any(torch.equal(made(plan)[0].input_ids, each[0].input_ids) for each in others)


def test_a_batch_for_a_model_of_ones_own():
    questions, _ = make_batch("squad", batch_size=1, device=CPU)
    assert questions.input_ids.shape == (1, 384)
    questions, _ = make_batch("squad", batch_size=1, device=CPU, sequence=32, vocabulary=1100)
    assert questions.input_ids.shape == (1, 32)
    assert int(questions.input_ids.max()) < 1100


def test_real_questions_are_resident_and_dealt_once_an_epoch(root):
    seen = []
    for rank in range(2):
        found = opened(plan_for(batch_size=3), data_root=root, rank=rank, world=2)
        assert found.configuration == {"data_source": "resident", "data_windows": 6}
        assert found.order is not None
        questions, answers = next(found.source)
        assert questions.input_ids.shape == (3, 64)
        seen.append(answers.end.tolist())
    ends = open_squad(root, "train", sequence=64).ends.tolist()
    assert sorted(seen[0] + seen[1]) == sorted(set(ends))


def test_inference_reads_the_published_answers_in_order(root):
    found = opened(plan_for(batch_size=5), task="infer", data_root=root)
    assert found.configuration["data_windows"] == 5
    windows = open_squad(root, "test", sequence=64)
    questions, answers = next(found.source)
    assert torch.equal(questions.input_ids, windows.tokens.long())
    assert answers.end.tolist() == sorted(set(windows.ends.tolist()))


# The loss.


def test_the_loss_is_transformers_own(small):
    questions, answers = made(plan_for(batch_size=4))
    own = small.answering(**questions._asdict(), start_positions=answers.start, end_positions=answers.end)
    torch.testing.assert_close(span_cross_entropy(small(questions), answers), own.loss)
    by_hand = F.cross_entropy(own.start_logits, answers.start) + F.cross_entropy(own.end_logits, answers.end)
    torch.testing.assert_close(own.loss, by_hand / 2)


def test_an_output_that_is_no_span_is_told_the_remedy():
    with pytest.raises(TypeError, match=r"returned Tensor, and an answer needs two.*pass loss="):
        span_cross_entropy(torch.zeros(2, 64), made(plan_for())[1])


# Steps.


def test_a_step_trains_and_says_what_defines_it():
    with TrainStep.build("zoo/bert-tiny", **STEP | {"model_options": SMALL | {"dropout": 0.0}}) as step:
        step()
        first = step.loss_value()
        for _ in range(12):  # four batches in turn: the last is the first again
            step()
        step.check()
        assert step.loss_value() < first
        assert (step.work, step.unit) == (2, "sequences")
        wanted = {
            "model": "zoo/bert-tiny",
            "data": "squad",
            "data_source": "synthetic",
            "sequence": 64,
            "vocabulary": 30522,
            "optimizer": "adamw",
            "lr": 1e-3,
            "loss": "span_cross_entropy",
            "model.layers": 1,
            "model.dropout": 0.0,
        }
        assert wanted.items() <= step.configuration.items()
        # A layer's four projections, its two wide ones, the head; scores and what is made of them. Backward is twice that.
        weights = 4 * 32**2 + 2 * 32 * 64 + 2 * 32
        tokens = 2 * 64
        assert step.flops_per_step == 3 * (2 * weights * tokens + 4 * 64 * tokens * 32)


@pytest.mark.parametrize("build", [TrainStep.build, InferStep.build])
def test_real_data_goes_through_both_kinds_of_step(root, build):
    settings = {key: value for key, value in STEP.items() if key != "lr"}
    with build("zoo/bert-tiny", **settings, data_root=root, data_required=True) as step:
        for _ in range(5):  # more than an epoch
            step()
        step.check()
        assert step.configuration["data_source"] == "resident"


def test_without_a_word_a_window_is_the_published_one():
    with InferStep.build("zoo/bert-tiny", batch_size=1, model_options=SMALL) as step:
        step()
        assert step.output.start.shape == (1, 384)
        assert step.configuration["sequence"] == 384
    with InferStep.build("zoo/bert-tiny", batch_size=1, model_options=SMALL | {"sequence": 32}) as step:
        assert step.configuration["sequence"] == 32


def test_a_model_of_ones_own_reads_questions():
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scores = torch.nn.Embedding(1100, 2)

        def forward(self, questions):
            return self.scores(questions.input_ids).unbind(-1)

    with TrainStep.build(Own, data="squad", batch_size=2, sequence=32, vocabulary=1100) as step:
        step()
        step.check()
        assert step.unit == "sequences"


# What is refused.


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"sequence": 513}, "sequence: 513 is too much for zoo/bert-tiny. Valid: 512 or less"),
        ({"sequence": 8}, "sequence: 8 tokens .* are too few. Valid: 16 tokens or more"),
        ({"vocabulary": 40_000}, "vocabulary: 40000 is too much for zoo/bert-tiny. Valid: 30522 or less"),
        ({"num_classes": 2}, "num_classes: zoo/bert-tiny points at tokens, and has no classes. Leave it out"),
        (
            {"data": "imagenet"},
            "data: 'imagenet' does not fit zoo/bert-tiny, a model for answering. Valid: squad",
        ),
        ({"label_smoothing": 0.1}, "label_smoothing: question answering has none. Leave it out"),
        (
            {"source": "loader"},
            "source: 'loader' is not possible for squad. Valid: auto, synthetic, resident",
        ),
        ({"workers": 1}, "workers: squad is read from memory, without a loader. Leave workers out"),
        ({"decode": "host"}, "decode: 'host' is not possible for squad"),
        ({"model_options": {"heads": 3}}, "heads: 3 do not divide a width of 128"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_remedy(choices, words):
    with pytest.raises(ValueError, match=words):
        TrainStep.build("zoo/bert-tiny", **STEP | choices)


def test_questions_are_not_for_a_classifier():
    with pytest.raises(ValueError, match="data: 'squad' does not fit resnet18, a model for classification"):
        TrainStep.build("resnet18", data="squad", batch_size=2)


@pytest.mark.parametrize("lacking", ["squad", "bert-base-uncased"])
def test_a_set_that_is_not_whole_is_synthetic_or_an_error(root, lacking):
    (root / lacking).rename(root / "elsewhere")
    with pytest.warns(SyntheticDataWarning, match=f"{lacking}.* Synthetic data replaces it"):
        found = opened(plan_for(), data_root=root)
    assert found.configuration == {"data_source": "synthetic", "distinct_batches": 3}
    with pytest.raises(DataError, match=r"(?s)not found.*Real data is required"):
        opened(plan_for(), data_root=root, data_required=True)


def test_no_root_is_synthetic_without_a_word(recwarn, root):
    assert opened(plan_for()).configuration["data_source"] == "synthetic"
    assert opened(plan_for(), data_root=root, source="synthetic").configuration["data_source"] == "synthetic"
    assert not recwarn.list
    with pytest.raises(DataError, match="none was given"):
        opened(plan_for(), data_required=True)


def test_a_file_that_is_not_squad_is_one_error(root):
    (root / "squad/train-v1.1.json").write_text('{"data": [')
    with pytest.raises(DataError, match=r"train-v1.1.json:1: not JSON.*\nDownload the file again"):
        TrainStep.build("zoo/bert-tiny", **STEP, data_root=root)


def test_tokens_that_the_model_does_not_know_are_one_error(root):
    words = ("the", "cat", "who", "sat")
    late = [*(piece for piece in PIECES if piece not in words), *(f"w{n}" for n in range(2000)), *words]
    write_wordpiece(root / "bert-base-uncased", late)
    with pytest.raises(
        DataError, match=r"gives tokens up to 20\d\d, and the model knows 1500.\nUse the vocabulary"
    ):
        opened(plan_for(vocabulary=1500), data_root=root)
