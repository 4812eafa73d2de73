"""`pytest-accel platform`: what this machine is."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_accel.commands.registry import argument, command

if TYPE_CHECKING:
    from pytest_accel.platforms.catalogue import Catalogue, Variant
    from pytest_accel.platforms.machine import Device, Machine


@command(
    argument("--json", action="store_true", help="print it as JSON, for scripts"),
    argument("--all", action="store_true", help="every platform with its own reason, instead of groups"),
)
def platform(args: argparse.Namespace) -> int:
    """Say what this machine is, which platform markers it satisfies, and why not the others."""
    from pytest_accel.commands.project import find_project
    from pytest_accel.platforms.catalogue import load_catalogue, user_platforms
    from pytest_accel.platforms.machine import detect

    catalogue = load_catalogue(user_platforms(find_project(Path.cwd()).root / "pyproject.toml"))
    machine = detect(catalogue)
    if args.json:
        print(json.dumps(_as_json(machine, catalogue), indent=2))
    else:
        print("\n".join([*_describe(machine), "", *_markers(machine, catalogue, each=args.all)]))
    return 0


def _describe(machine: Machine) -> list[str]:
    lines = [f"cpu          {machine.cpu.name} ({machine.cpu.model}), {machine.cpu.cores} cores available"]
    for device in machine.devices:
        known = "not in the catalogue" if device.key is None else device.key
        lines.append(f"device {device.index:<5} {device.name}, {_memory(device)}: {known}")
    for variant in dict.fromkeys(device.variant for device in machine.devices if device.variant is not None):
        lines += _figures(variant)
    if not machine.devices:
        lines.append("device       none")
    lines += [f"problem      {problem}" for problem in machine.problems]
    if any(device.key is None for device in machine.devices):
        lines.append(
            "             Name it in pyproject.toml: [tool.pytest-accel.platforms.NAME] patterns = ['…']"
        )
    return lines


def _figures(variant: Variant) -> list[str]:
    peaks = ", ".join(f"{name} {value:g}" for name, value in variant.peaks_tflops.items())
    rest = [
        f"{value:g} {unit}"
        for value, unit in (
            (variant.memory_gb, "GB"),
            (variant.bandwidth_gb_s, "GB/s"),
            (variant.tdp_w, "W"),
        )
        if value is not None
    ]
    lines = [f"{variant.title or 'variant'}: {', '.join([*rest, variant.interconnect]).rstrip(', ')}"]
    lines += [f"dense peak in TFLOP/s: {peaks}"] if peaks else []
    lines += [f"source: {variant.source}"] if variant.source else []
    return [f"             {line}" for line in lines]


def _markers(machine: Machine, catalogue: Catalogue, *, each: bool) -> list[str]:
    satisfied = machine.satisfied(catalogue)
    lines = ["satisfies"]
    lines += [f"  {name:<13}baselines/{machine.disk_name(catalogue.parse(name))}/" for name in satisfied]
    others = [name for name in catalogue.names() if name not in satisfied]
    here = {"cpu", *(device.key for device in machine.devices)}
    absent = dict.fromkeys(kind.key for kind in catalogue.devices.values() if kind.key not in here)
    lines += ["", "does not satisfy"]
    for name in others:
        platform_name = catalogue.parse(name)
        if each or platform_name.device not in absent:
            lines.append(f"  {name:<13}{machine.missing(platform_name, catalogue)}")
    if absent and not each:
        lines += [
            f"  {', '.join(absent)}",
            "               needs that device; this machine has none (--all: every marker)",
        ]
    return lines


def _memory(device: Device) -> str:
    return "memory unknown" if device.memory_bytes is None else f"{device.memory_bytes / (1 << 30):.1f} GiB"


def _as_json(machine: Machine, catalogue: Catalogue) -> dict[str, Any]:
    from dataclasses import asdict

    satisfied = machine.satisfied(catalogue)
    others = [name for name in catalogue.names() if name not in satisfied]
    return {
        "machine": asdict(machine),
        "satisfied": {name: machine.disk_name(catalogue.parse(name)) for name in satisfied},
        "missing": {name: machine.missing(catalogue.parse(name), catalogue) for name in others},
    }
