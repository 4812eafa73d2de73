"""What is known of the data sets, and that knowing it costs no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_accel.workloads.data.images import open_images
from pytest_accel.workloads.data.sets import IMAGE_SETS


@pytest.mark.parametrize("known", IMAGE_SETS.values(), ids=lambda known: known.name)
def test_normalisation_has_a_figure_for_each_channel(known):
    assert IMAGE_SETS[known.name] is known
    assert len(known.mean) == len(known.std) == known.channels
    assert all(0 < figure < 1 for figure in (*known.mean, *known.std))


def test_the_figures_of_digits_are_those_of_its_training_images():
    values = open_images(None, "digits", "train").images.double() / 255
    assert IMAGE_SETS["digits"].mean == (round(values.mean().item(), 4),)
    assert IMAGE_SETS["digits"].std == (round(values.std(correction=0).item(), 4),)


def test_sets_and_errors_do_not_import_torch():
    program = "import sys, pytest_accel.workloads.data.sets, pytest_accel.workloads.data.errors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
