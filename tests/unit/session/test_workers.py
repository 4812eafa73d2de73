"""Workers of a session: merged answers of ranks, and processes that are started together."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from pytest_accel.distributed.group import GroupAnswer, RankAnswer
from pytest_accel.measure.locks import LockedError
from pytest_accel.options import Settings
from pytest_accel.platforms.catalogue import PlatformName
from pytest_accel.session import workers
from pytest_accel.session.accel import SESSION_ID
from pytest_accel.session.workers import Workers, merge_answers


def answered(*payloads, culprit=None):
    ranks = tuple(RankAnswer(rank=rank, payload=payload) for rank, payload in enumerate(payloads))
    return GroupAnswer(ranks=ranks, culprit=culprit)


def payload(outcome="passed", text="", printed="", **more):
    report = {"sections": [("Captured stdout call", printed)] if printed else []}
    return {"outcome": outcome, "text": text, "cause": text, "reports": [report], **more}


def test_pass_on_all_ranks_is_the_answer_of_rank_0():
    found = merge_answers(answered(payload(text="a"), payload(text="b")))
    assert (found.outcome, found.text) == ("passed", "a")
    assert found.reusable
    assert not found.sections


def test_failure_names_its_rank_and_shows_output_of_the_others():
    found = merge_answers(answered(payload(printed="fine here"), payload("failed", "boom"), culprit=1))
    assert found.cause == "rank 1 of 2: boom"
    assert not found.reusable
    assert found.sections == [
        ("ranks", "this is rank 1 of 2"),
        ("Captured stdout call of rank 0", "fine here"),
    ]


def test_first_failure_in_time_is_shown_and_others_are_named():
    found = merge_answers(answered(payload("failed", "lost my peer"), payload("failed", "boom"), culprit=1))
    assert found.cause == "rank 1 of 2: boom"
    assert "rank 0 failed too: lost my peer" in found.sections[0][1]


@pytest.mark.parametrize(("when", "reusable"), [("setup", True), ("call", False)])
def test_skip_on_all_ranks_leaves_workers_reusable_before_the_call(when, reusable):
    found = merge_answers(answered(*[payload("skipped", "no", when=when)] * 2))
    assert (found.outcome, found.reusable) == ("skipped", reusable)


def test_skip_on_one_rank_is_a_failure():
    found = merge_answers(answered(payload(), payload("skipped", "not today", when="call")))
    assert found.outcome == "failed"
    assert "rank 1 of 2 skipped (not today) and others did not" in found.text


UNFIT = {"text": "a batch of 4096", "environment": {"identity": {"gpu": "H200"}, "context": {}}}


class TestDoesNotFit:
    """A batch that does not fit on one rank does not fit, whatever became of the others."""

    def unfit(self):
        return payload("skipped", "a batch of 4096", when="call", unfit=UNFIT)

    def test_on_all_ranks_is_said_in_its_own_words(self):
        found = merge_answers(answered(self.unfit(), self.unfit(), culprit=0))
        assert found.outcome == "skipped"
        assert found.unfit.text == "a batch of 4096"
        assert found.unfit.environment.identity == {"gpu": "H200"}
        assert not found.reusable

    @pytest.mark.parametrize("other", [payload(), payload("skipped", "no", when="call"), None])
    def test_on_one_rank_names_it(self, other):
        """None: the other one waited in a collective until it was ended."""
        found = merge_answers(answered(other, self.unfit(), culprit=1))
        assert found.outcome == "skipped"
        assert found.unfit.text == "rank 1 of 2: a batch of 4096"
        assert found.reports

    @pytest.mark.parametrize("other", [payload("failed", "boom"), None])
    def test_does_not_hide_a_rank_that_failed_or_is_gone(self, other):
        found = merge_answers(answered(other, self.unfit(), culprit=0))
        assert found.outcome == "failed"
        assert found.unfit is None


def test_unavailable_device_is_a_failure_and_no_process_is_started(monkeypatch):
    @contextmanager
    def held(*_):
        raise LockedError("GPU-1 is held by pid 4711")
        yield

    monkeypatch.setattr(workers, "hold_devices", held)
    monkeypatch.setattr(Workers, "_start", lambda *_: pytest.fail("a process was started"))
    config, item = SimpleNamespace(stash={SESSION_ID: "s"}), SimpleNamespace(nodeid="test_step")
    found = Workers(config).run(item, PlatformName(device="h200"), Settings(), None, fresh=True)
    assert (found.outcome, found.text) == ("failed", "GPU-1 is held by pid 4711")
