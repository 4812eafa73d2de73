"""Quantities as people type and read them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.quantities import (
    clipped,
    gibibytes,
    parse_count,
    parse_fraction,
    parse_seconds,
    percent,
    printable,
    seconds,
    si,
)


class TestParseFraction:
    @given(st.floats(0, 0.9999))
    def test_fraction_is_itself(self, value):
        assert parse_fraction(repr(value)) == value

    @given(st.floats(0, 99.99))
    def test_percentage_is_a_hundredth(self, value):
        assert parse_fraction(f"{value!r}%") == pytest.approx(value / 100)
        assert parse_fraction(f" {value!r} % ") == parse_fraction(f"{value!r}%")

    @pytest.mark.parametrize("text", ["", "%", "much", "5 percent", "5%%", "0,05", "0x1p-3"])
    def test_other_texts_say_what_is_valid(self, text):
        with pytest.raises(ValueError, match=r"is not a fraction or a percentage\. Write 0\.05 or 5%\."):
            parse_fraction(text)

    @pytest.mark.parametrize("text", ["1", "5", "100%", "-1%", "-0.1", "inf", "nan", "nan%"])
    def test_beyond_a_hundred_percent_says_what_is_valid(self, text):
        alone = "; a number alone is a fraction: 1 is 100 %" if text in {"1", "5", "inf"} else ""
        with pytest.raises(ValueError, match=rf"^is not between 0 and 100 %{alone}\. Write 0\.05 or 5%\.$"):
            parse_fraction(text)


class TestParseSeconds:
    @given(st.floats(1e-6, 1e3))
    def test_every_unit(self, value):
        assert parse_seconds(repr(value)) == value
        assert parse_seconds(f"{value!r}s") == value
        assert parse_seconds(f"{value!r} ms") == pytest.approx(value / 1000)
        assert parse_seconds(f"{value!r}min") == pytest.approx(value * 60)
        assert parse_seconds(f"{value!r}m") == pytest.approx(value * 60)
        assert parse_seconds(f" {value!r}h ") == pytest.approx(value * 3600)

    @pytest.mark.parametrize("text", ["", "s", "ms", "soon", "5 parsecs", "1:30", "5s ms"])
    def test_other_texts_say_what_is_valid(self, text):
        with pytest.raises(ValueError, match=r"is not a duration\. Write 5, 5s, 200ms or 2min\."):
            parse_seconds(text)

    @pytest.mark.parametrize("text", ["0", "-5", "-5s", "inf", "nan", "1e400", "1e10"])
    def test_impossible_durations_say_what_is_valid(self, text):
        with pytest.raises(
            ValueError, match=r"is not a positive duration of at most 115 days\. Write 5, 5s, 200ms or 2min\."
        ):
            parse_seconds(text)


class TestSeconds:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (3.2e-5, "32 us"),
            (0.0012, "1.2 ms"),
            (0.0451, "45.1 ms"),
            (1.0, "1 s"),
            (12.34, "12.3 s"),
            (99.9, "99.9 s"),
            (150, "2.5 min"),
            (2e-7, "0.2 us"),
        ],
    )
    def test_by_example(self, value, text):
        assert seconds(value) == text


@pytest.mark.parametrize(("characters", "text"), [(10, "abcdefghij"), (9, "abcde…hij"), (4, "ab…j")])
def test_clipped_text_is_as_long_as_it_may_be(characters, text):
    assert clipped("abcdefghij", characters) == text


class TestRates:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (2640.0, "2,640"),
            (91223.4, "91,223"),
            (12.3456, "12.35"),
            (0.012345, "0.01235"),
            (0.0, "0"),
            (999.96, "1,000"),
        ],
    )
    def test_by_example(self, value, text):
        assert si(value).removesuffix(".0") == text

    @pytest.mark.parametrize("value", [math.inf, math.nan])
    def test_broken_figures_do_not_raise(self, value):
        assert si(value) in ("inf", "nan")


@pytest.mark.parametrize(
    ("value", "text"), [(0.0712, "7.1 %"), (-0.0712, "-7.1 %"), (0.0, "0.0 %"), (19.0, "1900.0 %")]
)
def test_percent(value, text):
    assert percent(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(45 << 20, "45 MiB"), (3 << 29, "1.5 GiB"), (1 << 30, "1.0 GiB")]
)
def test_memory(value, text):
    assert gibibytes(value) == text


# --- names and lines --------------------------------------------------------------------------------


def test_what_moves_a_cursor_or_ends_a_line_is_spelled_out():
    assert printable("a\x1b[31m\n\u202eb\x9b") == r"a\x1b[31m\n\u202eb\x9b"
    assert printable("test_x[ä-µ] †") == "test_x[ä-µ] †"


def test_count_may_have_any_blanks_around_it():
    """The separators of Unicode too, which int() does not strip."""
    assert parse_count(0, 9)(" 5\x1d") == 5
