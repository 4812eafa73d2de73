"""Figures beside measurements, links, and what a site expects: the pure half of references."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_accel.storage.references import (
    DOUBTS,
    FLAGS,
    METRICS,
    UNITS,
    Claim,
    Expectation,
    Figure,
    MeasuredFigure,
    check_expectation,
    expectation_of,
    expected_for,
    linked_figures,
    pair_figures,
    similar_links,
)
from tests.support.claims import FORMULAS, claim_follows, computed_claim

POSITIVE = st.floats(1e-6, 1e9)
SEGMENT = st.sampled_from(["a", "b", "ab", "resnet50", "resnet"])
IDS = st.lists(SEGMENT, min_size=1, max_size=4).map("/".join)


def a_figure(**changes) -> Figure:
    values = {
        "id": "olivia/single/baseline/gh200",
        "table": "Test 1",
        "row": "Single GPU",
        "platform": "gh200",
        "workload": "wide_resnet training",
        "configuration": {"batch_size": 32},
        "metric": "throughput",
        "unit": "images/s",
        "value": 2640.0,
    }
    return Figure(**{**values, **changes})


def rate(value: float, unit: str = "images/s") -> MeasuredFigure:
    return MeasuredFigure(metric="throughput", value=value, unit=unit)


class TestLinks:
    FIGURES = tuple(
        a_figure(id=each)
        for each in ("nrp/train/resnet50/a100", "nrp/train/resnet50/gh200", "nrp/train/resnet152/a100")
    )

    def test_a_whole_id_is_one_figure(self):
        assert linked_figures(self.FIGURES, "nrp/train/resnet50/gh200") == (self.FIGURES[1],)

    def test_a_beginning_is_all_platforms_of_a_workload(self):
        assert linked_figures(self.FIGURES, "nrp/train/resnet50") == self.FIGURES[:2]

    @pytest.mark.parametrize("link", ["nrp/train/resnet", "nrp/train/resnet50/", "train/resnet50", "", "/"])
    def test_half_a_segment_is_nothing(self, link):
        assert linked_figures(self.FIGURES, link) == ()

    def test_a_link_that_leads_nowhere_has_a_suggestion(self):
        assert "nrp/train/resnet50" in similar_links(self.FIGURES, "nrp/trian/resnet50")

    @given(st.lists(IDS, unique=True), IDS)
    def test_linked_are_those_whose_segments_begin_with_the_links(self, ids, link):
        wanted = [each for each in ids if each.split("/")[: len(link.split("/"))] == link.split("/")]
        assert [figure.id for figure in linked_figures([a_figure(id=each) for each in ids], link)] == wanted


class TestBeside:
    def test_more_throughput_is_better(self):
        (found,) = pair_figures([rate(6600)], [a_figure()])
        assert found.ratio == pytest.approx(2.5)

    def test_less_energy_is_better(self):
        theirs = a_figure(metric="energy", unit="Wh/epoch", value=32.0)
        (found,) = pair_figures([MeasuredFigure(metric="energy", value=16.0, unit="Wh/epoch")], [theirs])
        assert found.ratio == pytest.approx(2.0)

    @pytest.mark.parametrize(
        "figure",
        [
            a_figure(flags=("relative-only",)),
            a_figure(unit="tokens/s"),
            a_figure(metric="first_epoch_throughput"),
        ],
        ids=["relative only", "another unit", "another metric"],
    )
    def test_what_cannot_be_compared_stands_beside_nothing(self, figure):
        assert pair_figures([rate(6600)], [figure]) == ()

    def test_what_describes_a_platform_is_not_measured(self):
        power = a_figure(metric="tdp", unit="W", value=700.0)
        assert pair_figures([MeasuredFigure(metric="tdp", value=700.0, unit="W")], [power]) == ()

    @pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
    def test_a_measurement_without_a_ratio_stands_beside_nothing(self, value):
        assert pair_figures([rate(value)], [a_figure()]) == ()

    def test_a_doubtful_figure_is_shown(self):
        assert len(pair_figures([rate(1.0)], [a_figure(flags=("contradictory",), note="why")])) == 1

    @given(
        metric=st.sampled_from([name for name, better in METRICS.items() if better]),
        mine=POSITIVE,
        theirs=POSITIVE,
    )
    def test_above_one_is_better_on_this_machine(self, metric, mine, theirs):
        assume(mine != theirs)
        (found,) = pair_figures(
            [MeasuredFigure(metric=metric, value=mine, unit="s")],
            [a_figure(metric=metric, unit="s", value=theirs)],
        )
        is_better = mine > theirs if METRICS[metric] == "more" else mine < theirs
        assert (found.ratio >= 1) if is_better else (found.ratio <= 1)
        assert math.isclose(abs(math.log(found.ratio)), abs(math.log(mine / theirs)), abs_tol=1e-12)


def an_expectation(**changes) -> Expectation:
    values = {"value": 4200.0, "lower": -0.05, "upper": 0.1, "unit": "images/s", "origin": "pyproject.toml"}
    return Expectation(**{**values, **changes})


FRACTIONS = st.none() | st.floats(0, 1)
EXPECTATIONS = st.builds(
    Expectation,
    value=POSITIVE,
    lower=FRACTIONS.map(lambda bound: bound and -bound),
    upper=FRACTIONS,
    unit=st.just("images/s"),
    origin=st.just("pyproject.toml"),
)


class TestExpectations:
    def test_too_little_says_by_how_much_and_outside_which_bound(self):
        found = check_expectation(an_expectation(), rate(3900))
        assert found is not None
        assert found.bound == "lower"
        assert found.relative == pytest.approx(-0.0714, abs=1e-4)
        assert str(found) == (
            "3,900 images/s is 7.1 % below the 4,200 of pyproject.toml, outside its lower bound of 5.0 % "
            "(at least 3,990)"
        )

    def test_too_much_is_outside_the_upper_bound(self):
        assert str(check_expectation(an_expectation(), rate(5250))) == (
            "5,250 images/s is 25.0 % above the 4,200 of pyproject.toml, outside its upper bound of 10.0 % "
            "(at most 4,620)"
        )

    @pytest.mark.parametrize("measured", [3990, 4200, 4620])
    def test_the_bounds_are_allowed(self, measured):
        assert check_expectation(an_expectation(), rate(measured)) is None

    @pytest.mark.parametrize(("open_side", "measured"), [("lower", 1e-9), ("upper", 1e12)])
    def test_an_open_side_allows_everything(self, open_side, measured):
        assert check_expectation(an_expectation(**{open_side: None}), rate(measured)) is None
        assert check_expectation(an_expectation(), rate(measured)) is not None

    def test_another_unit_is_not_compared(self):
        with pytest.raises(
            ValueError, match=r"expects images/s.* in tokens/s.*Write the value in \"tokens/s\""
        ):
            check_expectation(an_expectation(), rate(4200, "tokens/s"))

    def test_nan_is_not_within_any_bounds(self):
        with pytest.raises(ValueError, match="not a finite number"):
            check_expectation(an_expectation(lower=None, upper=None), rate(math.nan))

    @pytest.mark.parametrize(
        ("wrong", "says"),
        [
            ({"value": 0.0}, "the value 0.0 is not a positive number"),
            ({"value": math.nan}, "not a positive number"),
            ({"lower": 0.05}, "the lower bound 0.05 is not a fraction between -1 and 0"),
            ({"lower": -5.0}, "Write -0.05 for 5 % less"),
            ({"lower": math.nan}, "the lower bound nan"),
            ({"upper": -0.1}, "the upper bound -0.1 is not a fraction of at least 0"),
            ({"upper": math.inf}, "the upper bound inf"),
            ({"unit": " "}, "the unit is empty"),
        ],
    )
    def test_bad_bounds_are_refused_with_the_remedy(self, wrong, says):
        with pytest.raises(ValueError, match=says):
            an_expectation(**wrong)

    @given(EXPECTATIONS, POSITIVE)
    def test_outside_is_exactly_what_is_not_between_the_bounds(self, expectation, measured):
        found = check_expectation(expectation, rate(measured))
        assert (found is None) == (expectation.least <= measured <= expectation.most)
        if found is not None:
            assert found.bound == ("lower" if measured < expectation.value else "upper")
            assert str(found)

    @given(EXPECTATIONS)
    def test_the_value_itself_is_always_allowed(self, expectation):
        assert check_expectation(expectation, rate(expectation.value)) is None


class TestExpectationsOfFigures:
    def test_less_than_the_figure_by_more_than_the_tolerance_is_outside(self):
        expectation = expectation_of(a_figure(), 0.1)
        assert expectation is not None
        assert expectation.origin == "olivia/single/baseline/gh200"
        assert check_expectation(expectation, rate(2377)) is None
        assert check_expectation(expectation, rate(2375)) is not None
        assert check_expectation(expectation, rate(1e9)) is None

    def test_more_time_is_the_worse_side_of_a_time(self):
        expectation = expectation_of(a_figure(metric="epoch_time", unit="s", value=10.0), 0.1)
        assert expectation is not None
        assert (
            check_expectation(expectation, MeasuredFigure(metric="epoch_time", value=1.0, unit="s")) is None
        )
        assert (
            check_expectation(expectation, MeasuredFigure(metric="epoch_time", value=11.1, unit="s"))
            is not None
        )

    @pytest.mark.parametrize("flag", [*sorted(DOUBTS), "relative-only", "per-device"])
    def test_nothing_is_gated_on_a_doubtful_or_relative_figure(self, flag):
        assert expectation_of(a_figure(flags=(flag,), note="why"), 0.1) is None

    def test_nothing_is_gated_on_a_property(self):
        assert expectation_of(a_figure(metric="tdp", unit="W"), 0.1) is None


class TestWhichExpectation:
    EXACT = "bench_suites/test_cnn.py::test_cnn[resnet50]"
    TABLE = {  # noqa: RUF012 - read only
        "*::test_cnn*": {"gh200": an_expectation(value=1.0), "a100": an_expectation(value=2.0)},
        EXACT: {"gh200": an_expectation(value=3.0)},
        "*": {"a100": an_expectation(value=4.0), "t4": an_expectation(value=5.0)},
        "*[resnet?0]": {"v100": an_expectation(value=6.0)},
    }

    @pytest.mark.parametrize(
        ("platform", "value"), [("gh200", 3.0), ("a100", 2.0), ("t4", 5.0), ("v100", 6.0)]
    )
    def test_the_node_id_itself_then_the_first_pattern_with_the_platform(self, platform, value):
        found = expected_for(self.TABLE, self.EXACT, platform)
        assert found is not None
        assert found.value == value

    def test_no_entry_is_no_expectation(self):
        assert expected_for(self.TABLE, self.EXACT, "mi250") is None
        assert expected_for({}, self.EXACT, "gh200") is None

    def test_brackets_are_those_of_the_node_id(self):
        table = {"*test_x[ab]": {"cpu": an_expectation()}}
        assert expected_for(table, "t.py::test_x[ab]", "cpu") is not None
        assert expected_for(table, "t.py::test_xa", "cpu") is None


def a_claim(formula, *groups, stated=0.0, decimals=1, relation="equals", total=None) -> Claim:
    return Claim(
        id="x/claims/y",
        stated=stated,
        decimals=decimals,
        unit="%",
        relation=relation,
        formula=formula,
        of=groups,
        total=total,
        follows=True,
        note="",
    )


class TestClaims:
    VALUES = {"a": 30.0, "b": 40.0, "c": 5.0}  # noqa: RUF012 - read only

    @pytest.mark.parametrize(
        ("formula", "of", "total", "gives"),
        [
            ("value", ("a",), None, 30),
            ("percent_less", ("a", "b"), None, 25),
            ("percent_more", ("b", "a"), None, 100 / 3),
            ("ratio", ("b", "c"), None, 8),
            ("product", ("a", "c"), None, 150),
            ("sum", ("a", "b", "c"), None, 75),
            ("efficiency", ("b", "c"), 16, 50),
            ("over", ("c",), 20, 4),
        ],
    )
    def test_formulas(self, formula, of, total, gives):
        assert computed_claim(a_claim(formula, of, total=total), self.VALUES) == (pytest.approx(gives),)

    def test_every_formula_is_tested(self):
        (mark,) = (each for each in self.test_formulas.pytestmark if each.name == "parametrize")
        assert {case[0] for case in mark.args[1]} == set(FORMULAS)

    @pytest.mark.parametrize(
        ("stated", "decimals", "true"),
        [(33.3, 1, True), (33.4, 1, False), (33, 0, True), (34, 0, False), (30, -1, True), (40, -1, False)],
    )
    def test_equal_is_to_the_digits_stated(self, stated, decimals, true):
        claim = a_claim("percent_more", ("b", "a"), stated=stated, decimals=decimals)
        assert claim_follows(claim, self.VALUES) is true

    def test_half_of_the_last_digit_is_still_equal(self):
        assert claim_follows(a_claim("value", ("x",), stated=0.3, decimals=1), {"x": 0.35})
        assert not claim_follows(a_claim("value", ("x",), stated=0.3, decimals=1), {"x": 0.3501})

    @pytest.mark.parametrize(
        ("relation", "stated", "true"),
        [("at least", 30, True), ("at least", 31, False), ("at most", 40, True), ("at most", 39, False)],
    )
    def test_a_claim_of_several_must_hold_of_each(self, relation, stated, true):
        claim = a_claim("value", ("a",), ("b",), stated=stated, relation=relation)
        assert claim_follows(claim, self.VALUES) is true

    @given(st.floats(0.1, 10), st.floats(0.1, 10))
    def test_less_of_one_is_more_of_the_other(self, a, b):
        values = {"a": a, "b": b}
        (less,) = computed_claim(a_claim("percent_less", ("a", "b")), values)
        (more,) = computed_claim(a_claim("percent_more", ("b", "a")), values)
        assert math.isclose((1 - less / 100) * (1 + more / 100), 1)

    @given(POSITIVE, st.integers(0, 3))
    def test_a_rounded_number_follows_from_what_it_was_rounded_from(self, value, decimals):
        claim = a_claim("value", ("a",), stated=round(value, decimals), decimals=decimals)
        assert claim_follows(claim, {"a": value})


def test_every_flag_is_explained_and_every_doubt_is_a_flag():
    assert all(text.endswith(".") for text in FLAGS.values())
    assert set(FLAGS) >= DOUBTS
    assert len(set(UNITS)) == len(UNITS)
