"""`pytest-accel baseline`: look at stored runs, compare, accept, anchor, prune and verify them, and move their tolerances."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_accel.commands.project import BASELINES, KEYWORD, baselines_folder, by_keyword, find_project
from pytest_accel.commands.registry import GROUPS, Argument, argument, command, count

if TYPE_CHECKING:
    from pytest_accel.platforms.catalogue import Catalogue
    from pytest_accel.stats.environment import Environment
    from pytest_accel.storage.gathering import Gathered
    from pytest_accel.storage.pruning import Wish
    from pytest_accel.storage.schema import BaselineFile
    from pytest_accel.storage.tolerances import Tolerance

_PLATFORM: Argument = argument(
    "platform", nargs="?", default="", metavar="PLATFORM", help="one of them (all)"
)
GROUPS["baseline"] = (
    "Look at baselines, accept runs into them, anchor, prune and verify them, move their tolerances."
)


@command(
    _PLATFORM,
    KEYWORD,
    BASELINES,
    argument("--json", action="store_true", help="print it as JSON, for scripts"),
    group="baseline",
)
def show(args: argparse.Namespace) -> int:
    """Say how many runs each baseline has, how noisy they are, and what loss the gate can catch with them."""
    from pytest_accel.report.baselines import Stored, shown, shown_json
    from pytest_accel.stats.baseline_quality import platform_prior
    from pytest_accel.storage.gathering import find
    from pytest_accel.storage.stored_runs import runs_of_file

    folder, wanted = baselines_folder(args), by_keyword(args.keyword)
    files = find(f"platform:{args.platform}" if args.platform else f"file:{folder}", folder).files
    priors = {
        platform: platform_prior(
            runs for file in files if file.platform == platform for runs in runs_of_file(file)
        )
        for platform in {file.platform for file in files}
    }
    stored = [
        Stored(file=file, key=key, entry=entry, prior=priors[file.platform])
        for file in files
        for key, entry in file.benchmarks.items()
        if wanted(key)
    ]
    if not stored:
        raise ValueError(f"No baseline in {folder / args.platform} fits -k {args.keyword!r}.")
    if args.json:
        print(json.dumps(shown_json(stored), indent=2))
    else:
        print("\n".join(shown(stored)))
    return 0


@command(
    argument("old", metavar="A", help="a platform, a folder of baselines, git:REV or REV:PATH"),
    argument("new", metavar="B", help="the same"),
    BASELINES,
    argument("--exit-code", action="store_true", help="leave with 1 if anything differs"),
    group="baseline",
)
def diff(args: argparse.Namespace) -> int:
    """Say what moved from one baseline to another: benchmarks, runs, figures, configuration, environment, ledger."""
    from pytest_accel.report.baselines import differences
    from pytest_accel.storage.difference import difference

    folder = baselines_folder(args)
    # `diff git:main h200` is of the h200 alone, whatever else the revision holds.
    named = {name.removeprefix("platform:") for name in (args.old, args.new)}
    platforms = {name for name in named if "/" not in name and (folder / name).is_dir()}
    moved = difference(_baselines(args.old, folder), _baselines(args.new, folder), platforms)
    print("\n".join(differences(moved)))
    return 1 if moved and args.exit_code else 0


def _baselines(name: str, folder: Path) -> Gathered:
    from pytest_accel.storage.gathering import find

    found = find(name, folder)
    if not found.files:
        raise ValueError(
            f"{name} holds no baselines: compare results and studies with `pytest-accel compare`."
        )
    return found


@command(
    argument(
        "results", type=Path, metavar="RESULTS.json", help="of --accel-json, or pytest-accel-unsaved-*.json"
    ),
    argument("--reason", default="", metavar="TEXT", help="why the baseline moves; its ledger keeps it"),
    argument(
        "--replace", action="store_true", help="in the place of the stored runs, instead of beside them"
    ),
    argument(
        "--platform",
        default="",
        metavar="DIR",
        help="the folder of its baselines, where the file does not say",
    ),
    KEYWORD,
    BASELINES,
    group="baseline",
)
def accept(args: argparse.Namespace) -> int:
    """Put fresh runs of a file of results into the baseline, with a reason."""
    from datetime import UTC, datetime

    from pytest_accel.storage.accepting import accept, read_candidates
    from pytest_accel.storage.baselines import BaselineStore

    wanted = by_keyword(args.keyword)
    candidates = [each for each in read_candidates(args.results, args.platform) if wanted(each.key)]
    if not candidates:
        chosen = f" that -k {args.keyword!r} chooses" if args.keyword else ""
        raise ValueError(f"{args.results}: no benchmark{chosen} was measured in it. Nothing was written.")
    done = accept(
        BaselineStore(baselines_folder(args)),
        candidates,
        reason=args.reason,
        replace=args.replace,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        misplaced=_misplaced(_catalogue()),
    )
    print("\n".join(done))
    return 0


@command(
    _PLATFORM,
    argument("--vanished", action="store_true", help="benchmarks that --collected does not list"),
    argument("--collected", type=Path, metavar="FILE", help="what `pytest --collect-only -q` printed"),
    argument("--benchmark", action="append", default=[], metavar="ID", help="this one; repeatable"),
    argument("--keep", type=count, metavar="N", help="only the newest N runs of each benchmark"),
    argument("--reason", default="", metavar="TEXT", help="for the ledger (what was asked for)"),
    argument("--dry-run", action="store_true", help="say what would go (this is what happens without --yes)"),
    argument("--yes", action="store_true", help="do it"),
    BASELINES,
    group="baseline",
)
def prune(args: argparse.Namespace) -> int:
    """Take out vanished benchmarks, old runs and environments that no run names; without --yes only say so."""
    from pytest_accel.storage.baselines import BaselineStore
    from pytest_accel.storage.pruning import plan, prune

    if args.yes and args.dry_run:
        raise ValueError("--yes does it and --dry-run does not: choose one.")
    folder = baselines_folder(args)
    wish, files = _wish(args), list(_files(folder, args.platform))
    _refuse_unknown(args.benchmark, files)
    plans = [each for each in (plan(file, wish) for file in files) if not each.is_empty]
    for each in plans:
        if args.yes:
            prune(BaselineStore(folder), each.platform, each.suite, wish)
        print("\n".join(each.lines()))
    if not plans:
        print("There is nothing to prune.")
    elif not args.yes:
        print("Nothing was changed. Do it with --yes.")
    return 0


def _wish(args: argparse.Namespace) -> Wish:
    from datetime import UTC, datetime

    from pytest_accel.stats.run import both_keys
    from pytest_accel.storage.pruning import Wish

    if args.vanished != (args.collected is not None):
        raise ValueError(
            "--vanished and --collected FILE go together: pytest --collect-only -q > FILE lists what there is."
        )
    vanished = _vanished(args.collected) if args.vanished else lambda _key: False
    named = {key for node_id in args.benchmark for key in both_keys(node_id)} | set(args.benchmark)
    asked = [
        *(["vanished"] if args.vanished else []),
        *(["named by hand"] if args.benchmark else []),
        *([f"the newest {args.keep} kept"] if args.keep else []),
    ]
    return Wish(
        gone=lambda key: key in named or vanished(key),
        keep=args.keep,
        reason=args.reason.strip() or ", ".join(asked) or "unused environments",
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _vanished(path: Path) -> Callable[[str], bool]:
    from pytest_accel.storage.pruning import read_collected

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"--collected {path}: cannot be read: {error}. Make it with pytest --collect-only -q."
        ) from None
    return read_collected(text, str(path), find_project(Path.cwd()).root).has_vanished


def _files(folder: Path, platform: str) -> Iterator[BaselineFile]:
    """Those that stand where they belong: the store refuses others before anything is changed."""
    from pytest_accel.storage.baselines import BaselineStore
    from pytest_accel.storage.gathering import find

    store = BaselineStore(folder)
    for file in find(f"platform:{platform}" if platform else f"file:{folder}", folder).files:
        found = store.read(file.platform, file.suite)
        if found is None:
            raise ValueError(
                f"{folder}: baselines of {file.platform}/{file.suite} do not stand in that folder. "
                "`pytest-accel baseline verify` says which do not."
            )
        yield found


def _refuse_unknown(named: list[str], files: list[BaselineFile]) -> None:
    from pytest_accel.platforms.names import closest
    from pytest_accel.stats.run import both_keys

    known = {key for file in files for key in file.benchmarks}
    for name in named:
        if known.isdisjoint(both_keys(name)):
            near = closest(name, known, limit=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ValueError(f"--benchmark {name}: no baseline has it.{hint}")


@command(
    _PLATFORM,
    argument("--reason", default="", metavar="TEXT", help="why it moves: the release; the ledger keeps it"),
    argument("--clear", action="store_true", help="take the anchor away"),
    KEYWORD,
    BASELINES,
    group="baseline",
)
def anchor(args: argparse.Namespace) -> int:
    """Take the stored runs for the anchor, which no refresh moves: at a release, with a reason."""
    from pytest_accel.storage.anchoring import anchor

    return _amend(args, partial(anchor, clear=args.clear))


@command(
    argument("to", metavar="TOLERANCE", help="5%%, auto (what its runs resolve, at least 3%%) or default"),
    _PLATFORM,
    argument("--reason", default="", metavar="TEXT", help="why it moves; the ledger keeps it"),
    argument("--noisy", action="store_true", help="only of those that are too noisy for the one they have"),
    KEYWORD,
    BASELINES,
    group="baseline",
)
def tolerance(args: argparse.Namespace) -> int:
    """Say how much benchmarks may lose against the runs that are stored, with a reason."""
    from pytest_accel.storage.tolerances import move_tolerance

    return _amend(args, partial(move_tolerance, to=_tolerance(args.to), noisy_alone=args.noisy))


def _tolerance(text: str) -> Tolerance:
    from pytest_accel.stats.quantities import parse_tolerance

    if text.strip().lower() == "default":
        return None
    try:
        return parse_tolerance(text)
    except ValueError as error:
        raise ValueError(f"{text!r} {error} Or auto, or default.") from None


def _amend(args: argparse.Namespace, amend: Callable[..., list[str]]) -> int:
    """Change what is stored of the benchmarks that `-k` names, and say what was done."""
    from datetime import UTC, datetime

    from pytest_accel.storage.baselines import BaselineStore

    folder, wanted = baselines_folder(args), by_keyword(args.keyword)
    files = list(_files(folder, args.platform))
    if not any(wanted(key) for file in files for key in file.benchmarks):
        raise ValueError(f"No baseline in {folder / args.platform} fits -k {args.keyword!r}.")
    at, store = datetime.now(UTC).isoformat(timespec="seconds"), BaselineStore(folder)
    done = [line for file in files for line in amend(store, file, wanted, reason=args.reason, at=at)]
    print("\n".join(done or ["There is nothing to change."]))
    return 0


@command(
    argument("folder", nargs="?", type=Path, metavar="DIR", help="of baselines (that of --baselines)"),
    BASELINES,
    group="baseline",
)
def verify(args: argparse.Namespace) -> int:
    """Check every file of a folder of baselines, and leave with 1 if anything is wrong with one."""
    from pytest_accel.report.baselines import verified
    from pytest_accel.storage.verifying import verify

    folder = args.folder or baselines_folder(args)
    if not folder.is_dir():
        raise ValueError(
            f"{folder} is no folder. Name that of the baselines, with one folder a platform in it."
        )
    catalogue = _catalogue()
    report = verify(
        folder, lambda name: catalogue.find(name.partition("-")[0]) is not None, _misplaced(catalogue)
    )
    print("\n".join(verified(report)))
    if not (report.files or report.studies or report.faults):
        raise ValueError(
            f"{folder}: there is nothing in it to verify. Name the folder that platforms' folders are in."
        )
    return 1 if report.faults else 0


def _catalogue() -> Catalogue:
    """With the platforms that the project adds."""
    from pytest_accel.platforms.catalogue import load_catalogue, user_platforms

    return load_catalogue(user_platforms(find_project(Path.cwd()).root / "pyproject.toml"))


def _misplaced(catalogue: Catalogue) -> Callable[[str, Environment], str]:
    from pytest_accel.platforms.catalogue import misplaced

    return lambda folder, environment: misplaced(folder, environment.identity, catalogue)
