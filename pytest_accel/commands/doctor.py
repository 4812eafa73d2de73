"""`pytest-accel doctor`: what this machine is, and whether it is fit to be measured."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from pytest_accel.commands import registry
from pytest_accel.commands.registry import argument, command
from pytest_accel.doctor import doctor as checks
from pytest_accel.doctor.findings import DEVICES, Finding, Level, to_plain
from pytest_accel.platforms import machine as this_machine
from pytest_accel.platforms.catalogue import Catalogue
from pytest_accel.platforms.host import format_list
from pytest_accel.platforms.machine import Machine
from pytest_accel.report.terminal import fitted, wrapped
from pytest_accel.stats.quantities import counted, gibibytes, printable


@command(
    argument(
        "--data", metavar="DIR", help="the root of data sets, whose disk is checked (as pytest finds it)"
    ),
    registry.BASELINES,
    argument("--json", action="store_true", help="print it as JSON"),
    example="doctor",
)
def doctor(args: argparse.Namespace) -> int:
    """Show the platforms of this machine, and what disturbs it.

    Exit status 1 where something would spoil them.
    """
    catalogue, baselines = registry.project_catalogue(), registry.baselines_folder(args)
    # In a thread: a driver that hangs is what this command is to report.
    detected = checks.Check(DEVICES, "a driver", partial(this_machine.detect, catalogue))
    findings = checks.examine(data=registry.located("data", args.data), baselines=baselines)
    without = Machine(cpu=this_machine.find_cpu(), problems=("devices are not listed",))
    machine, late = detected.wait(checks.DEVICES_LIMIT_S, without)  # after it: both limits run at once
    findings = (*late, *findings)
    if args.json:
        print(json.dumps({**_machine_json(machine, catalogue), "findings": to_plain(findings)}, indent=2))
    else:
        lines = fitted([*_machine_lines(machine), *_platform_lines(machine, catalogue, baselines)])
        print("\n".join([*lines, "", *screen(findings, width=shutil.get_terminal_size().columns)]))
    return int(any(finding.level is Level.PROBLEM for finding in findings))


# --- the machine and its platforms ------------------------------------------------------------------


def _machine_lines(machine: Machine) -> Iterator[str]:
    yield f"cpu          {machine.cpu.name} ({machine.cpu.model}), {machine.cpu.cores} cores available"
    for device in machine.devices:
        memory = "memory unknown" if device.memory_bytes is None else gibibytes(device.memory_bytes)
        yield f"device {device.index:<5} {device.name}, {memory}: {device.key or 'not in the catalogue'}"
    if not machine.devices:
        yield "device       none"
    yield from (f"note         {problem}" for problem in machine.problems)
    if any(device.key is None for device in machine.devices):
        yield "             Name it in pyproject.toml: [tool.pytest-accel.platforms.NAME] patterns = ['…']"


def _platform_lines(machine: Machine, catalogue: Catalogue, baselines: Path) -> Iterator[str]:
    """Yield the platforms that this machine is, then why it is not the others of its devices."""
    satisfied = machine.satisfied(catalogue)
    yield "platforms"
    for name in satisfied:
        yield f"  {name:<13}{baselines / machine.disk_name(catalogue.parse(name))}/"
    here = {"cpu", *(device.key for device in machine.devices)}
    others = [catalogue.parse(name) for name in catalogue.names() if name not in satisfied]
    for each in others:
        if each.device in here:
            yield f"  {each!s:<13}no: {machine.missing([each], catalogue)}"
    absent = dict.fromkeys(each.device for each in others if each.device not in here)
    if absent:
        yield f"  {', '.join(absent)}: no such device here"


def _machine_json(machine: Machine, catalogue: Catalogue) -> dict[str, Any]:
    satisfied = machine.satisfied(catalogue)
    others = [name for name in catalogue.names() if name not in satisfied]
    return {
        "machine": asdict(machine),
        "platforms": {name: machine.disk_name(catalogue.parse(name)) for name in satisfied},
        "missing": {name: machine.missing([catalogue.parse(name)], catalogue) for name in others},
    }


# --- findings ---------------------------------------------------------------------------------------


def screen(findings: Sequence[Finding], *, width: int = 100) -> list[str]:
    """Return lines by group, each finding with its remedy, and the conclusion last."""
    lines: list[str] = []
    column = max((len(printable(finding.subject)) for finding in findings), default=0) + 2
    for group in dict.fromkeys(finding.group for finding in findings):
        lines.append(printable(group))
        for finding in _merged([each for each in findings if each.group == group]):
            mark = finding.level.name if finding.level is not Level.OK else "ok" if finding.known else "-"
            first = f"  {mark:<9}{printable(finding.subject):<{column}}"
            indent = " " * len(first)
            text = f"{finding.of}: {finding.text}" if finding.of else finding.text
            lines += wrapped(printable(text), width, first=first, indent=indent)
            if finding.remedy:
                remedy = printable(finding.remedy)
                lines += wrapped(remedy, width, first=f"{indent}-> ", indent=f"{indent}   ")
    return [*lines, "", *wrapped(verdict(findings), width, indent="")]


def verdict(findings: Sequence[Finding]) -> str:
    """Return one sentence on the machine."""
    problems = [finding for finding in findings if finding.level is Level.PROBLEM]
    warnings = [finding for finding in findings if finding.level is Level.WARNING]
    if not problems and not warnings:
        return "Nothing stands in the way of a measurement."
    counts = [counted(len(problems), "problem")] if problems else []
    counts += [counted(len(warnings), "warning")] if warnings else []
    named = (f"{finding.of} {finding.subject}".strip() for finding in problems or warnings)
    works = "Measuring works; figures may be noisier, or of another kind"
    meaning = "Do not measure before this is put right" if problems else works
    return f"{', '.join(counts)}. {meaning}: {', '.join(dict.fromkeys(named))}."


def _merged(findings: Sequence[Finding]) -> list[Finding]:
    """Merge findings that differ only in the number of their device (`GPU 0-2,5`), and sort them by subject."""
    alike: dict[Finding, list[str]] = {}
    subjects = [finding.subject for finding in findings]
    for finding in sorted(findings, key=lambda each: subjects.index(each.subject)):
        kind, _, number = finding.of.rpartition(" ")
        alike.setdefault(replace(finding, of=kind), []).append(number)
    return [
        replace(finding, of=f"{finding.of} {format_list(map(int, numbers))}") if finding.of else finding
        for finding, numbers in alike.items()
    ]
