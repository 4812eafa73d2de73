"""The command `pytest-accel`: what a person asks of the plugin outside a test run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_accel.platforms.catalogue import Catalogue, Variant
    from pytest_accel.platforms.machine import Device, Machine
    from pytest_accel.slurm.script import Request

Run = Callable[[argparse.Namespace], int]
Argument = tuple[str, dict[str, Any]]

# Filled by `command`: a subcommand is one function, its docstring the help, its arguments beside it.
_COMMANDS: dict[str, tuple[Run, tuple[Argument, ...]]] = {}


def command(*arguments: Argument) -> Callable[[Run], Run]:
    """Make a function the subcommand of its name."""

    def register(run: Run) -> Run:
        _COMMANDS[run.__name__] = (run, arguments)
        return run

    return register


def argument(name: str, **options: Any) -> Argument:  # noqa: ANN401 -- argparse's own keywords
    """One argument of a subcommand, as argparse's `add_argument` takes it."""
    return name, options


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; 0 if all is well, 2 for wrong usage or a wrong file."""
    own, for_pytest = _divided(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    args, unknown = parser.parse_known_args(own)
    if unknown:
        hint = ": what is pytest's goes after --" if args.command == "launch" and not for_pytest else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    if for_pytest and args.command != "launch":
        parser.error(f"{args.command} runs no pytest: nothing may follow --")
    args.for_pytest = for_pytest
    try:
        return int(args.run(args))
    except ValueError as error:  # what the parts raise at users; each names its place and remedy
        print(f"pytest-accel {args.command}: {error}", file=sys.stderr)
        return 2


def _divided(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Ours, and what follows the first `--`: pytest's, untouched.

    A value that is itself an option (`--sbatch --exclusive`) is joined to its name, as argparse needs it.
    """
    ours, theirs = list(argv), []
    if "--" in ours:
        at = ours.index("--")
        ours, theirs = ours[:at], ours[at + 1 :]
    joined: list[str] = []
    for word in ours:
        if joined and joined[-1] in ("--sbatch", "--container-option"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined, theirs


def _parser() -> argparse.ArgumentParser:
    from pytest_accel._version import __version__

    parser = argparse.ArgumentParser(prog="pytest-accel", description="Accelerator benchmarks as tests.")
    parser.add_argument("--version", action="version", version=f"pytest-accel {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (run, arguments) in _COMMANDS.items():
        text = run.__doc__ or ""
        sub = commands.add_parser(name, help=text.splitlines()[0], description=text)
        for argument_name, options in arguments:
            sub.add_argument(argument_name, **options)
        sub.set_defaults(run=run)
    return parser


@command(
    argument("--json", action="store_true", help="print it as JSON, for scripts"),
    argument("--all", action="store_true", help="every platform with its own reason, instead of groups"),
)
def platform(args: argparse.Namespace) -> int:
    """Say what this machine is, which platform markers it satisfies, and why not the others."""
    from pytest_accel.platforms.catalogue import load_catalogue, user_platforms
    from pytest_accel.platforms.detect import detect

    catalogue = load_catalogue(user_platforms(Path("pyproject.toml")))
    machine = detect(catalogue)
    if args.json:
        print(json.dumps(_as_json(machine, catalogue), indent=2))
    else:
        print("\n".join([*_describe(machine), "", *_markers(machine, catalogue, each=args.all)]))
    return 0


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _duration(text: str) -> float:
    from pytest_accel.core.quantities import parse_seconds

    try:
        return parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None


@command(
    argument("--slurm", action="store_true", required=True, help="as a Slurm job (the only way for now)"),
    argument("--nodes", type=_count, default=1, metavar="N", help="nodes (1)"),
    argument(
        "--gpus-per-node", default="", metavar="[TYPE:]N", help="GPUs of each node, and one task for each"
    ),
    argument(
        "--tasks-per-node", type=_count, default=0, metavar="N", help="tasks where that is not one a GPU"
    ),
    argument(
        "--cpus-per-task", type=_count, default=0, metavar="N", help="CPUs of each task (the cluster's own)"
    ),
    argument("--partition", default="", metavar="NAME", help="Slurm's partition"),
    argument("--account", default="", metavar="NAME", help="Slurm's account"),
    argument(
        "--time", default="", metavar="LIMIT", help="the job's time limit: 30 (minutes), 30:00, 2:00:00"
    ),
    argument(
        "--container", default="", metavar="IMAGE", help="run every task in this image, by its own python3"
    ),
    argument(
        "--container-runtime", default="apptainer", metavar="NAME", help="apptainer (default) or singularity"
    ),
    argument(
        "--container-option",
        action="append",
        default=[],
        metavar="OPTION",
        help="one more for `exec`; repeatable",
    ),
    argument(
        "--sbatch", action="append", default=[], metavar="OPTION", help="one more for sbatch; repeatable"
    ),
    argument(
        "--output-dir",
        type=Path,
        metavar="DIR",
        help="the run folder (accel-slurm/TIME-ID); nodes must share it",
    ),
    argument(
        "--timeout", type=_duration, metavar="S", help="cancel the job if it has not ended by then: 90, 2h"
    ),
    argument("--dry-run", action="store_true", help="print the script, submit nothing"),
)
def launch(args: argparse.Namespace) -> int:
    """Run pytest on the nodes of a cluster, wait for it, and leave with its exit status."""
    import os
    import shlex

    from pytest_accel.slurm.launch import launch, new_folder
    from pytest_accel.slurm.script import Container, Request, script

    options = tuple(args.container_option)
    if options and not args.container:
        raise ValueError("--container-option needs --container IMAGE.")
    directory = Path.cwd()
    request = Request(
        nodes=args.nodes,
        gpus_per_node=args.gpus_per_node,
        tasks_per_node=args.tasks_per_node,
        cpus_per_task=args.cpus_per_task,
        partition=args.partition,
        account=args.account,
        time=args.time,
        container=Container(image=args.container, runtime=args.container_runtime, options=options)
        if args.container
        else None,
        sbatch=tuple(args.sbatch),
        python=sys.executable,
        arguments=tuple(args.for_pytest),
        added=tuple(shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))),
        directory=directory,
        folder=directory / (args.output_dir or new_folder()),
    )
    _refuse_another_size(request)
    if args.dry_run:
        print(script(request), end="")
        return 0
    return launch(request, os.environ, timeout_s=args.timeout)


def _refuse_another_size(request: Request) -> None:
    """Say before the queue what would be said after it: the platform that -m names is not what was asked for."""
    from pytest_accel.marks import wanted_words
    from pytest_accel.platforms.catalogue import load_catalogue, user_platforms

    catalogue = load_catalogue(user_platforms(request.directory / "pyproject.toml"))
    words = [
        word for expression in _expressions(request.arguments) for word in sorted(wanted_words(expression))
    ]
    gangs = [platform for word in words if (platform := catalogue.find(word)) and platform.devices > 1]
    if gangs and (request.nodes, request.tasks) not in [(each.nodes, each.per_node) for each in gangs]:
        name = gangs[0]
        per_node = "--tasks-per-node" if name.device == "cpu" else "--gpus-per-node"
        raise ValueError(
            f"-m {name} needs {name.nodes} x {name.per_node} ranks, and this job would have {request.nodes} x "
            f"{request.tasks}. Ask for --nodes {name.nodes} {per_node} {name.per_node}."
        )


def _expressions(arguments: Sequence[str]) -> list[str]:
    """What -m says, in each way to write it."""
    after = [word for option, word in pairwise(arguments) if option == "-m"]
    return after + [
        word[2:].removeprefix("=") for word in arguments if word.startswith("-m") and word != "-m"
    ]


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


if __name__ == "__main__":
    sys.exit(main())
