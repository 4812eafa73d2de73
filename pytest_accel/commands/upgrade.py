"""`pytest-accel upgrade`: an old and a new environment measured in alternation, judged as pairs."""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_accel.commands.registry import argument, command, count
from pytest_accel.stats.paired import DEFAULT_BLOCKS, MAX_BLOCKS, MIN_BLOCKS, RUNS_PER_BLOCK, Slot
from pytest_accel.stats.quantities import counted, seconds

if TYPE_CHECKING:
    from pytest_accel.commands.runner import Runner
    from pytest_accel.commands.upgrade_folder import UpgradeFolder, UpgradePlan
    from pytest_accel.stats.paired import FilledSlot, Progress

_BROKEN = 3  # pytest's status of an internal error
_WRONG_USE = (4, 5)  # pytest's: a second attempt would end the same
_PROBE_TIMEOUT_S = 600.0  # an image may have to be fetched first
_OURS = frozenset(
    f"--accel-{name}"
    for name in ("record", "update", "reason", "baselines", "json", "history", "missing-baseline")
)
_OVERWRITTEN = frozenset({"--accel-report", "--benchmark-json", "--junitxml", "--junit-xml"})


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
    argument(
        "--keep",
        metavar="DIR",
        help="the folder of all results (accel-upgrade/TIME-ID); named again, it resumes after the last complete block",
    ),
    runs_pytest=True,
)
def upgrade(args: argparse.Namespace) -> int:
    """Measure an old and a new environment in alternation; exit status 1 where something got slower or is lost."""
    from pytest_accel.commands.runner import INTERRUPTED, Console, InterruptedRunError, Runner, signals_noted
    from pytest_accel.commands.upgrade_folder import open_folder

    _refuse_arguments(args.for_pytest)
    if not MIN_BLOCKS <= args.blocks <= MAX_BLOCKS:
        raise ValueError(
            f"--blocks {args.blocks}: one block alone fails nothing, and {MAX_BLOCKS} are {RUNS_PER_BLOCK * MAX_BLOCKS} "
            f"processes. Name {MIN_BLOCKS} to {MAX_BLOCKS}."
        )
    environments = {"old": environment_of("OLD", args.old), "new": environment_of("NEW", args.new)}
    folder = open_folder(args.keep, Path.cwd())
    with folder.held() as lock, signals_noted() as signals:
        runner = Runner(signals=signals, console=Console(sys.stderr), held=(lock,))
        work = _Upgrade(
            environments=environments,
            folder=folder,
            plan=_plan(environments, args.blocks, args.for_pytest),
            arguments=tuple(args.for_pytest),
            runner=runner,
            resume=_resume(environments, args, folder),
            filled=[],
        )
        try:
            work.measure()
            return work.report()
        except InterruptedRunError:
            text, status = f"interrupted. Complete blocks are kept in {folder.shown}.", INTERRUPTED
        except _UnfinishedError as error:
            text, status = f"{error}\nCorrect it.", error.status
        if any(progress.verdict for progress in work.progress().values()):
            work.report(status)
    runner.console.say(f"{text} Resume with:\n    {work.resume}")
    return status


class _UnfinishedError(Exception):
    """A process that did not finish, with the exit status of the command."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class _Upgrade:
    """Probe both, then measure blocks until every benchmark is decided or the blocks are used up."""

    environments: Mapping[str, UpgradeEnvironment]
    folder: UpgradeFolder
    plan: UpgradePlan
    arguments: tuple[str, ...]  # pytest's
    runner: Runner
    resume: str  # the command that goes on
    filled: list[FilledSlot]

    def measure(self) -> None:
        plan = self.folder.adopt(self.plan)
        self.folder.write(plan)
        self.folder.write(replace(plan, found=self._probe(plan)))
        self.filled.extend(self.folder.filled())
        done = max((each.slot.block for each in self.filled), default=0)
        if done:
            self._say(f"{counted(done, 'block')} complete already: {self._summary()}")
        if aside := self.folder.set_unfinished_aside(done + 1):
            self._say(f"the files of an unfinished block are now in {self.folder.shown / aside.name}")
        for block in range(done + 1, self.plan.blocks + 1):
            if self.filled and not any(each.is_open for each in self.progress().values()):
                return
            self._measure_block(block)
            self._say(f"after block {block}: {self._summary()}")

    def _probe(self, plan: UpgradePlan) -> dict[str, Mapping[str, str]]:
        """Return what is in both environments; ValueError where they cannot be compared."""
        found: dict[str, Mapping[str, str]] = {}
        for side, environment in self.environments.items():
            now, before = environment.probe(self.runner, self.folder.root), plan.found.get(side, {})
            if differing := [name for name in now if name in before and before[name] != now[name]]:
                changes = ", ".join(f"{name} {before[name]} -> {now[name]}" for name in differing)
                raise ValueError(
                    f"{environment.shown} is not what was measured in {self.folder.shown} any more ({changes}). "
                    "Begin in another folder."
                )
            versions = ", ".join(f"{name} {now[name]}" for name in ("torch", "python", "pytest") if now[name])
            self._say(f"{side}: {versions}, pytest-accel {now['pytest_accel']}")
            found[side] = now
        old, new = found["old"]["pytest_accel"], found["new"]["pytest_accel"]
        if old != new:
            raise ValueError(
                f"the old environment has pytest-accel {old}, the new one {new}. Install the same version in both: "
                "else the plugin's own upgrade is measured too."
            )
        return found

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
        """Run one process; one that breaks off is started once more."""
        from pytest_accel.commands.runner import InterruptedRunError
        from pytest_accel.commands.worker import exclude_arguments
        from pytest_accel.stats.paired import FilledSlot

        ours = [
            "--continue-on-collection-errors",  # what cannot be imported there is lost; the rest is judged
            f"--accel-baselines={self.folder.root / 'baselines'}",  # there are none: nothing is repeated
            "--accel-missing-baseline=warn",
            f"--accel-json={self.folder.results(slot)}",
            f"--accel-history={self.folder.root / 'history.sqlite'}",
        ]
        if excluded:
            ours += exclude_arguments(self.folder.write_excluded(slot, excluded))
        title = f"block {slot.block} of {self.plan.blocks}, {slot.place}/{RUNS_PER_BLOCK} {slot.side}"
        title += ", once more" if slot.attempt > 1 else ""
        title += f": {counted(len(wanted), 'benchmark')}" if wanted else ""
        environment, log = self.environments[slot.side], self.folder.log(slot)
        for is_last in (False, True):
            # Ours before the user's own: those may end in paths after `--`.
            words = environment.python("-m", "pytest", *ours, *self.arguments)
            status = self.runner.run(words, log, title=title)
            if self.runner.signals.count:
                raise InterruptedRunError
            session = self.folder.session(slot)
            if session is not None:
                self.filled.append(FilledSlot(slot=slot, session=session))
                return
            if is_last or status in _WRONG_USE:
                raise _unfinished(environment, status, log, self.folder.shown / log.name)
            self._say(f"{title}: it broke off ({self.folder.shown / log.name}), and is started once more")

    def progress(self) -> dict[str, Progress]:
        from pytest_accel.stats.paired import follow

        return follow(self.filled, self.plan.blocks)

    def _summary(self) -> str:
        from pytest_accel.report.upgrade import effect_word

        known = [each for each in self.progress().values() if not each.is_elsewhere]
        counts = Counter(effect_word(each.effect) if each.effect else "open" for each in known)
        words = ", ".join(f"{number} {word}" for word, number in counts.items()) or "no benchmark"
        return f"{words} ({seconds(sum(each.session.duration_s for each in self.filled))})"

    def report(self, status: int | None = None) -> int:
        """Print the comparison, write upgrade.json and upgrade.md, and return the exit status."""
        from pytest_accel.report.github import append_step_summary
        from pytest_accel.report.remedies import with_values
        from pytest_accel.report.upgrade import UpgradeContext, as_json, markdown, screen
        from pytest_accel.stats.paired import Effect, assess
        from pytest_accel.storage.files import write_atomic

        found = assess(self.filled, self.plan.blocks)
        if status is None:
            is_strict = ("--accel-inconclusive", "fail") in with_values(self.arguments)
            status = int(found.status or (is_strict and bool(found.count(Effect.INCONCLUSIVE))))
        context = UpgradeContext(
            old=self.plan.old,
            new=self.plan.new,
            folder=str(self.folder.shown),
            blocks=self.plan.blocks,
            processes=len(self.filled),
            duration_s=sum(each.session.duration_s for each in self.filled),
            resume=self.resume,
            status=status,
        )
        page = markdown(found, context)
        write_atomic(self.folder.root / "upgrade.json", as_json(found, context))
        write_atomic(self.folder.root / "upgrade.md", page)
        if problem := append_step_summary(os.environ, page):
            self._say(problem)
        print("\n".join(screen(found, context)))
        return status

    def _say(self, line: str) -> None:
        self.runner.console.say(line)


def _unfinished(environment: UpgradeEnvironment, status: int, log: Path, shown: Path) -> _UnfinishedError:
    from pytest_accel.commands.runner import describe_exit, last_lines

    ended_well = status in (0, 1)
    what = "nothing was measured there" if ended_well else f"pytest {describe_exit(status)} there"
    code = 1 if ended_well else status if 2 <= status <= 5 else _BROKEN
    end = "\n".join(f"    {line}" for line in last_lines(log))
    return _UnfinishedError(f"{environment.shown}: {what}. {shown} ends with:\n{end}", code)


def _refuse_arguments(arguments: Sequence[str]) -> None:
    for word in arguments:
        option = word.partition("=")[0]
        if option in _OURS:
            raise ValueError(
                f"{option} after --: this command sets it, and measures into a folder of its own. Leave it out."
            )
        if option in _OVERWRITTEN:
            raise ValueError(
                f"{option} after --: each process would overwrite it. Leave it out: the folder has the results of "
                "all, and `pytest-accel report` makes the page of any of them."
            )
        if option == "--accel-slowdown":
            raise ValueError(
                "--accel-slowdown after -- would slow both. Give it to the new one alone: "
                "'env PYTEST_ADDOPTS=--accel-slowdown=10% CMD'."
            )


def _plan(
    environments: Mapping[str, UpgradeEnvironment], blocks: int, arguments: Sequence[str]
) -> UpgradePlan:
    """Return the plan without what looks like a credential: the folder is handed round."""
    from pytest_accel.commands.upgrade_folder import UpgradePlan
    from pytest_accel.stats.environment import fingerprint, safe_arguments

    full = {side: each.words for side, each in environments.items()} | {"arguments": tuple(arguments)}
    return UpgradePlan(
        kind="pytest-accel upgrade plan",
        old=environments["old"].command,
        new=environments["new"].command,
        blocks=blocks,
        arguments=safe_arguments(arguments),
        fingerprints={name: fingerprint(words) for name, words in full.items()},
    )


def _resume(
    environments: Mapping[str, UpgradeEnvironment], args: argparse.Namespace, folder: UpgradeFolder
) -> str:
    blocks = [f"--blocks={args.blocks}"] if args.blocks != DEFAULT_BLOCKS else []
    both = [environments["old"].command, environments["new"].command]
    return shlex.join(
        ["pytest-accel", "upgrade", *both, *blocks, "--keep", str(folder.shown), "--", *args.for_pytest]
    )


# --- environments -----------------------------------------------------------------------------------

_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
_MARK = "pytest-accel-probe "  # images print banners before the answer
# Runs in the other environment: nothing heavy is imported, and nothing that may be missing is required.
_PROBE = """
import json, os, sys
from importlib import metadata
def version(name):
    try:
        return metadata.version(name) or ""
    except metadata.PackageNotFoundError:
        return ""
try:
    from pytest_accel import __version__ as ours
except ImportError:
    ours = ""
plugins = {each.name for each in metadata.entry_points(group="pytest11") if each.value.startswith("pytest_accel")}
print()
print(sys.argv[1] + json.dumps({
    "python": sys.version.split()[0], "executable": sys.executable or "", "folder": os.getcwd(),
    "pytest": version("pytest"), "torch": version("torch"), "pytest_accel": ours if plugins else "",
    "seen": str(os.path.exists(sys.argv[2]) and os.access(os.path.dirname(sys.argv[2]), os.W_OK)),
}), flush=True)
"""
_KEPT = ("python", "executable", "pytest", "torch", "pytest_accel")


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

    def python(self, *arguments: str) -> list[str]:
        """Return the command of a Python with these arguments there."""
        own = () if _PYTHON.fullmatch(Path(self.words[-1]).name) else ("python3",)
        return [*self.words, *own, *arguments]

    def probe(self, runner: Runner, folder: Path) -> Mapping[str, str]:
        """Return the versions there; ValueError where pytest-accel or the folder is missing."""
        from pytest_accel.commands.runner import describe_exit, last_lines

        token, log = folder / f".probe-{secrets.token_hex(4)}", folder / f"{self.name.lower()}-probe.log"
        token.touch()
        try:
            words = self.python("-c", _PROBE, _MARK, str(token))
            status = runner.run(words, log, title=f"probing {self.name}", timeout_s=_PROBE_TIMEOUT_S)
        finally:
            token.unlink(missing_ok=True)
        facts = _answer(log)
        if facts is None:
            said = "\n".join(f"    {line}" for line in last_lines(log))
            raise ValueError(
                f"{self.shown}: no Python answered there: the command {describe_exit(status)}."
                + (f" It said:\n{said}\n" if said else " ")
                + f"Try it by hand: {self.command} python3 --version"
            )
        self._check(facts, folder)
        return {name: facts[name] for name in _KEPT}

    def _check(self, facts: Mapping[str, str], folder: Path) -> None:
        here = Path.cwd()
        if not facts["pytest_accel"]:
            raise ValueError(
                f"{self.shown}: pytest-accel is not installed for {facts['executable']} (Python {facts['python']}). "
                "Install it there (python3 -m pip install pytest-accel), or build it into the image."
            )
        if Path(facts["folder"]) != here and Path(facts["folder"]).resolve() != here.resolve():
            raise ValueError(
                f"{self.shown}: a command there starts in {facts['folder']}, and not in {here}, where the benchmarks "
                f"are. Have it start here: podman and docker take --volume {here}:{here} --workdir {here}, apptainer "
                f"--bind {here} --pwd {here}."
            )
        if facts["seen"] != "True":
            raise ValueError(
                f"{self.shown}: {folder} cannot be seen, or not be written to, from there. Mount it under the same "
                f"name: podman and docker take --volume {folder}:{folder}, apptainer --bind {folder}."
            )


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
    return UpgradeEnvironment(name=name, words=words)


def _answer(log: Path) -> Mapping[str, str] | None:
    for line in reversed(log.read_text(encoding="utf-8", errors="replace").splitlines()):
        if line.startswith(_MARK):
            try:
                content = json.loads(line.removeprefix(_MARK))
            except ValueError:
                return None
            if isinstance(content, dict) and {*_KEPT, "folder", "seen"} <= content.keys():
                return {name: str(value) for name, value in content.items()}
            return None
    return None
