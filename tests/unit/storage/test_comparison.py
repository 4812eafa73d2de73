"""Sets side by side: which rows are one workload, by what ratio, and what the gate says."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.comparison import Judgement, is_stored
from pytest_accel.stats.comparison import judged as judged_in
from pytest_accel.stats.gate import Outcome, Verdict
from pytest_accel.stats.results import Ending, Result
from pytest_accel.storage.comparison import Side, compare
from tests.support.stored import CAPPED, H200, KEY, OTHER, UPGRADED, runs

ENVIRONMENTS = {each.key: each for each in (H200, UPGRADED, CAPPED)}


def entry(key=KEY, *, measured=None, batch_size=256, unit="images", status=Ending.RECORDED, **more) -> Result:
    return Result(
        benchmark=key,
        status=status,
        configuration={"batch_size": batch_size},
        work_per_step=batch_size,
        unit=unit,
        runs=runs() if measured is None else measured,
        **more,
    )


def side(label="a", *entries, platform="h200", group="", **more) -> Side:
    by_key = {each.benchmark: each for each in entries or (entry(),)}
    return Side(
        label=label,
        group=group or label,
        platform=platform,
        results=by_key,
        environments=ENVIRONMENTS,
        **more,
    )


def judged(baseline, candidate, tolerance=None) -> Judgement:
    return judged_in(baseline, candidate, ENVIRONMENTS, tolerance)


class TestMatching:
    def test_one_key_is_one_row(self):
        found = compare([side("a", entry(), entry(OTHER)), side("b", entry(OTHER))])
        assert [row.key for row in found.rows] == [KEY, OTHER]
        assert [[cell.value is not None for cell in row.cells] for row in found.rows] == [
            [True, False],
            [True, True],
        ]


class TestRatios:
    def test_above_one_is_better_whichever_way_better_lies(self):
        slow = entry(measured=runs(step_s=0.02))
        found = compare([side("a"), side("b", slow)], metrics=["throughput", "time"])
        assert {row.metric: round(row.cells[1].ratio, 1) for row in found.rows} == {
            "throughput": 0.5,
            "step_time": 0.5,
        }
        assert all(row.cells[0].ratio is None for row in found.rows)

    def test_what_describes_a_measurement_has_none(self):
        hot, cold = (entry(measured=runs(metrics={"temperature_c": at})) for at in (80.0, 40.0))
        found = compare([side("a", hot), side("b", cold)], metrics=["clocks"])
        assert [cell.value.value for cell in found.rows[0].cells] == [80.0, 40.0]
        assert found.rows[0].cells[1].ratio is None

    def test_a_set_of_several_platforms_is_held_to_the_same_platform(self):
        old = [
            side(f"old {p}", entry(measured=runs(step_s=s)), platform=p, group="old")
            for p, s in (("h200", 0.01), ("a100", 0.02))
        ]
        new = [replace(each, label=each.label.replace("old", "new"), group="new") for each in old]
        found = compare([*old, *new])
        assert found.held_to == (0, 0, 0, 1)
        assert found.rows[0].cells[3].ratio == pytest.approx(1.0)

    def test_another_unit_is_another_row(self):
        found = compare([side("a"), side("b", entry(unit="tokens"), platform="a100")])
        assert [row.unit for row in found.rows] == ["images/s", "tokens/s"]
        assert all(cell.ratio is None for row in found.rows for cell in row.cells)

    def test_what_is_not_alike_is_said(self):
        found = compare([side("a"), side("b", entry(batch_size=512), platform="a100")])
        assert "batch_size 256 -> 512" in found.rows[0].cells[1].differs

    @given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.sampled_from(["step_time", "throughput"]))
    def test_ratios_of_two_columns_are_inverse(self, one, two, metric):
        a, b = (
            side(platform, entry(measured=runs(1, step_s=step_s, noise=0.0)), platform=platform)
            for step_s, platform in ((one, "a100"), (two, "gh200"))
        )
        there, back = (
            compare(sides, metrics=["time" if metric == "step_time" else metric]).rows[0].cells[1].ratio
            for sides in ([a, b], [b, a])
        )
        assert there * back == pytest.approx(1.0)
        assert there == pytest.approx(one / two), "a shorter step is better, in either metric"


class TestMetrics:
    def test_one_that_nothing_has_is_refused_with_those_there_are(self):
        with pytest.raises(
            ValueError, match=r"--metric mfu: nothing here has it. There are: throughput, time"
        ):
            compare([side("a")], metrics=["mfu"])

    def test_a_metric_of_the_users_own(self):
        measured = runs(metrics={"latency_p99_s": 0.5})
        found = compare([side("a", entry(measured=measured))], metrics=["latency_p99_s"])
        assert (found.rows[0].cells[0].value.value, found.rows[0].unit) == (0.5, "s")


class TestJudging:
    def test_a_loss_is_a_regression_with_the_environment_that_changed(self):
        slow = runs(step_s=0.012, session="s2", environment=UPGRADED)
        found = judged(entry(), entry(measured=slow))
        assert found.outcome is Outcome.REGRESSED
        assert [change.name for change in found.changes] == ["driver", "torch"]

    def test_the_very_same_runs_are_not_judged_against_themselves(self):
        found = judged(entry(), entry())
        assert found.status == "same-runs"
        assert found.outcome is None

    def test_only_what_is_new_is_the_candidate(self):
        grown = (*runs(), *runs(2, step_s=0.02, session="s2"))
        found = judged(entry(), entry(measured=grown))
        assert found.outcome is Outcome.REGRESSED
        assert found.verdicts[0].runs == 2

    def test_a_rounded_run_is_the_same_run(self):
        (run,) = runs(1)
        rounded = replace(run, rounds_s=tuple(float(f"{s:.7g}") for s in run.rounds_s))
        assert is_stored(rounded, [run])
        assert not is_stored(replace(run, session="other"), [run])

    @pytest.mark.parametrize(
        ("candidate", "why"),
        [
            (
                entry(measured=runs(session="s2", environment=CAPPED)),
                "another machine (power limit (W) 500 appeared)",
            ),
            (
                entry(measured=runs(session="s2"), batch_size=512),
                "the benchmark changed (batch_size 256 -> 512",
            ),
        ],
    )
    def test_what_cannot_be_judged_says_why(self, candidate, why):
        found = judged(entry(), candidate)
        assert found.outcome is None
        assert found.status == "not-judged"
        assert why in found.why_not

    @pytest.mark.parametrize(
        ("name", "then", "now"), [("accuracy", 0.9, 0.6), ("energy_per_step_j", 36.0, 39.0)]
    )
    def test_gated_metrics_are_judged_too(self, name, then, now):
        gated = Verdict(outcome=Outcome.OK, tolerance=0.02, of=name)
        verdicts = (Verdict(outcome=Outcome.OK, tolerance=0.05), gated)
        stored, worse = runs(metrics={name: then}), runs(session="s2", metrics={name: now})
        found = judged(entry(measured=stored), entry(measured=worse, verdicts=verdicts))
        assert found.outcome is Outcome.REGRESSED
        assert [verdict.of for verdict in found.verdicts] == ["throughput", name]

    def test_the_tolerance_asked_for_goes_before_the_stored_one(self):
        slow = entry(measured=runs(step_s=0.0105, session="s2"), tolerance=0.2)
        assert judged(entry(tolerance=0.05), slow).outcome is Outcome.OK
        assert judged(entry(), slow, tolerance=0.03).outcome is Outcome.REGRESSED

    def test_the_first_set_is_the_baseline_of_all_others_of_its_platform(self):
        slow = entry(measured=runs(step_s=0.02, session="s2"))
        found = compare([side("a"), side("b", slow), side("c", slow, platform="a100")])
        assert [
            (each.side.label, each.judgement.outcome)
            for each in found.judged
            if each.judgement.outcome is Outcome.REGRESSED
        ] == [("b", Outcome.REGRESSED)]
        assert len(found.judged) == 1

    def test_the_verdict_is_against_the_same_variant_as_the_ratio(self):
        other = entry(measured=runs(step_s=0.005, environment=CAPPED))
        first = [
            side("old amd", other, platform="cpu-amd", group="old"),
            side("old intel", platform="cpu-intel", group="old"),
        ]
        slow = side("new", entry(measured=runs(step_s=0.02, session="s2")), platform="cpu-intel")
        found = compare([*first, slow])
        assert found.held_to[2] == 1
        assert [(each.baseline.label, each.judgement.outcome) for each in found.judged] == [
            ("old intel", Outcome.REGRESSED)
        ]

    @pytest.mark.parametrize(
        ("status", "why"),
        [
            (Ending.FAILED, "it failed"),
            (Ending.SKIPPED, "it was skipped"),
            (Outcome.INVALID, "it was invalid"),
            (Outcome.DOES_NOT_FIT, "it did not fit"),
            (Ending.NOT_MEASURED, "nothing says how it ended"),
        ],
    )
    def test_how_a_benchmark_ended_goes_before_its_figures(self, status, why):
        found = judged(entry(), entry(measured=runs(session="s2"), status=status))
        assert (found.why_not, found.status, found.outcome) == (why, "failed", None)
        found = judged(entry(status=status), entry(measured=runs(session="s2")))
        assert (found.why_not, found.status) == (f"{why} in the first set", "not-judged")

    def test_what_failed_before_it_was_measured_is_lost(self):
        unmeasured = Result(benchmark=KEY, status=Ending.FAILED)
        found = compare([side("a"), side("b", unmeasured, entry(OTHER))])
        assert [(each.key, each.judgement.why_not) for each in found.judged] == [(KEY, "it failed")]

    def test_what_a_later_set_of_the_platform_lacks_is_missing(self):
        sides = [side("a", entry(), entry(OTHER)), side("b", entry(measured=runs(session="s2")))]
        found = {each.key: each.judgement.status for each in compare(sides).judged}
        assert found[OTHER] == "missing"
        assert OTHER not in {each.key for each in compare(sides, wanted=lambda key: key == KEY).judged}
        assert compare([sides[0], side("c", platform="a100")]).judged == (), (
            "nobody asked it of that platform"
        )
