"""`pytest-accel upgrade`: an old and a new environment measured in alternation, judged as pairs."""

from __future__ import annotations

import argparse
import os
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_accel.commands.registry import argument, command, count
from pytest_accel.stats.paired import DEFAULT_BLOCKS, MAX_BLOCKS, MIN_BLOCKS, RUNS_PER_BLOCK, Slot
from pytest_accel.stats.quantities import counted, seconds
from pytest_accel.stats.results import Ending

if TYPE_CHECKING:
    from pytest_accel.commands.runner import Runner
    from pytest_accel.stats.paired import PairedBenchmark
    from pytest_accel.stats.results import SessionResults

_FINISHED = (0, 1)  # pytest's exit statuses: all passed, some failed
_BROKEN = 3  # pytest's status of an internal error
# This command sets them, or each process would overwrite the file, or both environments would be slowed.
_REFUSED = (
    *(f"--accel-{name}" for name in ("record", "update", "reason", "baselines", "json", "history")),
    *("--accel-missing-baseline", "--accel-report", "--accel-slowdown"),
    *("--benchmark-json", "--junitxml", "--junit-xml"),
)


@command(
    argument(
        "old",
        metavar="OLD",
        help="the old environment: a virtual environment, a python, or a command that is put before "
        "`python3 -m pytest`, such as 'apptainer exec --nv old.sif'",
    ),
    argument("new", metavar="NEW", help="the new environment, in the same way"),
    argument(
        "--blocks",
        type=count,
        default=DEFAULT_BLOCKS,
        metavar="N",
        help=f"at most N blocks of four processes (old new new old, then new old old new); default {DEFAULT_BLOCKS}",
    ),
    argument("--keep", metavar="DIR", help="a new folder for all results (accel-upgrade/TIME-ID)"),
    example="upgrade old-venv new-venv -- bench_suites -m gh200",
    runs_pytest=True,
)
def upgrade(args: argparse.Namespace) -> int:
    """Measure an old and a new environment in alternation.

    Exit status 1 where something got slower or is lost.
    """
    from pytest_accel.commands.runner import INTERRUPTED, Console, InterruptedRunError, Runner, signals_noted

    _refuse_arguments(args.for_pytest)
    if not MIN_BLOCKS <= args.blocks <= MAX_BLOCKS:
        raise ValueError(
            f"--blocks {args.blocks}: one block alone fails nothing, and {MAX_BLOCKS} are {RUNS_PER_BLOCK * MAX_BLOCKS} "
            f"processes. Name {MIN_BLOCKS} to {MAX_BLOCKS}."
        )
    environments = {"old": environment_of("OLD", args.old), "new": environment_of("NEW", args.new)}
    with signals_noted() as signals:
        work = _Upgrade(
            environments=environments,
            folder=_new_folder(args.keep),
            blocks=args.blocks,
            arguments=tuple(args.for_pytest),
            runner=Runner(signals=signals, console=Console(sys.stderr)),
        )
        try:
            work.measure()
            return work.report()
        except InterruptedRunError:
            text, status = "interrupted.", INTERRUPTED
        except _UnfinishedError as error:
            text, status = str(error), error.status
        if any(each.verdict for each in work.progress().values()):
            work.report(status)
    work.say(f"{text}\nResults and logs are in {work.shown}.")
    return status


class _UnfinishedError(Exception):
    """A process that did not finish, with the exit status of the command."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class _Upgrade:
    """Measure blocks until every benchmark is decided or the blocks are used up."""

    environments: Mapping[str, UpgradeEnvironment]
    folder: Path  # results and logs of each process
    blocks: int  # at most
    arguments: tuple[str, ...]  # pytest's
    runner: Runner
    sessions: dict[Slot, SessionResults] = field(default_factory=dict)  # finished

    @property
    def shown(self) -> Path:
        from pytest_accel.storage.files import relative_path

        return relative_path(Path.cwd(), self.folder)

    def measure(self) -> None:
        for block in range(1, self.blocks + 1):
            if self.sessions and not any(each.is_open for each in self.progress().values()):
                return
            self._measure_block(block)
            self.say(f"after block {block}: {self._summary()}")

    def _measure_block(self, block: int) -> None:
        from pytest_accel.stats.paired import ATTEMPTS

        for place in range(1, RUNS_PER_BLOCK + 1):
            for attempt in range(1, ATTEMPTS + 1):
                found = self.progress()
                wanted = [
                    name
                    for name, each in found.items()
                    if (each.wants_replacement if attempt > 1 else each.is_open)
                ]
                if wanted or not found:
                    slot = Slot(block=block, place=place, attempt=attempt)
                    self._fill(slot, wanted, [name for name in found if name not in wanted])

    def _fill(self, slot: Slot, wanted: Sequence[str], excluded: Sequence[str]) -> None:
        """Run one process."""
        from pytest_accel.commands.runner import InterruptedRunError
        from pytest_accel.commands.worker import exclude_arguments
        from pytest_accel.storage.results import read_results

        again = f"-again{slot.attempt - 1}" if slot.attempt > 1 else ""
        stem = self.folder / f"{slot.block:02d}-{slot.place}-{slot.side}{again}"
        results, log = stem.with_suffix(".json"), stem.with_suffix(".log")
        ours = [
            "--continue-on-collection-errors",  # what cannot be imported there is lost; the rest is judged
            f"--accel-baselines={self.folder / 'baselines'}",  # there are none: nothing is repeated
            "--accel-missing-baseline=warn",
            f"--accel-json={results}",
            f"--accel-history={self.folder / 'history.sqlite'}",
        ]
        environment = self.environments[slot.side]
        if (
            environment.python_path
        ):  # an ini file's `pythonpath` would go before it, and both sides import the same
            ours += ["-o", "pythonpath="]
        if excluded:
            ours += exclude_arguments(stem.with_suffix(".excluded"), excluded)
        title = f"block {slot.block} of {self.blocks}, {slot.place}/{RUNS_PER_BLOCK} {slot.side}"
        title += ", once more" if slot.attempt > 1 else ""
        title += f": {counted(len(wanted), 'benchmark')}" if wanted else ""
        # Ours before the user's own: those may end in paths after `--`.
        status = self.runner.run(environment.python("-m", "pytest", *ours, *self.arguments), log, title=title)
        if self.runner.signals:
            raise InterruptedRunError
        session = read_results(results) if results.exists() else None
        if session is None or session.exit_status not in _FINISHED:
            raise _unfinished(environment, status, log)
        for other in self.sessions.values():
            if other.version != session.version:
                raise ValueError(
                    f"the two environments have pytest-accel {other.version} and {session.version}. Install the same version "
                    "in both: otherwise the plugin's own upgrade is measured as well."
                )
        self.sessions[slot] = session

    def progress(self) -> dict[str, PairedBenchmark]:
        from pytest_accel.stats.paired import follow

        return follow(self.sessions, self.blocks)

    def _summary(self) -> str:
        from pytest_accel.report.verdicts import counts, word

        known = [each for each in self.progress().values() if each.status is not Ending.SKIPPED]
        words = counts("open" if each.is_open else word(each.shown_status) for each in known)
        return f"{words or 'no benchmark'} ({seconds(self._duration_s)})"

    @property
    def _duration_s(self) -> float:
        return sum(each.duration_s for each in self.sessions.values())

    def report(self, status: int | None = None) -> int:
        """Print the comparison, write upgrade.json and upgrade.md, and return the exit status."""
        from pytest_accel.report.markdown import append_step_summary, render_summary
        from pytest_accel.report.remedies import with_values
        from pytest_accel.report.upgrade import JUDGED, screen, upgrade_results
        from pytest_accel.report.verdicts import headline_of
        from pytest_accel.storage.files import write_atomic
        from pytest_accel.storage.results import write_results

        is_strict = ("--accel-inconclusive", "fail") in with_values(self.arguments)
        found = upgrade_results(self.sessions, self.blocks, strict=is_strict)
        is_judged = any(each.status in JUDGED for each in found.results)
        if status is None:  # a comparison that judged nothing is not green
            status = int(not is_judged or bool(found.failures))
        names = (f"{side}: {environment.command}" for side, environment in self.environments.items())
        found = replace(found, exit_status=status, remarks=(*names, *found.remarks))
        page = render_summary(found)
        write_results(self.folder / "upgrade.json", found)
        write_atomic(self.folder / "upgrade.md", page)
        if problem := append_step_summary(os.environ, page):
            self.say(problem)
        headline = headline_of(found).text if is_judged else "Nothing was judged, so the check fails"
        print(
            *screen(found),
            "",
            f"{headline}. {len(self.sessions)} processes, {seconds(self._duration_s)}.",
            f"Everything is in {self.shown}: upgrade.md, upgrade.json, results and logs of each process.",
            sep="\n",
        )
        return status

    def say(self, line: str) -> None:
        self.runner.console.say(line)


def _unfinished(environment: UpgradeEnvironment, status: int | None, log: Path) -> _UnfinishedError:
    """Return the error of a process that left no results, with the most common causes."""
    from pytest_accel.commands.runner import describe_exit, last_lines

    ended_well = status in _FINISHED
    what = "nothing was measured there" if ended_well else f"pytest {describe_exit(status)} there"
    code = 1 if ended_well else status if status in (2, 4, 5) else _BROKEN
    end = "\n".join(f"    {line}" for line in last_lines(log))
    here, kept = Path.cwd(), log.parent
    return _UnfinishedError(
        f"{environment.shown}: {what}. {log.name} ends with:\n{end}\n"
        "It needs pytest-accel (the checkout or wheel that is installed here, there or in the image), and both this folder and that of "
        f"the results under the same names: podman and docker take --volume {here}:{here} --volume {kept}:{kept} "
        f"--workdir {here}, apptainer --bind {here},{kept} --pwd {here}.",
        code,
    )


def _new_folder(named: str | None) -> Path:
    """Return the folder that `--keep` names, else a new one; it is created and empty."""
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    root = Path(named) if named else Path("accel-upgrade", name)
    try:
        root.mkdir(parents=True, exist_ok=True)
        if any(root.iterdir()):
            raise ValueError(f"--keep {root}: it is not empty. Name a new folder.")
        if not named:
            (root.parent / ".gitignore").write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"{root} cannot be written to: {error.strerror}. Name a folder with --keep that can."
        ) from None
    return root.resolve()


def _refuse_arguments(arguments: Sequence[str]) -> None:
    for option in (word.partition("=")[0] for word in arguments):
        if option in _REFUSED:
            raise ValueError(
                f"{option} after --: leave it out. All results go into the folder of --keep, and `pytest-accel report` makes the "
                "page of any of them. To slow one environment: 'env PYTEST_ADDOPTS=--accel-slowdown=10% CMD'."
            )


# --- environments -----------------------------------------------------------------------------------

_PYTHON = re.compile(r"(python|pypy)[0-9.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeEnvironment:
    """One of the two environments: the words that lead into it."""

    name: str  # OLD or NEW
    words: tuple[str, ...]

    @property
    def command(self) -> str:
        """The words without credentials: CI keeps what is printed."""
        from pytest_accel.stats.environment import safe_arguments

        return shlex.join(safe_arguments(self.words))

    @property
    def shown(self) -> str:
        return f"{self.name} {self.command!r}"

    @property
    def python_path(self) -> list[str]:
        """The folders of PYTHONPATH, where it is set by `env PYTHONPATH=...`."""
        found = (word.removeprefix("PYTHONPATH=") for word in self.words if word.startswith("PYTHONPATH="))
        return list(filter(None, next(found, "").split(os.pathsep)))

    def python(self, *arguments: str) -> list[str]:
        """Return the command of a Python with these arguments there."""
        own = () if _PYTHON.fullmatch(Path(self.words[-1]).name) else ("python3",)
        return [*self.words, *own, *arguments]


def environment_of(name: str, given: str) -> UpgradeEnvironment:
    """Return the environment that OLD or NEW names; ValueError where nothing can be started by it."""
    if (python := Path(given, "bin", "python")).exists():
        return UpgradeEnvironment(name=name, words=(str(python),))
    try:
        words = tuple(shlex.split(given))
    except ValueError as error:
        raise ValueError(f"{name} {given!r} has {str(error).lower()}. Write it as a shell would.") from None
    if not words or shutil.which(words[0]) is None:
        missing = f"there is no program {words[0]!r} here" if words else "it is empty"
        variable = " $VARIABLES and ~ are the shell's to fill in." if set("$~") & set(given) else ""
        raise ValueError(
            f"{name} {given!r}: {missing}.{variable} Name a virtual environment, the path of a python, or a "
            f"command such as 'apptainer exec --nv {name.lower()}.sif'."
        )
    found = UpgradeEnvironment(name=name, words=words)
    if Path(words[0]).name == "env" and (
        missing_folders := [folder for folder in found.python_path if not Path(folder).exists()]
    ):
        raise ValueError(f"{name}: PYTHONPATH names {missing_folders[0]}, which does not exist.")
    return found
