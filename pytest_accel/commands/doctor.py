"""`pytest-accel doctor`: whether this machine is fit to be measured."""

from __future__ import annotations

import argparse
import json
import os
import shutil

from pytest_accel.commands.registry import argument, command
from pytest_accel.commands.selecting import BASELINES, baselines_folder, data_folder

_OF_AN_IMAGE = "The image works, but for what is said there"


@command(
    argument(
        "--data",
        metavar="DIR",
        help="the root of data sets, whose disk is looked at too (default: as pytest called here would have it)",
    ),
    BASELINES,
    argument(
        "--image",
        action="store_true",
        help="look at what is installed in this container instead; no GPU is needed, and torch is imported",
    ),
    argument("--json", action="store_true", help="print it as JSON, for scripts"),
)
def doctor(args: argparse.Namespace) -> int:
    """Look at the state of this machine for benchmarking; 1 where something would spoil measurements."""
    from pytest_accel.doctor.doctor import Roots, examine
    from pytest_accel.doctor.finding import Level, to_plain, worst
    from pytest_accel.report.doctor import WARNED, screen

    if args.image:
        from pytest_accel.doctor import image

        findings = image.examine(os.environ)
    else:
        findings = examine(Roots(data=data_folder(args), baselines=baselines_folder(args)), os.environ)
    if args.json:
        print(json.dumps(to_plain(findings), indent=2))
    else:
        width = shutil.get_terminal_size().columns
        print("\n".join(screen(findings, width=width, warned=_OF_AN_IMAGE if args.image else WARNED)))
    return int(worst(findings) is Level.PROBLEM)
