"""The answers of all ranks as one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_accel.distributed.group import GroupAnswer, RankAnswer
from pytest_accel.distributed.launch import WorkerError
from pytest_accel.options import Settings
from pytest_accel.platforms.names import PlatformName
from pytest_accel.session import gangs
from pytest_accel.session.gangs import Gangs, found_by
from pytest_accel.session.placement import PLACEMENT


def answered(*payloads, culprit=None):
    ranks = tuple(RankAnswer(rank=rank, payload=payload) for rank, payload in enumerate(payloads))
    return GroupAnswer(ranks=ranks, culprit=culprit)


def payload(outcome="passed", text="", printed="", **more):
    report = {"sections": [("Captured stdout call", printed)] if printed else []}
    return {"outcome": outcome, "text": text, "cause": text, "reports": [report], **more}


def test_all_passed_is_what_rank_0_answered():
    found = found_by(answered(payload(extra_info={"a": 0}), payload(extra_info={"a": 1})))
    assert found.outcome == "passed"
    assert found.extra_info == {"a": 0}
    assert found.sound
    assert found.sections == []


def test_a_failure_names_its_rank_and_shows_what_the_others_printed():
    found = found_by(answered(payload(printed="fine here"), payload("failed", "boom"), culprit=1))
    assert found.cause == "rank 1 of 2: boom"
    assert not found.sound
    assert found.sections == [
        ("ranks", "this is rank 1 of 2"),
        ("Captured stdout call of rank 0", "fine here"),
    ]


def test_of_several_failures_the_first_in_time_is_read_and_others_are_named():
    found = found_by(answered(payload("failed", "lost my peer"), payload("failed", "boom"), culprit=1))
    assert found.cause == "rank 1 of 2: boom"
    assert "rank 0 failed too: lost my peer" in found.sections[0][1]


def test_what_all_ranks_skip_for_one_reason_leaves_a_sound_gang():
    def left(line, when):
        report = {"sections": [], "longrepr": ["test_suite.py", line, "Skipped: no"]}
        return payload("skipped", "no", when=when, reports=[report])

    early, late, other = left(7, "setup"), left(7, "call"), left(9, "call")
    assert found_by(answered(early, early)).sound
    assert found_by(answered(late, late)).sound
    assert not found_by(answered(late, other)).sound  # not at the same place
    assert found_by(answered(late, late)).outcome == found_by(answered(late, other)).outcome == "skipped"


def test_a_skip_on_one_rank_is_a_failure_that_says_so():
    found = found_by(answered(payload(), payload("skipped", "not today", when="call")))
    assert found.outcome == "failed"
    assert "rank 1 of 2 skipped (not today) and others did not" in found.text


def test_a_failure_that_was_expected_on_one_rank_is_expected():
    found = found_by(answered(payload(), payload("skipped", "known", when="call", xfailed=True)))
    assert found.outcome == "skipped"
    assert not found.sound


UNFIT = {"text": "a batch of 4096", "environment": {"identity": {"gpu": "H200"}, "context": {}}}


class TestDoesNotFit:
    """A batch that does not fit on one rank does not fit, whatever became of the others."""

    def unfit(self, **more):
        return payload("skipped", "a batch of 4096", when="call", unfit={**UNFIT, **more})

    def test_on_all_ranks_is_said_in_its_own_words(self):
        found = found_by(answered(self.unfit(), self.unfit(), culprit=0))
        assert found.outcome == "skipped"
        assert found.unfit.text == "a batch of 4096"
        assert found.unfit.environment.identity == {"gpu": "H200"}
        assert not found.sound

    @pytest.mark.parametrize("other", [payload(), payload("skipped", "no", when="call"), None])
    def test_on_one_rank_names_it(self, other):
        """None: the other one waited in a collective until it was ended."""
        found = found_by(answered(other, self.unfit(), culprit=1))
        assert found.outcome == "skipped"
        assert found.unfit.text == "rank 1 of 2: a batch of 4096"
        assert found.reports

    def test_before_anything_was_built_leaves_a_gang_for_the_next_item(self):
        found = found_by(answered(self.unfit(nothing_built=True), self.unfit(nothing_built=True), culprit=0))
        assert found.unfit.nothing_built
        assert found.sound

    @pytest.mark.parametrize("other", ["built", "passed", "skipped", "gone"])
    def test_before_one_rank_built_anything_says_nothing_of_the_others(self, other):
        others = {
            "built": self.unfit(),
            "passed": payload(),
            "skipped": payload("skipped", "no", when="call"),
            "gone": None,
        }
        found = found_by(answered(others[other], self.unfit(nothing_built=True), culprit=1))
        assert found.unfit
        assert not found.sound

    @pytest.mark.parametrize("other", [payload("failed", "boom"), None])
    def test_does_not_hide_a_rank_that_failed_or_is_gone(self, other):
        found = found_by(answered(other, self.unfit(), culprit=0))
        assert found.outcome == "failed"
        assert found.unfit is None


class TestDevicesOfOthers:
    """The session waits for them, and gives no order meanwhile."""

    @pytest.fixture
    def run(self, monkeypatch):
        waited, started = [], []

        def wait(config, settings, uuids, progress, *, label):
            waited.append((label, uuids))
            return "GPU-1 is held by pid 4711"

        def start(*_):
            started.append(True)
            raise WorkerError("no ranks here")

        monkeypatch.setattr(gangs, "wait_until_free", wait)
        monkeypatch.setattr(Gangs, "_start", start)
        machine = SimpleNamespace(devices_for=lambda platform: [SimpleNamespace(uuid="GPU-1")])

        def of(*, benchmark=True, disabled=False):
            monkeypatch.setattr(gangs.what, "is_benchmark", lambda item: benchmark)
            config = SimpleNamespace(
                stash={PLACEMENT: SimpleNamespace(machine=machine)},
                getoption=lambda name, default: disabled,
            )
            item = SimpleNamespace(name="test_step")
            return Gangs(config).run(item, PlatformName(device="h200"), Settings(), None, fresh=True)

        of.waited, of.started = waited, started
        return of

    def test_one_that_is_not_to_be_had_is_a_failure_and_no_process_is_started(self, run):
        found = run()
        assert (found.outcome, found.text) == ("failed", "GPU-1 is held by pid 4711")
        assert run.waited == [("test_step", ["GPU-1"])]
        assert not run.started

    @pytest.mark.parametrize("how", [{"benchmark": False}, {"disabled": True}])
    def test_what_measures_nothing_waits_for_nobody(self, run, how):
        assert run(**how).text == "no ranks here"
        assert not run.waited
        assert run.started
