"""What docs/guide/noise.md says that noise costs is what the gate computes."""

from __future__ import annotations

import re

import pytest

from pytest_accel.stats.gate import loss, policy_at_noise, resolution_factor
from pytest_accel.stats.quantities import percent
from pytest_accel.stats.verdict import Policy
from tests.docs.pages import ROOT

TABLE = re.compile(r"\| noise \|(?P<head>.*)\|\n\|[-|]+\|\n(?P<rows>(?:\|.*\|\n)+)")
BASELINE = re.compile(r"(\d+) runs, (\d+) sessions?")


def cells() -> list[tuple[str, int, int, str]]:
    """Noise, runs and sessions of a baseline, and the loss that is said to be caught."""
    found = TABLE.search((ROOT / "docs/guide/noise.md").read_text(encoding="utf-8"))
    assert found, "the table is gone"
    baselines = [(int(runs), int(sessions)) for runs, sessions in BASELINE.findall(found["head"])]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in found["rows"].splitlines()]
    return [
        (noise, *baseline, caught)
        for noise, *losses in rows
        for baseline, caught in zip(baselines, losses, strict=True)
    ]


@pytest.mark.parametrize(("noise", "runs", "sessions", "caught"), cells())
def test_what_noise_costs(noise, runs, sessions, caught):
    s = float(noise.removesuffix(" %")) / 100
    assert caught == percent(loss(s * resolution_factor(runs, sessions, policy_at_noise(Policy(), s))))
