"""Platform names: one spelling each, and one reading of each spelling."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_accel.platforms.catalogue import (
    PlatformName,
    PlatformNameError,
    clashes,
    parse_name,
)

DEVICES = ["gh200", "a100", "rtx6000", "rtx6000ada", "mi250", "mi300x", "gc200", "l4", "l40s", "cpu"]
device_names = st.from_regex(r"[a-z][a-z0-9_xn]{0,7}", fullmatch=True)
names = st.builds(
    PlatformName,
    device_names,
    per_node=st.integers(1, 999),
    nodes=st.integers(1, 20_000),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gh200", PlatformName("gh200")),
        ("a100x4", PlatformName("a100", 4)),
        ("gh200x4n2", PlatformName("gh200", 4, 2)),
        ("gh200n2", PlatformName("gh200", 1, 2)),
        ("cpu", PlatformName("cpu")),
        ("cpux2", PlatformName("cpu", 2)),
        ("rtx6000", PlatformName("rtx6000")),
        ("rtx6000x4", PlatformName("rtx6000", 4)),
        ("mi300x", PlatformName("mi300x")),
        ("mi300xx8", PlatformName("mi300x", 8)),
        ("mi300xx8n2", PlatformName("mi300x", 8, 2)),
        ("mi250x8", PlatformName("mi250", 8)),
    ],
)
@pytest.mark.parametrize("devices", [DEVICES, None], ids=["known devices", "no list"])
def test_reads_the_names_of_the_catalogue(text, expected, devices):
    assert parse_name(text, devices) == expected
    assert str(expected) == text
    assert expected.devices == expected.per_node * expected.nodes


@given(st.lists(device_names, min_size=2, max_size=6, unique=True), st.data())
def test_without_clashes_every_name_has_one_reading(devices, data):
    assume(not clashes(devices))
    name = data.draw(names)
    name = PlatformName(data.draw(st.sampled_from(devices)), name.per_node, name.nodes)
    assert parse_name(str(name), devices) == name


@given(st.text(max_size=12))
def test_any_text_is_a_canonical_name_or_an_error(text):
    name = parse_or_none(text)
    assert name is None or str(name) == text


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("a100x1", "Write a100."),
        ("a100n1", "Write a100."),
        ("a100x4n1", "Write a100x4."),
        ("a100x1n2", "Write a100n2."),
        ("a100x0", "Write a100."),
        ("a100x04", "Write a100x4."),
        ("a100n02", "Write a100n2."),
        ("a100x4n00", "Write a100x4."),
        ("a100n2x4", "Write a100x4n2."),
        ("A100", "Write a100."),
        ("A100 x 4", "Write a100x4."),
        ("a100-x4", "Write a100x4."),
        ("", "such as a100x4"),
        ("4xa100", "such as a100x4"),
        ("a100x4n2!", "such as a100x4"),
        ("a100x1000", "there is no device 'a100x1000'"),
    ],
)
def test_a_bad_name_says_what_to_write(text, remedy):
    with pytest.raises(PlatformNameError) as caught:
        parse_name(text, DEVICES)
    assert remedy in str(caught.value)
    assert repr(text) in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_a_device_that_reads_as_another_clashes():
    assert clashes(["a100", "a100x4"]) == [("a100x4", "a100")]
    assert clashes(["ge", "gen2"]) == [("gen2", "ge")]
    assert clashes(["mi300", "mi300x", "rtx6000", "rtx6000ada"]) == []


def parse_or_none(text):
    try:
        return parse_name(text)
    except PlatformNameError:
        return None
