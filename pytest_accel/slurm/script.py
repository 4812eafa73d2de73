"""A run of pytest as a Slurm job: the request, and the batch script that says it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_accel.storage.whole import seen_from

SCRIPT, LOG, STATUS, JUNIT, JSON = "job.sh", "log.txt", "status", "junit.xml", "benchmark.json"
RUNTIMES = ("apptainer", "singularity")

# Once one task has left, the others have this long. Not --kill-on-bad-exit=1: tasks leave one after the
# other, and it would kill rank 0 while that writes its report, and make 143 of every failed test (both
# seen with Slurm 22.05). Ranks that lost another one end by themselves; this is for those that cannot.
_LAST_TASK_S = 300

_NAME = re.compile(r"[\w.@+-]+(,[\w.@+-]+)*", re.ASCII)
_TIME = re.compile(r"\d+(-\d+)?(:\d+){0,2}", re.ASCII)
_GPUS = re.compile(r"([\w.-]+:)?([1-9]\d*)", re.ASCII)
_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(=.*)?|-([A-Za-z])(.*)", re.ASCII)

# Options of sbatch that would pull the ground from under the script, and what to do instead.
_OWN_OPTIONS = {
    **dict.fromkeys(("nodes", "N"), "use --nodes"),
    **dict.fromkeys(("ntasks", "n", "ntasks-per-node"), "use --tasks-per-node"),
    **dict.fromkeys(("gpus-per-node", "gpus", "G", "gpus-per-task"), "use --gpus-per-node"),
    **dict.fromkeys(("cpus-per-task", "c"), "use --cpus-per-task"),
    **dict.fromkeys(("partition", "p"), "use --partition"),
    **dict.fromkeys(("account", "A"), "use --account"),
    **dict.fromkeys(("time", "t"), "use --time"),
    **dict.fromkeys(("output", "o", "error", "e"), "the log is in the run folder: use --output-dir"),
    **dict.fromkeys(("chdir", "D"), "the job runs where it is submitted: change there first"),
    **dict.fromkeys(("job-name", "J"), "the job's name is how it is found again"),
    **dict.fromkeys(("array", "a", "wrap", "wait", "W", "parsable", "test-only"), "launch waits for one job"),
    **dict.fromkeys(("requeue",), "a second run would overwrite the first"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """An image that every task runs in."""

    image: str
    runtime: str = "apptainer"
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.runtime not in RUNTIMES:
            raise ValueError(f"--container-runtime {self.runtime!r} is not one of {', '.join(RUNTIMES)}.")

    def command(self, *, gpus: bool, folders: Sequence[Path]) -> list[str]:
        """What stands before `python3`: the submit directory and the run folder are the same inside."""
        vendor = ["--nv"] if gpus and not {"--nv", "--nvccli", "--rocm"} & set(self.options) else []
        for folder in folders:
            if set(str(folder)) & set(",:"):
                raise ValueError(
                    f"{str(folder)!r} cannot be bound into a container: {self.runtime} splits at ',' and ':'."
                )
        bound = [f"--bind={folder}" for folder in map(str, folders)]
        return [self.runtime, "exec", *vendor, *bound, f"--pwd={folders[0]}", *self.options, self.image]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A job to be: one task a device, each of them the same pytest."""

    nodes: int
    gpus_per_node: str = ""  # "4" or "a100:4"; empty on clusters without
    tasks_per_node: int = 0  # 0: one for each GPU
    partition: str = ""
    account: str = ""
    time: str = ""
    cpus_per_task: int = 0  # 0: as the cluster has it
    container: Container | None = None
    sbatch: tuple[str, ...] = ()  # more options
    python: str  # of the host; a container has its own
    arguments: tuple[str, ...]  # of pytest
    added: tuple[str, ...] = ()  # those that pytest itself adds, from PYTEST_ADDOPTS
    directory: Path  # where it is submitted, and runs
    folder: Path  # script, log, status and what is brought back; absolute

    def __post_init__(self) -> None:
        if self.gpus_per_node and not _GPUS.fullmatch(self.gpus_per_node):
            raise ValueError(f"--gpus-per-node {self.gpus_per_node!r} is not a number. Write 4, or a100:4.")
        if not self.tasks:
            raise ValueError(
                "how many tasks a node? Say --gpus-per-node N (one task a GPU), "
                "or --tasks-per-node N where there are no GPUs."
            )
        for option, value, valid, example in (
            ("--partition", self.partition, _NAME, "a partition's name: `sinfo` lists them"),
            ("--account", self.account, _NAME, "an account's name"),
            ("--time", self.time, _TIME, "a time of Slurm's: 30 (minutes), 30:00, 2:00:00 or 1-12"),
        ):
            if value and not valid.fullmatch(value):
                raise ValueError(f"{option} {value!r} is not {example}.")
        for option in self.sbatch:
            _check_option(option)

    @property
    def tasks(self) -> int:
        found = _GPUS.fullmatch(self.gpus_per_node)
        return self.tasks_per_node or (int(found[2]) if found else 0)

    @property
    def name(self) -> str:
        """Of the job: the run folder is unique, and so is this, more or less."""
        return "pytest-accel-" + re.sub(r"[^\w.-]", "_", self.folder.name, flags=re.ASCII)


def _check_option(option: str) -> None:
    found = _OPTION.fullmatch(option)
    if found is None:
        raise ValueError(f"--sbatch {option!r} is not one option of sbatch. Write --sbatch=--option=value.")
    name = found[1] or found[3]
    if remedy := next((text for own, text in _OWN_OPTIONS.items() if _is_short_for(name, own)), ""):
        raise ValueError(f"--sbatch {option!r} cannot be given here: {remedy}.")


def _is_short_for(name: str, option: str) -> bool:
    """As sbatch reads it: `--nod` is `--nodes`."""
    return name == option or (len(name) > 1 and option.startswith(name))


# --- the script -------------------------------------------------------------------------------------------


def script(request: Request) -> str:
    """The batch script: readable, and fit to be submitted again by hand from the same directory."""
    command = task_command(request)
    return "\n".join(
        [
            "#!/bin/bash",
            "# Written by `pytest-accel launch --slurm`. By hand, from the same directory:  sbatch SCRIPT",
            *(f"#SBATCH {directive}" for directive in directives(request)),
            "",
            f"folder={quoted(str(request.folder))}",
            f'rm -f "$folder/{STATUS}"',
            "export PYTHONUNBUFFERED=1  # so that the log can be followed",
            'echo "job $SLURM_JOB_ID on $SLURM_JOB_NODELIST"',
            "",
            "# One task a device, the same command for each.",
            "command=(",
            *(f"    {line}" for line in _lines(command)),
            ")",
            "# Tasks leave one after the other: the last ones are killed when that takes too long.",
            f"srun {shlex.join(step_options(request))} \\",
            '    "${command[@]}"',
            "status=$?",
            "",
            "# Whole or not at all: who waits for it may read it at any moment.",
            f'echo "$status" > "$folder/{STATUS}.part" && mv "$folder/{STATUS}.part" "$folder/{STATUS}"',
            'exit "$status"',
            "",
        ]
    )


def directives(request: Request) -> list[str]:
    """The options of sbatch, in its own quoting."""
    # Relative where it can be: a directive must not hold what only the directory's name has, accents say.
    log = str(seen_from(request.directory, request.folder) / LOG)
    stated = {
        "job-name": request.name,
        "nodes": str(request.nodes),
        "ntasks-per-node": str(request.tasks),
        "gpus-per-node": request.gpus_per_node,
        "cpus-per-task": str(request.cpus_per_task or ""),
        "partition": request.partition,
        "account": request.account,
        "time": request.time,
        "output": log.replace("%", "%%"),
    }
    given = [f"--{name}={value}" for name, value in stated.items() if value]
    return [directive_quoted(option) for option in (*given, "--no-requeue", *request.sbatch)]


def step_options(request: Request) -> list[str]:
    """Of srun. It takes nodes and tasks from the job, but not CPUs a task (since Slurm 22.05)."""
    cpus = [f"--cpus-per-task={request.cpus_per_task}"] if request.cpus_per_task else []
    return ["--kill-on-bad-exit=0", f"--wait={_LAST_TASK_S}", *cpus]


def task_command(request: Request) -> list[str]:
    """What each task runs: the user's arguments, and options for what else is to be brought back."""
    missing = {option: path for option, path in _places(request).items() if _wanted(request, option) is None}
    pytest = ["-m", "pytest", *request.arguments, *(f"{option}={path}" for option, path in missing.items())]
    if request.container is None:
        return [request.python, *pytest]
    inside = not missing or request.folder.is_relative_to(request.directory)
    folders = [request.directory, *([] if inside else [request.folder])]
    container = request.container.command(gpus=bool(request.gpus_per_node), folders=folders)
    return [*container, "python3", *pytest]


def results(request: Request) -> dict[str, Path]:
    """Where JUnit and benchmark JSON will be: where the user wants them, else in the run folder."""
    titles = {"--junitxml": "JUnit", "--benchmark-json": "JSON"}
    return {
        titles[option]: path if wanted is None else request.directory / Path(wanted).expanduser()
        for option, path in _places(request).items()
        for wanted in [_wanted(request, option)]
    }


def _places(request: Request) -> dict[str, Path]:
    return {"--junitxml": request.folder / JUNIT, "--benchmark-json": request.folder / JSON}


def _wanted(request: Request, option: str) -> str | None:
    names = ("--junitxml", "--junit-xml") if option == "--junitxml" else (option,)
    return _value_of([*request.added, *request.arguments], *names)


def _value_of(arguments: Sequence[str], *names: str) -> str | None:
    """Of an option of pytest, the last one given."""
    value = None
    for index, argument in enumerate(arguments):
        name, equals, rest = argument.partition("=")
        if name in names:
            value = rest if equals else "".join(arguments[index + 1 : index + 2])
    return value


def _lines(command: Sequence[str]) -> list[str]:
    """One line for each option with its values: what starts with a dash begins a line."""
    lines: list[str] = []
    for argument in command:
        if not lines or argument.startswith("-"):
            lines.append(quoted(argument))
        else:
            lines[-1] += f" {quoted(argument)}"
    return lines


def quoted(argument: str) -> str:
    """For bash, on one line; what cannot be seen (newlines, bytes that are no text) is written as escapes.

    Not only for the reader: sbatch refuses a script with a carriage return before a newline.
    """
    if argument.isprintable():
        return shlex.quote(argument)
    return "$'" + "".join(map(_escaped, argument)) + "'"


def _escaped(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return named.get(character) or "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def directive_quoted(option: str) -> str:
    """For an `#SBATCH` line, whose reader has its own rules: it ends an argument at whatever is not ASCII."""
    if not (option.isascii() and option.isprintable()):
        raise ValueError(
            f"Slurm cannot read {option!r} in a script: only printable ASCII. "
            "Choose another value; for a folder, --output-dir."
        )
    if re.fullmatch(r"[\w.,:;@%+/=-]+", option):
        return option
    name, equals, value = option.partition("=") if option.startswith("--") else ("", "", option)
    escaped = re.sub(r'(["\\])', r"\\\1", value)
    return f'{name}{equals}"{escaped}"'


def sbatch_environment(environ: Mapping[str, str], request: Request) -> dict[str, str]:
    """The environment that sbatch is called in, and hands on to the job.

    Left out: what would override the script's lines (SBATCH_PARTITION goes before `#SBATCH --partition`),
    and what belongs to a job or a torchrun that launch itself was started in.
    """
    stated = {
        "SBATCH_PARTITION": request.partition,
        "SBATCH_ACCOUNT": request.account,
        "SBATCH_TIMELIMIT": request.time,
        "SBATCH_GPUS_PER_NODE": request.gpus_per_node,
    }
    unwanted = {name for name, value in stated.items() if value} | {
        *("SBATCH_ARRAY_INX", "SBATCH_ERROR", "SBATCH_INPUT", "SBATCH_JOB_NAME", "SBATCH_OUTPUT"),
        *("SBATCH_REQUEUE", "SBATCH_WAIT", "SBATCH_GPUS", "SBATCH_GPUS_PER_TASK"),
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK"),
    }
    foreign = ("SLURM_", "SRUN_", "TORCHELASTIC_", "PYTEST_ACCEL_GANG")
    kept = ("SLURM_CONF", "SLURM_CLUSTERS")
    return {
        name: value
        for name, value in environ.items()
        if name in kept or not (name in unwanted or name.startswith(foreign))
    }
