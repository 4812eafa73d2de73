"""Replay of recorded launches: batches, refusals and failed recordings. CUDA itself is in tests/device."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.measure.errors import OutOfMemory, StepError
from pytest_accel.workloads import build
from pytest_accel.workloads.compile import (
    CALLS_BEFORE_RECORDING,
    GraphReplay,
    _raise_cause,
    make_capturable,
    resolve_compile,
)
from pytest_accel.workloads.step import TrainStep

CPU = torch.device("cpu")


class OnTheHost(GraphReplay):
    """Records as a graph does: the call's arguments are the same tensors ever after."""

    recorded = 0

    def _call(self, batches):
        return self._body(iter(batches))

    def _record(self):
        self.recorded += 1

        def replay():
            self._result = self._body(iter(self._inputs))

        self._graph = SimpleNamespace(replay=replay)


def numbered():
    return ((torch.tensor([float(number)]), torch.tensor([-float(number)])) for number in count())


@given(batches=st.integers(1, 4), calls=st.integers(1, 12))
def test_every_call_takes_the_next_batches(batches, calls):
    def body(source):
        taken = [next(source) for _ in range(batches)]
        return [(float(inputs), float(targets)) for inputs, targets in taken]

    replay, source = OnTheHost(body, batches=batches, device=CPU), numbered()
    taken = [pair for _ in range(calls) for pair in replay(source)]
    assert taken == [(float(number), -float(number)) for number in range(calls * batches)]
    assert replay.recorded == (calls > CALLS_BEFORE_RECORDING)


def test_replay_reads_its_own_copy_of_the_inputs():
    """A source may write its next batch where the last one lay."""
    lasting = torch.zeros(1)

    def source():
        for number in count():
            lasting.fill_(number)
            yield lasting, lasting

    seen = []
    replay, batches = OnTheHost(lambda taken: seen.append(next(taken)[0]), batches=1, device=CPU), source()
    for _ in range(CALLS_BEFORE_RECORDING + 3):
        replay(batches)
    assert seen[-1] is seen[-2] is seen[-3]
    assert seen[-1] is not lasting
    assert float(seen[-1]) == CALLS_BEFORE_RECORDING + 2


@pytest.mark.parametrize(("name", "counts"), [("AdamW", True), ("SGD", False)])
def test_step_count_of_an_optimizer_is_on_the_device(name, counts):
    optimizer = getattr(torch.optim, name)([torch.zeros(1, requires_grad=True)])
    make_capturable(optimizer)
    assert [group.get("capturable", False) for group in optimizer.param_groups] == [counts]


def test_optimizer_that_counts_steps_on_the_host_is_refused():
    optimizer = torch.optim.Adagrad([torch.zeros(1, requires_grad=True)])
    with pytest.raises(ValueError, match=r"Adagrad counts its steps on the host.* leave replay out"):
        make_capturable(optimizer)


def failed(cause):
    try:
        try:
            raise cause
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")
    except RuntimeError as error:
        return error


def test_failed_recording_reports_its_cause():
    with pytest.raises(StepError, match=r"could not be recorded: \.item\(\) waits\..* Pass replay=False"):
        _raise_cause(failed(RuntimeError(".item() waits")))
    with pytest.raises(OutOfMemory, match="a batch of 8"):
        _raise_cause(failed(OutOfMemory("a batch of 8")))
    with pytest.raises(RuntimeError, match=r"^CUDA error: out of memory$"):
        _raise_cause(failed(RuntimeError("CUDA error: out of memory")))


class TwoRanks:
    rank, size = 0, 2


@pytest.mark.parametrize(
    ("choices", "why"),
    [
        ({}, "launches are recorded on CUDA devices, and this is cpu"),
        (
            {"device": "cuda", "compile": "reduce-overhead"},
            "compile='reduce-overhead' records launches itself",
        ),
        ({"device": "cuda", "precision": "fp16"}, "in fp16 the host counts the steps that overflowed"),
        ({"device": "cuda", "ranks": TwoRanks()}, "in a process group the ranks wait for each other"),
        ({"device": "cuda", "model": "zoo/dino-tiny"}, "detectors wait for the device"),
    ],
    ids=["no CUDA", "recorded twice", "a scaler", "a process group", "a detector"],
)
def test_steps_that_cannot_be_recorded_are_refused_before_they_are_built(choices, why):
    with pytest.raises(ValueError, match=rf"^replay: {why}.* Leave replay out\.$"):
        TrainStep.build(**{"model": "zoo/gpt-tiny", "batch_size": 2, "replay": True, **choices})


@pytest.mark.parametrize(
    ("options", "recordable"),
    [
        ({}, True),
        ({"loss": torch.nn.functional.cross_entropy}, False),
        ({"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1)}, False),
        ({"model": lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 100))}, False),
    ],
    ids=["ours", "a loss", "an optimizer", "a model"],
)
def test_steps_with_user_code_are_not_recorded_by_default(monkeypatch, options, recordable):
    """User code may wait for the device, which a recording cannot."""
    found = []

    def resolve(config, *known, **more):
        found.append(resolve_compile(replace(config, device=torch.device("cuda")), *known, **more))
        return None, False

    monkeypatch.setattr(build, "resolve_compile", resolve)
    with TrainStep.build(
        **{"model": "zoo/wide_resnet-tiny", "data": "cifar100", "batch_size": 2, "image_size": 32, **options}
    ):
        assert found == [("default", True) if recordable else ("reduce-overhead", False)]
