"""Defaults of compile and replay, and the replay of recorded launches. CUDA itself is in tests/device."""

from functools import cache, partial
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from pytest_accel.measure.arguments import StepError
from pytest_accel.measure.rounds import Alone
from pytest_accel.workloads.compile import (
    CALLS_BEFORE_RECORDING,
    GraphReplay,
    _raise_cause,
    make_capturable,
    resolve_compile,
)
from pytest_accel.workloads.config import StepConfig
from pytest_accel.workloads.data.sources import RotatingSource
from pytest_accel.workloads.input_pipeline import InputPipeline
from pytest_accel.workloads.models.build import build_model
from pytest_accel.workloads.step import TrainStep
from tests.support.plans import plan_data

# Defaults: by the operations of a step and the number of its layers.


@pytest.fixture(scope="module")
def built():
    return cache(partial(build_model, device="meta"))


WHOLE, PARTS, LAUNCHED = ("default", True), ("reduce-overhead", False), ("default", False)


@pytest.fixture(scope="module")
def resolved(built):
    def resolve(
        model, data, batch_size, *, varied=False, threaded=False, device="cuda", ranks=None, **chosen
    ):
        module, info = built(model)
        config = StepConfig.of(
            "train",
            model,
            {"batch_size": batch_size, **chosen},
            device=torch.device(device),
            ranks=ranks or Alone(),
        )
        return resolve_compile(
            config,
            module,
            info,
            plan_data(data, info, batch_size=batch_size),
            InputPipeline(source=RotatingSource(()), configuration={}, threaded=threaded, varied=varied),
        )

    return resolve


@pytest.mark.parametrize(
    ("model", "data", "batch_size", "way"),
    [
        ("zoo/wide_resnet", "cifar100", 32, WHOLE),  # half a TFLOP
        ("zoo/wide_resnet", "cifar100", 256, LAUNCHED),  # 3.7, in 29 layers
        ("resnet152", "imagenet", 160, PARTS),  # 11, in 311 layers
        ("resnet152", "imagenet", 256, LAUNCHED),
    ],
)
def test_step_with_little_work_per_launch_is_replayed(resolved, model, data, batch_size, way):
    assert resolved(model, data, batch_size) == way


@pytest.mark.parametrize("batch_size", [32, 256])  # replayed whole, and launched
def test_shapes_threads_and_ranks_override_the_work_per_launch(resolved, batch_size):
    step = ("zoo/wide_resnet", "cifar100", batch_size)
    assert resolved(*step, varied=True) == LAUNCHED  # one shape after the other
    assert resolved(*step, threaded=True) == PARTS  # decoding threads run beside the recorded launches
    assert resolved(*step, ranks=SimpleNamespace(size=2)) == LAUNCHED


def test_separately_compiled_parts_are_replayed_at_smaller_batches(resolved, built, monkeypatch):
    model, _ = built("resnet152")
    monkeypatch.setattr(model, "compiled_apart", [model.layer1], raising=False)
    assert resolved("resnet152", "imagenet", 160) == LAUNCHED
    assert resolved("resnet152", "imagenet", 64) == PARTS


SHORT = ("zoo/wide_resnet", "cifar100", 32)


def user_model():
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 100))


def test_step_that_cannot_be_recorded_whole_is_recorded_in_parts(resolved):
    # Code of the user may wait for the device, which a recording cannot.
    assert resolved(*SHORT, loss=F.cross_entropy) == PARTS
    assert resolved(*SHORT, optimizer=torch.optim.SGD) == PARTS
    assert resolved(user_model, "cifar100", 32) == PARTS
    assert resolved(*SHORT, replay=False) == PARTS
    assert (
        resolved(*SHORT, loss=F.cross_entropy, micro_batch_size=16) == LAUNCHED
    )  # parts cannot accumulate gradients
    assert resolved(*SHORT, micro_batch_size=16) == WHOLE


def test_explicit_compile_and_replay_are_respected(resolved):
    assert resolved(*SHORT, compile=None) == (None, False)
    assert resolved(*SHORT, compile="max-autotune") == ("max-autotune", False)
    assert resolved(*SHORT, compile=None, replay=True) == (None, True)
    assert resolved("resnet152", "imagenet", 256, replay=True) == WHOLE
    assert resolved(*SHORT, device="cpu") == (None, False)


# Replay.


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


def test_step_count_of_an_optimizer_is_on_the_device_or_it_is_refused():
    weights = [torch.zeros(1, requires_grad=True)]
    make_capturable(torch.optim.SGD(weights))  # counts none
    adamw = torch.optim.AdamW(weights)
    make_capturable(adamw)
    assert adamw.param_groups[0]["capturable"]
    with pytest.raises(ValueError, match=r"Adagrad counts its steps on the host.* leave replay out"):
        make_capturable(torch.optim.Adagrad(weights))


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
    with pytest.raises(RuntimeError, match=r"^CUDA error: out of memory$"):
        _raise_cause(failed(RuntimeError("CUDA error: out of memory")))


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"device": "cuda", "compile": "reduce-overhead"},
        {"device": "cuda", "precision": "fp16"},
        {"device": "cuda", "ranks": SimpleNamespace(rank=0, size=2)},
        {"device": "cuda", "model": "zoo/dino-tiny"},
    ],
    ids=["no CUDA", "recorded twice", "a scaler", "a process group", "a detector"],
)
def test_steps_that_cannot_be_recorded_are_refused_before_they_are_built(choices):
    with pytest.raises(
        ValueError, match=r"^replay: a step is recorded on a CUDA device.* Leave replay out\.$"
    ):
        TrainStep.build(**{"model": "zoo/gpt-tiny", "batch_size": 2, "replay": True, **choices})
