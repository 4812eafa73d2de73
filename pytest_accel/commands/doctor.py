"""`pytest-accel doctor`: what this machine is, and whether it is fit to be measured."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_accel.commands.project import BASELINES, baselines_folder, data_folder, find_project
from pytest_accel.commands.registry import argument, command

if TYPE_CHECKING:
    from pytest_accel.platforms.catalogue import Catalogue, Variant
    from pytest_accel.platforms.machine import DetectedDevice, Machine

_IMAGE_WARNED = "The image works, except for what is listed there"


@command(
    argument(
        "--data", metavar="DIR", help="the root of data sets, whose disk is checked (as pytest finds it)"
    ),
    BASELINES,
    argument(
        "--image",
        action="store_true",
        help="check what is installed in this container instead; no GPU is needed, and torch is imported",
    ),
    argument("--json", action="store_true", help="print it as JSON"),
)
def doctor(args: argparse.Namespace) -> int:
    """Show the platforms that this machine is, and its state; exit status 1 where something would spoil measurements."""
    from pytest_accel.doctor.doctor import Roots, examine
    from pytest_accel.doctor.findings import Level, to_plain, worst
    from pytest_accel.report.doctor import WARNED, screen

    found: dict[str, Any] = {}
    lines: list[str] = []
    if args.image:
        from pytest_accel.doctor import image

        findings = image.examine(os.environ)
    else:
        from pytest_accel.platforms.catalogue import load_catalogue, user_platforms
        from pytest_accel.platforms.machine import detect

        catalogue = load_catalogue(user_platforms(find_project(Path.cwd()).root / "pyproject.toml"))
        machine = detect(catalogue)
        found = _machine_json(machine, catalogue)
        lines = [*_machine_lines(machine), *_platform_lines(machine, catalogue), ""]
        findings = examine(Roots(data=data_folder(args), baselines=baselines_folder(args)), os.environ)
    if args.json:
        print(json.dumps({**found, "findings": to_plain(findings)}, indent=2))
    else:
        width = shutil.get_terminal_size().columns
        lines += screen(findings, width=width, warned=_IMAGE_WARNED if args.image else WARNED)
        print("\n".join(lines))
    return int(worst(findings) is Level.PROBLEM)


def _machine_lines(machine: Machine) -> list[str]:
    lines = [f"cpu          {machine.cpu.name} ({machine.cpu.model}), {machine.cpu.cores} cores available"]
    for device in machine.devices:
        known = "not in the catalogue" if device.key is None else device.key
        lines.append(f"device {device.index:<5} {device.name}, {_memory(device)}: {known}")
    for variant in dict.fromkeys(device.variant for device in machine.devices if device.variant is not None):
        lines += [f"             {line}" for line in _variant_lines(variant)]
    if not machine.devices:
        lines.append("device       none")
    lines += [f"problem      {problem}" for problem in machine.problems]
    if any(device.key is None for device in machine.devices):
        lines.append(
            "             Name it in pyproject.toml: [tool.pytest-accel.platforms.NAME] patterns = ['…']"
        )
    return lines


def _variant_lines(variant: Variant) -> list[str]:
    figures = ((variant.memory_gb, "GB"), (variant.bandwidth_gb_s, "GB/s"), (variant.tdp_w, "W"))
    known = [f"{value:g} {unit}" for value, unit in figures if value is not None]
    peaks = ", ".join(f"{name} {value:g}" for name, value in variant.peaks_tflops.items())
    lines = [f"{variant.title or 'variant'}: {', '.join(filter(None, [*known, variant.interconnect]))}"]
    lines += [f"dense peak in TFLOP/s: {peaks}"] if peaks else []
    return [*lines, f"source: {variant.source}"] if variant.source else lines


def _platform_lines(machine: Machine, catalogue: Catalogue) -> list[str]:
    """Return the platforms that this machine is, then why it is not the others of its devices."""
    satisfied = machine.satisfied(catalogue)
    lines = ["platforms"]
    lines += [f"  {name:<13}baselines/{machine.disk_name(catalogue.parse(name))}/" for name in satisfied]
    here = {"cpu", *(device.key for device in machine.devices)}
    others = [catalogue.parse(name) for name in catalogue.names() if name not in satisfied]
    for each in others:
        if each.device in here:
            lines.append(f"  {each!s:<13}no: {machine.missing(each, catalogue)}")
    absent = dict.fromkeys(each.device for each in others if each.device not in here)
    if absent:
        lines.append(f"  {', '.join(absent)}: no such device here")
    return lines


def _memory(device: DetectedDevice) -> str:
    return "memory unknown" if device.memory_bytes is None else f"{device.memory_bytes / (1 << 30):.1f} GiB"


def _machine_json(machine: Machine, catalogue: Catalogue) -> dict[str, Any]:
    from dataclasses import asdict

    satisfied = machine.satisfied(catalogue)
    others = [name for name in catalogue.names() if name not in satisfied]
    return {
        "machine": asdict(machine),
        "platforms": {name: machine.disk_name(catalogue.parse(name)) for name in satisfied},
        "missing": {name: machine.missing(catalogue.parse(name), catalogue) for name in others},
    }
