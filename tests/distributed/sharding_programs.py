"""Programs of the ranks of test_process_group.py: micro-batches and shards of a small GPT over gloo."""

import torch
from torch import nn

from pytest_accel.workloads import demand
from pytest_accel.workloads.data.sources import RotatingSource
from pytest_accel.workloads.parallel import local
from pytest_accel.workloads.step import TrainStep
from pytest_accel.workloads.tasks.text import TokenPlan
from tests.support.steps import losses

GPT = {"layers": 2, "width": 32, "heads": 2}


def build(group, **options):
    arguments = {"batch_size": 4, "sequence": 16, "vocabulary": 64, "model_options": GPT, "lr": 1e-2}
    return TrainStep.build("zoo/gpt-tiny", ranks=group, **arguments | options)


def whole(gradient):
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


def gradients_of_one_batch(group, **options):
    """The same samples, whatever they are cut into."""
    with build(group, **options) as step:
        plan = TokenPlan(name="tokens", batch_size=4, sequence=16, vocabulary=64)
        make = {"device": torch.device("cpu"), "dtype": torch.float32, "memory_format": "contiguous"}
        inputs, targets = plan.make(0, seed=7, rank=group.rank, **make)
        size = options.get("micro_batch_size", 4)
        step._source = RotatingSource(list(zip(inputs.split(size), targets.split(size), strict=True)))
        step()
        return step.loss_value(), [whole(parameter.grad).clone() for parameter in step._trainable]


def same_gradients(group):
    loss, expected = gradients_of_one_batch(group)
    found = {}
    for name, options in {
        "micro-batches": {"micro_batch_size": 1},
        "shards": {"sharding": "fsdp"},
        "both": {"sharding": "fsdp", "micro_batch_size": 2},
    }.items():
        other, gradients = gradients_of_one_batch(group, **options)
        far = max(float((a - b).abs().max()) for a, b in zip(gradients, expected, strict=True))
        found[name] = {"loss": abs(other - loss), "gradients": far}
    return found | {"largest": max(float(each.abs().max()) for each in expected)}


def reduce_once(group):
    """Return the sum of the gradients after each micro-batch."""
    with build(group, micro_batch_size=2) as step:
        found, backward = [], step._backward

        def watched(batches):
            loss = backward(batches)
            found.append(sum(float(parameter.grad.double().sum()) for parameter in step._trainable))
            return loss

        step._backward = watched
        step()
        return found


def train_in_shards(group):
    with build(group) as step:
        found = {"ddp": losses(step), "parameters": step.configuration["parameters"]}
    with build(group, sharding="fsdp", clip=1000.0) as step:
        found["fsdp"] = losses(step)
        found["here"] = sum(local(parameter).numel() for parameter in step._trainable)
        found["configuration"] = step.configuration
        found["flops"] = step.demand.flops
    with build(group, sharding="fsdp", precision="bf16", model_options=GPT | {"checkpoint": True}) as step:
        found["bf16"] = losses(step)
    return found


def clip_alike(group):
    """A norm so small that every update is clipped: ranks that each clip by their own shards would differ."""
    norms = {}
    for name, options in {"ddp": {}, "fsdp": {"sharding": "fsdp"}}.items():
        with build(group, clip=1e-3, **options) as step:
            step()
            gradients = [whole(parameter.grad) for parameter in step._trainable]
            norms[name] = float(torch.nn.utils.get_total_norm(gradients))
    return norms


def build_in_shards(group):
    """As for a model that is too large to be built whole."""
    demand.UNSHARDED_SHARE = 0.0
    try:
        with build(group, sharding="fsdp") as step:
            embedding = step.parts.model.embedding.weight
            found = {
                "deviation": float(local(embedding).std()),
                "first": float(local(embedding).flatten()[0]),
                "tied": step.parts.model.head.weight is embedding,
                "norm": float(local(step.parts.model.norm.weight).mean()),
                "cosine": float(step.parts.model.cos[0, 0]),
            }
            return found | {"losses": losses(step)}
    finally:
        demand.UNSHARDED_SHARE = 0.8


def own_model(group):
    def mlp():
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))

    with TrainStep.build(mlp, data="mnist", batch_size=4, lr=0.1, ranks=group, sharding="fsdp") as step:
        step()
        step.check()
        return sum(local(parameter).numel() for parameter in step._trainable)


def plain_sgd(group):
    """Its fused kernel knows nothing of shards."""
    found = {}
    for name, options in {"ddp": {}, "fsdp": {"sharding": "fsdp"}}.items():
        with build(group, optimizer="sgd", **options) as step:
            found[name] = losses(step)
    return found


def refused(group):
    errors = []
    for options in ({"ddp": False}, {"compile": "reduce-overhead"}):
        try:
            build(group, sharding="fsdp", **options)
        except ValueError as error:
            errors.append(str(error))
    arguments = {"batch_size": 2, "image_size": 64, "ranks": group, "sharding": "fsdp", "precision": "bf16"}
    for model in ("resnet18", "zoo/dino-tiny"):
        try:
            TrainStep.build(model, **arguments)
        except ValueError as error:
            errors.append(str(error))
    return errors


PROGRAMS = (
    same_gradients,
    reduce_once,
    train_in_shards,
    clip_alike,
    build_in_shards,
    own_model,
    plain_sgd,
    refused,
)
