"""Question answering with BERT on the CPU: model, loss and steps."""

from importlib.util import find_spec

import pytest
import torch

from pytest_accel.workloads.models.build import build_model
from pytest_accel.workloads.step import TrainStep
from pytest_accel.workloads.tasks.text import Answers, QuestionPlan, span_cross_entropy
from tests.support.plans import made

# Found, not imported: every worker of xdist would.
pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")

SMALL = {"layers": 1, "width": 32, "heads": 2, "inner": 64}
STEP = {"batch_size": 2, "sequence": 64, "lr": 1e-3, "model_options": SMALL}


@pytest.fixture
def small():
    model, _ = build_model("zoo/bert-tiny", **SMALL)
    return model.eval()


def plan_for(batch_size=2, **changes):
    return QuestionPlan(
        **{"name": "squad", "batch_size": batch_size, "vocabulary": 30522, "sequence": 64} | changes
    )


def test_bert_base_has_the_published_size():
    _, info = build_model("zoo/bert-base", device="meta")
    assert (info.parameters, info.vocabulary, info.sequence) == (108_893_186, 30522, 512)


@torch.no_grad()
def test_attention_mask_equals_that_of_transformers(small):
    questions, _ = made(plan_for())
    own = small.answering(**questions._asdict())
    found = small(questions)
    torch.testing.assert_close(found, Answers(own.start_logits, own.end_logits))


def test_step_is_one_graph_for_any_mask(small):
    from torch._dynamo.testing import CompileCounter

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


def test_loss_equals_that_of_transformers(small):
    questions, answers = made(plan_for(batch_size=4))
    own = small.answering(**questions._asdict(), start_positions=answers.start, end_positions=answers.end)
    torch.testing.assert_close(span_cross_entropy(small(questions), answers), own.loss)


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


def test_squad_stays_synthetic_where_real_data_is_required(tmp_path):
    with TrainStep.build("zoo/bert-tiny", **STEP, data_root=tmp_path, data_required=True) as step:
        assert step.configuration["data_source"] == "synthetic"
