"""A module with poptorch's interface that computes on the host: on copies of the weights, in fp32, until they are fetched."""

# ruff: noqa: N802 -- names of the package that it stands for

from copy import deepcopy
from types import SimpleNamespace

import torch


class Error(Exception):
    """As poptorch's own: no relative of RuntimeError."""


ReductionType = SimpleNamespace(Mean="mean")
MOST_SAMPLES = 32  # at once; more do not fit


class _Training:
    accumulation = 1

    def gradientAccumulation(self, number):
        self.accumulation = number

    def accumulationAndReplicationReductionType(self, kind):
        assert kind == ReductionType.Mean


class Options:
    def __init__(self):
        self.Training = _Training()

    def randomSeed(self, seed):
        self.seed = seed


def _with_scaling(base):
    class Optimizer(base):
        def __init__(self, params, lr, loss_scaling=None, **options):
            assert isinstance(params, list)
            super().__init__(params, lr=lr, **options)
            self.made_with = {"lr": lr, "loss_scaling": loss_scaling, **options}

    return Optimizer


optim = SimpleNamespace(
    **{name: _with_scaling(getattr(torch.optim, name)) for name in ("SGD", "Adam", "AdamW")}
)


def identity_loss(loss, reduction):
    assert reduction in ("none", "mean", "sum")
    return loss


class _Model:
    """A model on the device: a copy of the one on the host."""

    def __init__(self, model, options):
        self.host, self.options = model, options
        self.there = deepcopy(model).float()
        self.destroyed = False

    def check(self, *tensors):
        assert not self.destroyed
        for tensor in tensors:
            assert tensor.device.type == "cpu"  # poptorch copies
        if len(tensors[0]) // self.options.Training.accumulation > MOST_SAMPLES:
            raise Error(
                "Out of memory on tile 12: 700000 bytes used but tiles only have 638976 bytes of memory"
            )

    def destroy(self):
        self.destroyed = True


class _TrainingModel(_Model):
    def __init__(self, model, options, optimizer):
        super().__init__(model, options)
        group = {name: value for name, value in optimizer.made_with.items() if name != "loss_scaling"}
        self.optimizer = type(optimizer).__bases__[0](self.there.parameters(), **group)
        self.made_with = optimizer.made_with

    def __call__(self, inputs, targets):
        self.check(inputs, targets)
        parts = self.options.Training.accumulation
        assert len(inputs) % parts == 0
        self.optimizer.zero_grad()
        inputs = inputs.float()
        targets = targets.float() if targets.is_floating_point() else targets
        for part in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
            loss = self.there(*part) / parts
            loss.backward()
        self.optimizer.step()
        return (loss * parts).detach()

    def copyWeightsToHost(self):
        with torch.no_grad():
            for host, there in zip(self.host.parameters(), self.there.parameters(), strict=True):
                host.copy_(there)


class _InferenceModel(_Model):
    def __call__(self, inputs):
        self.check(inputs)
        assert not torch.is_inference_mode_enabled()
        return self.there(inputs.float()).half()


def trainingModel(model, options=None, optimizer=None):
    return _TrainingModel(model, options, optimizer)


def inferenceModel(model, options=None):
    return _InferenceModel(model, options)
