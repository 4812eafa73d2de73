"""Generated pages are up to date, and describe every option, fixture, hook and command."""

import re
from xml.etree import ElementTree as ET

import pytest

from pytest_accel.commands.registry import COMMANDS
from pytest_accel.options import OPTIONS
from pytest_accel.report.columns import METRICS_IN_COLUMNS
from pytest_accel.stats.metric_gates import MEASURED
from tests.docs import picture, reference


@pytest.fixture(scope="module")
def generated():
    return reference.pages()


def test_committed_pages_are_the_generated_ones(generated):
    stale = [str(path) for path, text in generated.items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run `make docs`"


def test_picture_of_the_readme_is_small_and_has_the_recorded_text():
    recorded = re.sub(r"\x1b\[[\d;]*m", "", picture.RECORDED.read_text(encoding="utf-8"))
    drawn = "".join(ET.parse(picture.SVG).getroot().itertext())
    assert "".join(drawn.split()) == "".join(recorded.split())
    assert re.search(r"^REGRESSED  .* slower \(at least ", recorded, re.MULTILINE)
    assert max(map(len, recorded.splitlines())) <= picture.COLUMNS
    assert picture.SVG.stat().st_size < 15_000


def test_reference_has_no_other_pages(generated):
    assert set(reference.FOLDER.iterdir()) <= generated.keys()


def test_every_option_and_argument_has_a_help_text():
    assert all(option.help for option in OPTIONS)
    for parser in COMMANDS.values():
        assert parser.description
        assert [action.dest for action in parser._actions if not action.help] == []


def test_every_metric_of_a_column_is_documented():
    assert MEASURED.keys() >= METRICS_IN_COLUMNS
