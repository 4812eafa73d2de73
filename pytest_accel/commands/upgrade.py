"""`pytest-accel upgrade`: an old and a new environment measured in alternation, judged as pairs."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pytest_accel.commands.overlay import normalized, overlay_variables
from pytest_accel.commands.registry import argument, command, parsed
from pytest_accel.commands.runner import (
    INTERRUPTED,
    InterruptedRunError,
    Job,
    Runner,
    describe_exit,
    last_lines,
    say,
    stops_noted,
)
from pytest_accel.commands.worker import exclude_arguments
from pytest_accel.report.comparison import JUDGED, screen, upgrade_results
from pytest_accel.report.markdown import append_step_summary, render_summary
from pytest_accel.report.verdicts import counts, headline_of, with_values, word
from pytest_accel.stats import paired
from pytest_accel.stats.environment import TITLES, Change, Environment, describe, diff, safe_arguments
from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.paired import RUNS_PER_BLOCK, Side, Slot, Swap
from pytest_accel.stats.quantities import counted, parse_count, seconds
from pytest_accel.stats.results import Ending, SessionResults
from pytest_accel.storage.files import relative_path, write_atomic
from pytest_accel.storage.results import read_results, write_results

_FINISHED = (0, 1)  # pytest's exit statuses: all passed, some failed
_BROKEN = 3  # pytest's status of an internal error
# This command sets them, or each process would overwrite the file, or both environments would be slowed.
_REFUSED = {
    *(f"--accel-{name}" for name in ("record", "update", "reason", "baselines", "json", "history")),
    *("--accel-missing-baseline", "--accel-report", "--accel-slowdown"),
    *("--benchmark-json", "--junitxml", "--junit-xml"),
}


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
        type=parsed(parse_count(paired.MIN_BLOCKS, paired.MAX_BLOCKS)),
        default=paired.DEFAULT_BLOCKS,
        metavar="N",
        help=f"at most N blocks of four processes (old new new old, then new old old new); default {paired.DEFAULT_BLOCKS}",
    ),
    argument("--keep", metavar="DIR", help="a new folder for all results (accel-upgrade/TIME-ID)"),
    argument(
        "--isolate",
        nargs="?",
        const="",
        metavar="NAME",
        help="what got slower is measured again with one package swapped at a time between both environments: these, or all that "
        "differ until one explains the loss; A,B+C: A alone, B and C together",
    ),
    example="upgrade old-venv new-venv -- bench_suites -m gh200",
    runs_pytest=True,
)
def upgrade(args: argparse.Namespace) -> int:
    """Measure an old and a new environment in alternation.

    Exit status 1 where something got slower or is lost. What follows -- goes to pytest.
    """
    for option in _REFUSED & {each.partition("=")[0] for each in args.for_pytest}:
        raise ValueError(
            f"{option} after --: leave it out. All results go into the folder of --keep, and `pytest-accel report` makes the "
            "page of any of them. To slow one environment: 'env PYTEST_ADDOPTS=--accel-slowdown=10% CMD'."
        )
    environments = {"old": environment_of("OLD", args.old), "new": environment_of("NEW", args.new)}
    with stops_noted() as signals:
        work = _Upgrade(
            environments=environments,
            folder=_new_folder(args.keep),
            blocks=args.blocks,
            arguments=tuple(args.for_pytest),
            runner=Runner(signals=signals),
        )
        try:
            isolation = None if args.isolate is None else _Isolation(work, args.isolate)
            work.measure()
            if isolation:
                isolation.measure()
            return work.report()
        except InterruptedRunError:
            text, status = "interrupted.", INTERRUPTED
        except _UnfinishedError as error:
            text, status = str(error), error.status
        if any(each.verdict for each in work.progress().values()):
            work.report(status)
    say(f"{text}\nResults and logs are in {work.shown}.")
    return status


class _UnfinishedError(Exception):
    """A process that left no results, with the most common causes."""

    def __init__(self, environment: UpgradeEnvironment, status: int | None, log: Path) -> None:
        what = (
            "nothing was measured there" if status in _FINISHED else f"pytest {describe_exit(status)} there"
        )
        self.status = 1 if status in _FINISHED else status if status in (2, 4, 5) else _BROKEN
        self.brief = _error_in(log) or f"{what} ({log.name})"
        end = "\n".join(f"    {line}" for line in last_lines(log))
        here, kept = Path.cwd(), log.parent
        super().__init__(
            f"{environment.shown}: {what}. {log.name} ends with:\n{end}\n"
            "It needs pytest-accel (the checkout or wheel that is installed here, there or in the image), and both this folder "
            f"and that of the results under the same names: podman and docker take --volume {here}:{here} --volume "
            f"{kept}:{kept} --workdir {here}, apptainer --bind {here},{kept} --pwd {here}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Upgrade:
    """Measure blocks until every benchmark is decided or the blocks are used up."""

    environments: Mapping[str, UpgradeEnvironment]
    folder: Path  # results and logs of each process
    blocks: int  # at most
    arguments: tuple[str, ...]  # pytest's
    runner: Runner
    sessions: dict[Slot, SessionResults] = field(default_factory=dict)  # finished
    title: str = ""  # before each line of progress
    tolerances: Mapping[str, float] = field(default_factory=dict)  # in place of their own
    left_out: tuple[str, ...] = ()  # benchmarks
    timeout_s: float = math.inf  # of one process
    durations_s: list[float] = field(default_factory=list)  # of all processes, those of the isolation too
    isolated: list[paired.IsolatedComponent] = field(default_factory=list)

    @property
    def shown(self) -> Path:
        return relative_path(Path.cwd(), self.folder)

    def measure(self) -> None:
        for block in range(1, self.blocks + 1):
            if self.sessions and not any(each.is_open for each in self.progress().values()):
                return
            self._measure_block(block)
            if not self.title:  # a verdict at the tolerance of a loss is none
                known = [each for each in self.progress().values() if each.status is not Ending.SKIPPED]
                words = counts("open" if each.is_open else word(each.shown_status) for each in known)
                say(f"after block {block}: {words or 'no benchmark'} ({seconds(sum(self.durations_s))})")

    def _measure_block(self, block: int) -> None:
        for place in range(1, RUNS_PER_BLOCK + 1):
            found = self.progress()
            wanted = [name for name, each in found.items() if each.is_open]
            if wanted or not found:
                slot = Slot(block=block, place=place)
                self._fill(slot, wanted, [name for name in found if name not in wanted])

    def _fill(self, slot: Slot, wanted: Sequence[str], excluded: Sequence[str]) -> None:
        stem = self.folder / f"{slot.block:02d}-{slot.place}-{slot.side}"
        results, log = stem.with_suffix(".json"), stem.with_suffix(".log")
        ours = [
            "--continue-on-collection-errors",  # what cannot be imported there is lost; the rest is judged
            f"--accel-baselines={self.folder / 'baselines'}",  # there are none: nothing is repeated
            "--accel-missing-baseline=warn",
            f"--accel-json={results}",
            f"--accel-history={self.folder / 'history.sqlite'}",
        ]
        environment = self.environments[slot.side]
        if environment.python_path:  # an ini file's `pythonpath` would go before it: one code on both sides
            ours += ["-o", "pythonpath="]
        if excluded := [*self.left_out, *excluded]:
            ours += exclude_arguments(stem.with_suffix(".excluded"), excluded)
        place = f"{slot.place}/{RUNS_PER_BLOCK} {environment.name.lower()}"
        title = f"{self.title}block {slot.block} of {self.blocks}, {place}"
        say(title + (f": {counted(len(wanted), 'benchmark')}" if wanted else ""))
        # Ours before the user's own: those may end in paths after `--`.
        command = environment.python("-m", "pytest", *ours, *self.arguments)
        status, _ = self.runner.run(Job(name=log.stem, command=command, log=log), self.timeout_s)
        session = read_results(results) if results.exists() else None
        if session is None or session.exit_status not in _FINISHED:
            raise _UnfinishedError(environment, status, log)
        for other in self.sessions.values():
            if other.version != session.version:
                raise ValueError(
                    f"the two environments have pytest-accel {other.version} and {session.version}. Install the same version "
                    "in both: otherwise the plugin's own upgrade is measured as well."
                )
        self.sessions[slot] = session
        self.durations_s.append(session.duration_s)

    def progress(self) -> dict[str, paired.PairedBenchmark]:
        return paired.follow(self.sessions, self.blocks, self.tolerances)

    def report(self, status: int | None = None) -> int:
        """Print the comparison, write upgrade.json and upgrade.md, and return the exit status."""
        is_strict = ("--accel-inconclusive", "fail") in with_values(self.arguments)
        found = upgrade_results(self.sessions, self.blocks, strict=is_strict, isolated=self.isolated)
        is_judged = any(each.status in JUDGED for each in found.results)
        if status is None:  # a comparison that judged nothing is not green
            status = int(not is_judged or bool(found.failures))
        names = (f"{side}: {environment.command}" for side, environment in self.environments.items())
        found = replace(found, exit_status=status, remarks=(*names, *found.remarks))
        page = render_summary(found)
        write_results(self.folder / "upgrade.json", found)
        write_atomic(self.folder / "upgrade.md", page)
        try:
            append_step_summary(os.environ, page)
        except OSError as error:
            say(f"the summary of the step: {error}")
        headline = headline_of(found).text if is_judged else "Nothing was judged, so the check fails"
        print(
            *screen(found),
            "",
            f"{headline}. {len(self.durations_s)} processes, {seconds(sum(self.durations_s))}.",
            f"Everything is in {self.shown}: upgrade.md, upgrade.json, results and logs of each process.",
            sep="\n",
        )
        return status


def _error_in(log: Path) -> str:
    """Return the last error that pytest or Python shows; empty where there is none."""
    found = re.findall(
        r"^(?:E\s+)?((?:[\w.]+(?:Error|Exception)\b|No module named).*)$",
        "\n".join(last_lines(log, 1000)),
        re.MULTILINE,
    )
    return str(found[-1]) if found else ""


def _new_folder(named: str | None) -> Path:
    """Return the folder that `--keep` names, else a new one; it is created and empty."""
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    root = Path(named or Path("accel-upgrade", name))
    try:
        root.mkdir(parents=True, exist_ok=True)
        if any(root.iterdir()):
            raise ValueError(f"--keep {root}: it is not empty. Name a new folder.")
    except OSError as error:
        raise ValueError(
            f"{root} cannot be written to: {error.strerror}. Name a folder with --keep that can."
        ) from None
    return root.resolve()


# --- one package swapped at a time ------------------------------------------------------------------


class _Isolation:
    """Swap one component at a time for the benchmarks that regressed, and measure it both ways."""

    def __init__(self, work: _Upgrade, wanted: str) -> None:
        """Read the packages of both environments; ValueError for a name that does not differ."""
        (work.folder / "isolate").mkdir()
        found = {
            side: ask_packages(each, work.runner, work.folder / "isolate" / f"packages-{side}")
            for side, each in work.environments.items()
        }
        old, new = (Environment(identity={}, context=found[side]["packages"]) for side in ("old", "new"))
        differing = {each.name: each for each in diff(old, new) if each.name != "pytest-accel"}
        ranks = {title: rank for rank, title in enumerate(TITLES)}
        components = [
            tuple(normalized(name.strip()) for name in group.split("+"))
            for group in wanted.split(",")
            if group
        ] or sorted(
            ((name,) for name in differing),
            key=lambda names: min(ranks.get(word, len(ranks)) for word in names[0].split("-")),
        )
        if not components:
            raise ValueError("--isolate: both environments have the same packages. Leave it out.")
        if same := [name for names in components for name in names if name not in differing]:
            known = ", ".join(sorted(differing)) or "none"
            raise ValueError(f"--isolate: {same[0]} does not differ. These packages do: {known}.")
        self.work = work
        self.components = [tuple(differing[name] for name in names) for names in components]
        self.is_complete = bool(wanted)  # all components, whatever one explains
        self.variables = {side: each["variables"] for side, each in found.items()}

    def measure(self) -> None:
        work = self.work
        lost = {
            name: each.verdict.slowdown.point
            for name, each in work.progress().items()
            if each.status is Outcome.REGRESSED and each.verdict and each.verdict.slowdown
        }
        if not lost:
            say("nothing regressed: no package is swapped")
        for number, changes in enumerate(self.components, 1):
            wanted = {
                name: each
                for name, each in lost.items()
                if self.is_complete or not any(known.is_convicted(name) for known in work.isolated)
            }
            if not wanted:
                return
            say(f"isolating {number} of {len(self.components)}, {describe(changes)}")
            into_old, out_of_new = (self._swap(number, changes, side, wanted) for side in ("old", "new"))
            work.isolated.append(
                paired.IsolatedComponent(
                    changes=changes, lost=wanted, into_old=into_old, out_of_new=out_of_new
                )
            )

    def _swap(self, number: int, changes: Sequence[Change], side: Side, lost: Mapping[str, float]) -> Swap:
        """Measure one environment beside itself with the component of the other."""
        work, base = self.work, self.work.environments[side]
        versions = {each.name: each.new if side == "old" else each.old for each in changes}
        names = [name for name, version in versions.items() if version is not None]
        if not names:
            return Swap(impossible="the package is not there, and an overlay takes none away")
        folder = work.folder / "isolate" / f"{number:02d}-{names[0]}-into-{side}"
        folder.mkdir(parents=True)
        part = replace(
            work,
            folder=folder,
            title=f"{number} of {len(self.components)}, ",
            sessions={},
            tolerances={name: paired.swap_tolerance(each) for name, each in lost.items()},
            left_out=tuple(name for name in work.progress() if name not in lost),
            timeout_s=600 + 5 * max(work.durations_s),  # libraries that do not match may wait for each other
        )
        overlay = folder / "packages"
        try:
            other = work.environments["new" if side == "old" else "old"]
            if problem := ask_packages(other, work.runner, folder / "copy", str(overlay), *names)["problem"]:
                return Swap(impossible=problem)
            name = f"{base.name} with {other.name}'s {' and '.join(names)}"
            mixed = replace(base, name=name, overlay=overlay_variables(overlay, self.variables[side]))
            seen = ask_packages(mixed, work.runner, folder / "check")["packages"]
            if wrong := [name for name in names if seen.get(name) != versions[name]]:
                return Swap(impossible=f"{base.shown} does not take {wrong[0]} from PYTHONPATH")
            pair = {"old": base, "new": mixed} if side == "old" else {"old": mixed, "new": base}
            part = replace(part, environments=pair)
            part.measure()
        except _UnfinishedError as error:
            return Swap(rows=part.progress(), impossible=error.brief)
        finally:
            shutil.rmtree(overlay, ignore_errors=True)
        failed = folder / ("01-2-new.log" if side == "old" else "01-1-old.log")
        return Swap(rows=part.progress(), impossible=_error_in(failed) or f"see {failed.name}")


def ask_packages(
    environment: UpgradeEnvironment, processes: Runner, stem: Path, *arguments: str
) -> dict[str, Any]:
    answer, log = stem.with_suffix(".json"), stem.with_suffix(".log")
    command = environment.python("-m", "pytest_accel.commands.overlay", str(answer), *arguments)
    say(f"packages of {environment.name}")
    status, _ = processes.run(Job(name=log.stem, command=command, log=log))
    if not answer.exists():
        raise _UnfinishedError(environment, status, log)
    return dict(json.loads(answer.read_text(encoding="utf-8")))


# --- environments -----------------------------------------------------------------------------------

_PYTHON = re.compile(r"(python|pypy)[0-9.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeEnvironment:
    """One of the two environments: the words that lead into it."""

    name: str  # OLD or NEW, or what was put into one of them
    words: tuple[str, ...]
    overlay: tuple[str, ...] = ()  # variables that put packages of the other one first

    @property
    def command(self) -> str:
        """The words without credentials: CI keeps what is printed."""
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
        before, own = list(self.words), "python3"
        if _PYTHON.fullmatch(Path(self.words[-1]).name):
            own = before.pop()
        return [*before, *(["env", *self.overlay] if self.overlay else []), own, *arguments]


def environment_of(name: str, given: str) -> UpgradeEnvironment:
    """Return the environment that OLD or NEW names; ValueError where nothing can be started by it."""
    if (python := Path(given, "bin", "python")).exists():
        return UpgradeEnvironment(name=name, words=(str(python),))
    try:
        words = tuple(shlex.split(given))
    except ValueError:  # a quotation without its end
        words = ()
    if not words or shutil.which(words[0]) is None:
        raise ValueError(
            f"{name} {given!r} cannot be started here. Name a virtual environment, the path of a python, or a command "
            f"such as 'apptainer exec --nv {name.lower()}.sif'. In it $VARIABLES and ~ are the shell's to fill in."
        )
    found = UpgradeEnvironment(name=name, words=words)
    for folder in found.python_path if Path(words[0]).name == "env" else ():
        if not Path(folder).exists():  # both sides would measure the installed code
            raise ValueError(f"{name}: PYTHONPATH names {folder}, which does not exist.")
    return found
