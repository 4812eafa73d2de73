"""Taking out of baselines what is of no use any more: vanished benchmarks, old runs, environments that no run names."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_accel.stats.quantities import counted, printable
from pytest_accel.stats.run import node_id_of
from pytest_accel.storage.baselines import BaselineStore, without_unused
from pytest_accel.storage.schema import BaselineEntry, BaselineFile, LedgerEntry, Removal

# pytest's last line: "no tests collected, 1 error in 0.10s".
_ERRORS = re.compile(r"\b\d+ errors?\b.* in [\d.]+s")


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_REMEDY = "Make it with: pytest --collect-only -q FOLDERS > FILE, of whole folders and without -k, -m or --deselect."


class PruneError(ValueError):
    """A list of benchmarks from which nothing can be concluded; the message says why, and how to make another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to go."""

    gone: Callable[[str], bool] = lambda _key: False  # by key
    keep: int | None = None  # the newest runs of each benchmark
    reason: str = ""
    at: str = ""  # ISO 8601, UTC


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What goes from one file."""

    platform: str
    suite: str
    removed: dict[str, int]  # benchmarks, and how many runs they had
    cut: dict[str, int]  # benchmarks, and how many of their oldest runs go
    environments: int

    @property
    def is_empty(self) -> bool:
        return not (self.removed or self.cut or self.environments)

    def lines(self) -> Iterator[str]:
        where = f"{self.platform}/{self.suite}.json"
        for key, runs in self.removed.items():
            yield f"{where}  {printable(key)}: the benchmark, {counted(runs, 'run')}"
        for key, runs in self.cut.items():
            yield f"{where}  {printable(key)}: its oldest {counted(runs, 'run')}"
        if self.environments:
            yield f"{where}  {counted(self.environments, 'environment')} that no run names"


def plan(file: BaselineFile, wish: Wish) -> Pruned:
    """What would go from a file."""
    removed = {key: len(entry.runs) for key, entry in file.benchmarks.items() if wish.gone(key)}
    cut = {
        key: len(entry.runs) - wish.keep
        for key, entry in file.benchmarks.items()
        if wish.keep is not None and key not in removed and len(entry.runs) > wish.keep
    }
    unused = len(file.environments) - len(without_unused(file).environments)
    return Pruned(platform=file.platform, suite=file.suite, removed=removed, cut=cut, environments=unused)


def pruned(file: BaselineFile, wish: Wish) -> BaselineFile:
    """The file without it; its ledgers say what went and why."""
    benchmarks = {
        key: _shortened(entry, wish) for key, entry in file.benchmarks.items() if not wish.gone(key)
    }
    removals = tuple(
        Removal(at=wish.at, benchmark=key, reason=wish.reason, runs=len(entry.runs))
        for key, entry in file.benchmarks.items()
        if wish.gone(key)
    )
    return without_unused(dataclasses.replace(file, benchmarks=benchmarks, removed=file.removed + removals))


def prune(store: BaselineStore, platform: str, suite: str, wish: Wish) -> None:
    """Under the lock, so that a run that somebody else records meanwhile is not lost."""
    store.change(platform, suite, lambda file: pruned(file, wish))


def _shortened(entry: BaselineEntry, wish: Wish) -> BaselineEntry:
    if wish.keep is None or len(entry.runs) <= wish.keep:
        return entry
    line = LedgerEntry(
        at=wish.at,
        action="prune",
        reason=wish.reason,
        runs=len(entry.runs) - wish.keep,
        session=entry.runs[-1].session,
    )
    return dataclasses.replace(entry, runs=entry.runs[-wish.keep :], ledger=(*entry.ledger, line))


# --- what has vanished ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What `pytest --collect-only -q` listed, and which files it speaks for."""

    node_ids: frozenset[str]
    files: frozenset[str]  # of those
    root: Path  # from which node ids name their files

    def speaks_for(self, key: str) -> bool:
        """Whether something of that benchmark's file is listed, or the file is gone: others were not asked for."""
        path = _file_of(node_id_of(key))
        return path in self.files or not (self.root / path).exists()

    def has_vanished(self, key: str) -> bool:
        """Whether it is gone; PruneError where its file still seems to have it: then the list is not of whole files."""
        node_id = node_id_of(key)
        if node_id in self.node_ids or not self.speaks_for(key):
            return False
        if self._seems_to_be_there(node_id):
            raise PruneError(
                f"{printable(node_id)}: the list has others of its file and not this one, yet the file still seems to "
                f"hold it. Was the list made of single tests? {_REMEDY} If it is gone, take it out by its name, with "
                "--benchmark."
            )
        return True

    def _seems_to_be_there(self, node_id: str) -> bool:
        """Whether the source still defines its function, or, of one of which a single case is listed, its parameters.

        A list of `pytest FILE::TEST` looks like one of a whole file with one test: only the file can tell them apart.
        """
        path, _, rest = node_id.partition("::")
        function, bracket, parameters = rest.partition("[")
        listed = [each for each in self.node_ids if each.partition("[")[0] == f"{path}::{function}"]
        source = _source(self.root / path) if len(listed) <= 1 else ""
        if not source or not _defines(source, function.split("::")):
            return False
        if not listed:
            return True
        words = parameters.removesuffix("]").split("-")
        return bool(bracket and "[" in listed[0]) and all(
            re.search(rf"(?<!\w){re.escape(word)}(?!\w)", source) for word in words
        )


def read_collected(text: str, where: str, root: Path) -> Collected:
    """The list, or PruneError where something was left out of it: what was not asked for has not vanished."""
    remedy = _REMEDY
    lines = [line.rstrip("\r") for line in text.splitlines()]
    if any(line.startswith(("ERROR ", "!!!!")) or _ERRORS.search(line) for line in lines):
        raise PruneError(
            f"{where}: its collection had errors, so that benchmarks are missing from it. {remedy}"
        )
    if any("deselected" in line and "::" not in line for line in lines):
        raise PruneError(f"{where}: some tests were deselected, and would be taken for vanished. {remedy}")
    node_ids = frozenset(line for line in lines if "::" in line and not line.startswith((" ", "=")))
    if not node_ids:
        raise PruneError(
            f"{where}: it names no test, so that everything would be taken for vanished. {remedy}"
        )
    files = frozenset(map(_file_of, node_ids))
    absent = next((file for file in sorted(files) if not (root / file).exists()), None)
    if absent is not None:
        raise PruneError(
            f"{where}: it lists {printable(absent)}, which is not in {root}: it was made elsewhere, or before that file "
            f"went. {_REMEDY}"
        )
    return Collected(node_ids=node_ids, files=files, root=root)


def _source(path: Path) -> str:
    """Of a module of tests; empty where it cannot be read, or is none."""
    try:
        return path.read_text(encoding="utf-8") if path.is_file() and path.suffix == ".py" else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _defines(source: str, names: Sequence[str]) -> bool:
    """Whether a module has that function, by the classes on the way to it."""
    try:
        body: Sequence[ast.AST] = [ast.parse(source)]
    except (SyntaxError, ValueError, RecursionError):
        return False
    for name in names:
        inside = [each for parent in body for each in ast.walk(parent) if each is not parent]
        body = [each for each in inside if isinstance(each, _DEFINITIONS) and each.name == name]
    return bool(body)


def _file_of(node_id: str) -> str:
    return node_id.partition("::")[0]
