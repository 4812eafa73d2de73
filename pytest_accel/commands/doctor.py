"""`pytest-accel doctor`: whether this machine is fit to be measured."""

from __future__ import annotations

import argparse
import json
import os
import shutil

from pytest_accel.commands.registry import argument, command
from pytest_accel.commands.selecting import BASELINES, baselines_folder, data_folder


@command(
    argument(
        "--data",
        metavar="DIR",
        help="the root of data sets, whose disk is looked at too (default: as pytest called here would have it)",
    ),
    BASELINES,
    argument("--json", action="store_true", help="print it as JSON, for scripts"),
)
def doctor(args: argparse.Namespace) -> int:
    """Look at the state of this machine for benchmarking; 1 where something would spoil measurements."""
    from pytest_accel.core.findings import Level, to_plain, worst
    from pytest_accel.health.doctor import Roots, examine
    from pytest_accel.report.doctor import screen

    findings = examine(Roots(data=data_folder(args), baselines=baselines_folder(args)), os.environ)
    if args.json:
        print(json.dumps(to_plain(findings), indent=2))
    else:
        print("\n".join(screen(findings, width=shutil.get_terminal_size().columns)))
    return int(worst(findings) is Level.PROBLEM)
