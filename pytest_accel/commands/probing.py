"""An environment that a command leads into: how pytest is called there, and whether it can do what is asked of it.

The command is put before `python3 -m pytest ...`: `apptainer exec --nv new.sif`, `podman run --rm ... IMAGE`. One that ends
with a Python of its own (`/envs/new/bin/python`, `apptainer exec new.sif python3.12`) is taken at its word.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_accel.distributed.processes import ended_words, exit_words
from pytest_accel.stats.environment import safe_arguments
from pytest_accel.stats.quantities import printable

PYTHON = "python3"
_A_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
_SHOWN_LINES = 8
_MARK = "pytest-accel-probe "  # images print banners before what they were asked for
# Nothing heavy is imported, and nothing that may be missing is taken for granted.
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

Run = Callable[[Sequence[str], Path], int]  # a command and its log -> its exit status


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One of the two environments, and how to get there."""

    side: str  # old or new
    words: tuple[str, ...]

    @property
    def option(self) -> str:
        """For a screen that CI keeps: a token among the words is not for it."""
        return f"--{self.side} {shlex.join(safe_arguments(self.words))!r}"

    def python(self, *arguments: str) -> list[str]:
        """A Python with these arguments in that environment."""
        own = () if _A_PYTHON.fullmatch(Path(self.words[-1]).name) else (PYTHON,)
        return [*self.words, *own, *arguments]


def place_of(side: str, command: str) -> Place:
    """ValueError where it is no command that could be started here."""
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise ValueError(
            f"--{side} {command!r} has {str(error).lower()}. Write it as a shell would."
        ) from None
    if not words:
        raise ValueError(
            f"--{side} is empty. Name what leads into that environment: 'apptainer exec --nv {side}.sif', or the "
            f"path of its python."
        )
    if shutil.which(words[0]) is None:
        variable = " $VARIABLES and ~ are the shell's to fill in." if set("$~") & set(command) else ""
        raise ValueError(
            f"--{side} {command!r}: there is no program {words[0]!r} here.{variable} Name what leads into that "
            f"environment: 'apptainer exec --nv {side}.sif', or the path of its python."
        )
    return Place(side=side, words=words)


def probe(place: Place, run: Run, log: Path, folder: Path) -> Mapping[str, str]:
    """What is there; ValueError with the remedy where pytest-accel is not, or where it could not reach the folder."""
    token = folder / f".probe-{secrets.token_hex(4)}"
    token.touch()
    try:
        status = run(place.python("-c", _PROBE, _MARK, str(token)), log)
    finally:
        token.unlink(missing_ok=True)
    facts = _told(log)
    if facts is None:
        said = "\n".join(f"    {line}" for line in last_lines(log))
        raise ValueError(
            f"{place.option}: no Python answered there: the command {ended_words(exit_words(status))}."
            + (f" It said:\n{said}\n" if said else " ")
            + f"Try it by hand: {shlex.join(safe_arguments(place.python('--version')))}"
        )
    _refuse(place, facts, folder)
    return {name: facts[name] for name in _KEPT}


def _told(log: Path) -> Mapping[str, str] | None:
    for line in reversed(log.read_text(encoding="utf-8", errors="replace").splitlines()):
        if line.startswith(_MARK):
            try:
                content = json.loads(line.removeprefix(_MARK))
            except ValueError:
                return None
            if not (isinstance(content, dict) and {*_KEPT, "folder", "seen"} <= content.keys()):
                return None
            return {name: str(value) for name, value in content.items()}
    return None


def _refuse(place: Place, facts: Mapping[str, str], folder: Path) -> None:
    python = f"{facts['executable']} (Python {facts['python']})"
    if not facts["pytest_accel"]:
        install = shlex.join(safe_arguments(place.python("-m", "pip", "install", "pytest-accel")))
        raise ValueError(
            f"{place.option}: pytest-accel is not installed for {python}. Install it there, or build it into the "
            f"image: {install}"
        )
    here = Path.cwd()
    if facts["folder"] != str(here) and not _is_same(facts["folder"], here):
        raise ValueError(
            f"{place.option}: a command there starts in {facts['folder']}, and not in {here}, where the benchmarks "
            f"are. Have it start here: podman and docker take --volume {here}:{here} --workdir {here}, apptainer "
            f"--bind {here} --pwd {here}."
        )
    if facts["seen"] != "True":
        raise ValueError(
            f"{place.option}: {folder} cannot be seen, or not be written to, from there. Mount it under the same "
            f"name: podman and docker take --volume {folder}:{folder}, apptainer --bind {folder}."
        )


def _is_same(told: str, here: Path) -> bool:
    """A link to it is as good."""
    return Path(told).resolve() == here.resolve()


def refuse_two_versions(old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Two versions may time, store and judge in two ways, and the upgrade would be blamed for it."""
    if old["pytest_accel"] != new["pytest_accel"]:
        raise ValueError(
            f"the old environment has pytest-accel {old['pytest_accel']}, the new one {new['pytest_accel']}. Install "
            "the same version in both: else the plugin's own upgrade is measured too."
        )


def refuse_another(place: Place, before: Mapping[str, str], now: Mapping[str, str], folder: Path) -> None:
    """An image that was replaced under its name is another one."""
    differing = [name for name in now if name in before and before[name] != now[name]]
    if differing:
        told = ", ".join(f"{name} {before[name]} -> {now[name]}" for name in differing)
        raise ValueError(
            f"{place.option} is not what was measured in {folder} any more ({told}). Begin anew in another folder."
        )


def last_lines(log: Path, lines: int = _SHOWN_LINES) -> list[str]:
    """The end of a log, as a terminal may show it."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    shown = [line for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines() if line.strip()]
    return [printable(line) for line in shown[-lines:]]
