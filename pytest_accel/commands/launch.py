"""`pytest-accel launch`: pytest on the nodes of a cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_accel.commands.registry import argument, command, count, duration

if TYPE_CHECKING:
    from pytest_accel.slurm.script import Request


@command(
    argument("--slurm", action="store_true", required=True, help="as a Slurm job (the only way for now)"),
    argument("--nodes", type=count, default=1, metavar="N", help="nodes (1)"),
    argument(
        "--gpus-per-node", default="", metavar="[TYPE:]N", help="GPUs of each node, and one task for each"
    ),
    argument(
        "--tasks-per-node", type=count, default=0, metavar="N", help="tasks where that is not one a GPU"
    ),
    argument(
        "--cpus-per-task", type=count, default=0, metavar="N", help="CPUs of each task (the cluster's own)"
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
        "--timeout", type=duration, metavar="S", help="cancel the job if it has not ended by then: 90, 2h"
    ),
    argument("--dry-run", action="store_true", help="print the script, submit nothing"),
    runs_pytest=True,
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
    from pytest_accel.markers import wanted_words
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
