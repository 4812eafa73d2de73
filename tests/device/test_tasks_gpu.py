"""Models of every task on a real GPU, small: training and inference, DDP and FSDP of one rank, gradients."""

import numpy as np
import pytest
import torch

from pytest_accel.workloads.data.sources import RotatingSource
from pytest_accel.workloads.step import InferStep, TrainStep
from pytest_accel.workloads.tasks.text import TokenPlan
from tests.support.steps import losses

GPT = {"sequence": 128, "vocabulary": 1024, "batch_size": 8}
MODELS = {
    "zoo/dino-tiny": {"image_size": 64, "batch_size": 2, "clip": 0.1},
    "fasterrcnn_mobilenet_v3_large_320_fpn": {"image_size": 64, "batch_size": 2, "clip": 1.0},
    "zoo/segformer-b0": {"image_size": 64, "batch_size": 2},
    "zoo/deeplabv3plus-r18": {"image_size": 64, "batch_size": 2},
    "zoo/gpt-tiny": GPT,
    "zoo/bert-tiny": {"sequence": 64, "batch_size": 4},
}
NEEDS = {
    "segformer": "segmentation_models_pytorch",
    "deeplab": "segmentation_models_pytorch",
    "bert": "transformers",
}


def require(model):
    for part, package in NEEDS.items():
        if part in model:
            pytest.importorskip(package)


@pytest.mark.parametrize(
    ("model", "mode"),
    [
        *((model, None) for model in MODELS),
        *((model, "auto") for model in MODELS if not model.startswith(("zoo/gpt", "zoo/bert"))),
    ],
)
def test_models_of_every_task_train(gpu, model, mode):
    require(model)
    with TrainStep.build(model, device=gpu, precision="bf16", compile=mode, **MODELS[model]) as step:
        found = losses(step, 6)
    assert len(set(found)) > 1


@pytest.mark.parametrize("model", MODELS)
def test_models_of_every_task_infer(gpu, model):
    require(model)
    options = {name: value for name, value in MODELS[model].items() if name != "clip"}
    with InferStep.build(model, device=gpu, precision="bf16", compile=None, **options) as step:
        for _ in range(6):
            step()
        step.check()


@pytest.mark.parametrize(("mode", "checkpoint"), [(None, True), ("default", False)])
def test_sharded_model_learns_as_the_unsharded_one(group, mode, checkpoint):
    options = {"precision": "bf16", "compile": mode, "lr": 1e-3, **GPT}
    with TrainStep.build("zoo/gpt-tiny", device=group.device, **options) as step:
        expected = losses(step, 20)
    options |= {"model_options": {"checkpoint": checkpoint}, "sharding": "fsdp"}
    with TrainStep.build("zoo/gpt-tiny", device=group.device, ranks=group, **options) as step:
        found = losses(step, 20)
        assert step.configuration["sharding"] == "fsdp"
    assert expected[-1] < expected[0]  # a few batches in turn can be learnt by heart
    # In shards every operation is in bf16, and under autocast some are in fp32.
    assert found == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("model", ["zoo/dino-tiny", "zoo/gpt-tiny"])
def test_ddp_trains_models_compiled_whole_or_in_parts(group, model):
    require(model)
    with TrainStep.build(model, device=group.device, ranks=group, precision="bf16", **MODELS[model]) as step:
        losses(step, 6)


def gradients(device, micro_batch_size=None, **options):
    """Of one and the same batch, whatever it is cut into."""
    with TrainStep.build(
        "zoo/gpt-tiny", device=device, micro_batch_size=micro_batch_size, **GPT | options
    ) as step:
        plan = TokenPlan(name="tokens", **GPT)
        inputs, targets = plan.make(0, seed=7, device=device)
        size = micro_batch_size or GPT["batch_size"]
        step._source = RotatingSource(list(zip(inputs.split(size), targets.split(size), strict=True)))
        step()
        return step.loss_value(), [parameter.grad.float().clone() for parameter in step._trainable]


def test_accumulated_gradients_equal_those_of_the_batch(gpu):
    loss, whole = gradients(gpu, precision="fp32", compile=None)
    in_parts, summed = gradients(gpu, 2, precision="fp32", compile=None)
    assert in_parts == pytest.approx(loss, rel=1e-4)
    largest = max(float(each.abs().max()) for each in whole)
    for one, other in zip(whole, summed, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-2, atol=1e-3 * largest)


def test_clipping_unscales_fp16_gradients(gpu):
    """fp16 multiplies a loss by 65,536: a norm that forgot it would be clipped to nothing."""
    norms = {}
    for precision in ("bf16", "fp16"):
        _, found = gradients(gpu, precision=precision, clip=1e-2, compile=None)
        norms[precision] = float(torch.linalg.vector_norm(torch.stack([each.norm() for each in found])))
    assert norms["bf16"] == pytest.approx(1e-2, rel=0.02)
    assert norms["fp16"] == pytest.approx(norms["bf16"], rel=0.02)


def test_fp16_with_clipping_trains(gpu):
    with TrainStep.build("zoo/gpt-tiny", device=gpu, precision="fp16", clip=1.0, lr=1e-3, **GPT) as step:
        found = losses(step, 20)
    assert found[-1] < found[0]


def test_language_model_trains_on_texts(gpu, tmp_path):
    (tmp_path / "oscar").mkdir()
    sentence = np.random.default_rng(0).integers(0, 300, 90)
    np.tile(sentence, 400).astype(np.uint16).tofile(tmp_path / "oscar/train.bin")
    with TrainStep.build(
        "zoo/gpt-tiny", device=gpu, data="oscar", data_root=tmp_path, precision="bf16", lr=1e-2, **GPT
    ) as step:
        assert (step.configuration["data"], step.configuration["data_source"]) == ("oscar", "texts")
        found = losses(step, 30)
    assert found[-1] < found[0] - 0.5  # sentences repeat; made-up tokens would stay at chance
