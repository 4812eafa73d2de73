"""Metrics of a built step: loader efficiency, latency, epochs and accuracy; and how a test ends without memory."""

from types import SimpleNamespace

import pytest
import torch

from pytest_accel.measure.arguments import OutOfMemory, StepError
from pytest_accel.measure.rounds import Alone
from pytest_accel.workloads import measured_step
from pytest_accel.workloads.measured_step import (
    Converge,
    Train,
    check_loader_efficiency,
    evaluate,
    latency_metrics,
    loader_metrics,
    steps_for_epochs,
    train_epochs,
)
from pytest_accel.workloads.step import InferStep, TrainStep

TINY = {"data": "digits", "batch_size": 8}
SYNTHETIC = {"data": "cifar100", "batch_size": 2}
METRICS = {"loader_step_s": 0.02, "compute_step_s": 0.008, "loader_efficiency": 0.8}


class OutcomeError(Exception):
    """Replaces pytest's outcomes."""


HOST = SimpleNamespace(synchronize=lambda: None)  # nothing runs asynchronously


def test_what_may_not_fit_is_an_outcome(monkeypatch):
    reported = []

    def end(item, text):
        reported.append((item, text))
        raise OutcomeError

    monkeypatch.setattr(measured_step, "does_not_fit", end)
    train = Train(SimpleNamespace(item="test_gpt"))
    with pytest.raises(OutcomeError), train._plain_failures(may_not_fit=True):
        raise OutOfMemory("175b")
    assert reported == [("test_gpt", "175b")]
    with pytest.raises(pytest.fail.Exception, match="175b"), train._plain_failures(may_not_fit=False):
        raise OutOfMemory("175b")


def test_step_with_a_loader_is_timed_in_parts_and_continues():
    with TrainStep.build("zoo/wide_resnet-tiny", **TINY) as step:
        step()
        source = step._source
        metrics = loader_metrics(step, HOST, Alone(), step_s=0.5, budget_s=0.01)
        assert set(metrics) == {"loader_step_s", "compute_step_s", "loader_efficiency"}
        assert metrics["loader_efficiency"] == metrics["compute_step_s"] / 0.5
        assert step._source is source
        step()
        step.check()


def test_low_loader_efficiency_reports_both_rates_and_the_remedy():
    found = SimpleNamespace(run=SimpleNamespace(metrics=METRICS), work_per_step=100, unit="images")
    with pytest.raises(
        StepError,
        match=r"^min_loader_efficiency: 80.0% of .* 90% were required: the loader alone gives 5,000 images/s, "
        r"the device alone takes 12,500. More workers=",
    ):
        check_loader_efficiency(found, 0.9)
    check_loader_efficiency(found, 0.8)


def test_latency_percentiles_grow():
    with InferStep.build("zoo/wide_resnet-tiny", **TINY) as step:
        found = latency_metrics(step, HOST, Alone(), budget_s=0.01)
        assert list(found) == ["latency_p50_s", "latency_p90_s", "latency_p99_s"]
        assert 0 < found["latency_p50_s"] <= found["latency_p90_s"] <= found["latency_p99_s"]
        assert step.steps >= 100


def digits(**changes):
    options = {"data": "digits", "batch_size": 64, "optimizer": "adamw", "lr": 3e-3}
    return TrainStep.build("zoo/wide_resnet-tiny", **options | changes)


def train(step, epochs=1, *, epoch_size=None, target=None, synchronize=lambda: None, report=lambda _: None):
    return train_epochs(
        step, epochs=epochs, epoch_size=epoch_size, target=target, synchronize=synchronize, report=report
    )


def test_digits_are_learned_in_three_epochs():
    reported = []
    with digits(augment=True) as step:
        found = train(step, 3, target=0.5, report=reported.append)
    assert found["accuracy"] > 0.7  # chance is 0.1; with the seed it is 0.84
    assert set(found) == {"first_epoch_s", "epoch_s", "accuracy", "time_to_target_s"}
    assert reported[0] == "epoch 1 of 3"
    assert reported[1].startswith("epoch 2 of 3, accuracy ")


def test_evaluation_does_not_change_training():
    """It draws no random number, has no gradients, and leaves all layers in training mode."""
    losses, seen = [], []
    for evaluated in (False, True):
        with digits(augment=True) as step:
            step.parts.model.register_forward_hook(lambda *_: seen.append(torch.is_inference_mode_enabled()))
            for number in range(6):
                step()
                if evaluated and number % 2:
                    assert evaluate(step) < 1.0
                    assert step.parts.model.training
            losses.append(step.loss_value())
    assert losses[0] == losses[1]
    assert any(seen)


def test_missed_target_reports_the_accuracy_reached():
    with (
        digits(lr=1e-7) as step,
        pytest.raises(
            StepError, match=r"wide_resnet-tiny: an accuracy of .*% in 1 epochs does not .* 95.00%"
        ),
    ):
        train(step, 1, target=0.95)


@pytest.mark.parametrize(
    ("model", "options"), [("zoo/wide_resnet-tiny", SYNTHETIC), ("zoo/autoencoder-tiny", TINY)]
)
def test_target_without_a_test_set_fails_before_the_first_step(model, options):
    with TrainStep.build(model, **options) as step:
        with pytest.raises(StepError, match=r"target=0\.5 needs a labelled test set"):
            train(step, 1, epoch_size=4, target=0.5)
        assert step.steps == 0


def test_synthetic_data_needs_an_epoch_size():
    with TrainStep.build("zoo/wide_resnet-tiny", **SYNTHETIC) as step:
        with pytest.raises(StepError, match="epoch_size: data='cifar100' is synthetic"):
            train(step, 1)
        assert step.steps == 0
        found = train(step, 2, epoch_size=5)
        assert step.steps == 5  # two epochs of five images, in steps of two
        assert set(found) == {"first_epoch_s", "epoch_s"}


def test_epoch_takes_every_image_once():
    with digits(batch_size=100) as step:
        assert [steps_for_epochs(step, epochs, None) for epochs in (1, 2, 3)] == [15, 29, 44]  # of 1,437
        assert steps_for_epochs(step, 1, 250) == 15  # real images have epochs of their own
        train(step, 1)
        assert step.steps == 15


def test_independent_jobs_are_not_evaluated_as_one():
    accel = SimpleNamespace(ranks=TwoRanks(0, None))
    with pytest.raises(pytest.fail.Exception, match="converge evaluates one"):
        Converge(accel)("zoo/wide_resnet-tiny", epochs=1, ddp=False)


class Trainee:
    """A step of ten steps an epoch, on a clock that only steps and evaluations move."""

    def __init__(self, monkeypatch, accuracies):
        self.info = SimpleNamespace(name="model")
        self.now_s = self.queued_s = 0.0
        remaining = iter(accuracies)

        def evaluate_slowly(_):
            self.now_s += 1000.0
            return next(remaining)

        monkeypatch.setattr(measured_step, "time", SimpleNamespace(perf_counter=lambda: self.now_s))
        monkeypatch.setattr(measured_step, "has_test_set", lambda _: True)
        monkeypatch.setattr(measured_step, "steps_for_epochs", lambda _, epochs, __: 10 * epochs)
        monkeypatch.setattr(measured_step, "evaluate", evaluate_slowly)

    def __call__(self):
        self.queued_s += 1.0

    def synchronize(self):
        self.now_s += self.queued_s
        self.queued_s = 0.0


def test_epochs_are_timed_to_the_end_of_their_work_without_evaluation(monkeypatch):
    step = Trainee(monkeypatch, [0.1, 0.6, 0.5])
    found = train(step, 3, target=0.6, synchronize=step.synchronize)
    assert found == {"first_epoch_s": 10.0, "epoch_s": 10.0, "accuracy": 0.5, "time_to_target_s": 20.0}


class TwoRanks(Alone):
    """One of two ranks, with the other's answer."""

    def __init__(self, rank, other):
        self.rank, self.size, self.other = rank, 2, other
        self.sent = []

    def gather(self, value):
        self.sent.append(value)
        return [value, self.other]


def test_accuracy_is_over_the_images_of_all_ranks():
    shares = []
    for rank in (0, 1):
        ranks = TwoRanks(rank, [100, 100])
        with digits(ranks=ranks, ddp=False, batch_size=100) as step:
            accuracy = evaluate(step)
            assert steps_for_epochs(step, 1, None) == 8
        (right, seen) = ranks.sent[0]
        assert accuracy == pytest.approx((right + 100) / (seen + 100))
        shares.append(seen)
    assert shares == [180, 180]  # of 360: none twice, none left out
