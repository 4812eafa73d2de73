"""`pytest-accel baseline`: show and check stored runs, accept runs from results, edit what is stored."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pytest_accel.commands import registry
from pytest_accel.commands.registry import Argument, argument, command
from pytest_accel.report.baselines import ShownBenchmark, shown, shown_json
from pytest_accel.report.markdown import render_proposal
from pytest_accel.stats.quantities import counted, did_you_mean, parse_tolerance, printable
from pytest_accel.stats.run import node_id_of
from pytest_accel.storage import baseline_edits
from pytest_accel.storage.baselines import BaselineFile, BaselineStore
from pytest_accel.storage.results import read_results

_PLATFORM: Argument = argument(
    "platform",
    nargs="?",
    default="",
    metavar="PLATFORM",
    help="a platform: h200, or cpu where one folder begins with cpu- (default: all)",
)
_REASON: Argument = argument(
    "--reason", default="", metavar="TEXT", help="write the change, with this reason in the ledger"
)
registry.add_group("baseline", "Show and check baselines, add runs to them, edit them.")


@command(
    _PLATFORM,
    registry.KEYWORD,
    registry.BASELINES,
    argument("--json", action="store_true", help="print JSON, for scripts"),
    argument("--check", action="store_true", help="check every file; exit status 1 if one has a fault"),
    group="baseline",
    example="baseline show h200 -k resnet50",
)
def show(args: argparse.Namespace) -> int:
    """Show stored runs, their noise, and the loss that they catch."""
    if args.check:
        return _check(registry.baselines_folder(args))
    store, files, wanted = _stored(args)
    priors = baseline_edits.priors_of(store, files)
    stored = []
    for file in files:
        removed = tuple(each for each in file.removed if wanted(each.benchmark))
        chosen, prior = replace(file, removed=removed), priors[file.platform]
        stored += [
            ShownBenchmark(file=chosen, key=key, entry=entry, prior=prior)
            for key, entry in file.benchmarks.items()
            if wanted(key)
        ]
    if args.json:
        print(json.dumps(shown_json(stored), indent=2))
    else:
        print("\n".join(shown(stored)))
    return 0


def _stored(args: argparse.Namespace) -> tuple[BaselineStore, Sequence[BaselineFile], Callable[[str], bool]]:
    """Return the baselines, the files of the platform, and whether -k selects a benchmark; none is an error."""
    folder, wanted = registry.baselines_folder(args), registry.by_keyword(args.keyword)
    store = BaselineStore(folder)
    files = store.files(args.platform)
    known = [key for file in files for key in file.benchmarks]
    if not known:
        raise ValueError(
            f"There are no baselines in {folder}. Record them with `pytest --accel-record`, or name another folder with "
            "--baselines."
        )
    if not any(map(wanted, known)):
        raise ValueError(
            f"No baseline in {folder / store.platform(args.platform)} matches -k {args.keyword!r}."
        )
    return store, files, wanted


def _check(folder: Path) -> int:
    find = registry.project_catalogue().find
    checked = baseline_edits.check_baselines(folder, lambda name: find(name.partition("-")[0]) is not None)
    found = dict(checked)
    if not found:
        raise ValueError(f"{folder} holds nothing to check. Name the folder of baselines with --baselines.")
    faults = [fault for each in found.values() for fault in each]
    for line in "\n".join(f"FAULT  {fault}".replace("\n", "\n    ") for fault in faults).splitlines():
        print(printable(line))
    number = counted(len(faults), "fault") if faults else "no fault"
    print(f"Checked {counted(len(found), 'file')}: {number}.")
    return 1 if faults else 0


@command(
    argument(
        "results", type=Path, metavar="RESULTS.json", help="of --accel-json, or pytest-accel-unsaved-*.json"
    ),
    _REASON,
    argument("--replace", action="store_true", help="replace the stored runs instead of adding to them"),
    registry.KEYWORD,
    registry.BASELINES,
    argument("--markdown", action="store_true", help="only print the text of an issue or a pull request"),
    group="baseline",
    example="baseline accept results.json --reason 'cuDNN 9.19'",
)
def accept(args: argparse.Namespace) -> int:
    """Add the runs of a session to the baselines.

    Without --reason it only shows which would move.
    """
    session = read_results(args.results)
    if args.markdown:
        print(render_proposal(session), end="")
        return 0
    found = baseline_edits.accept(
        BaselineStore(registry.baselines_folder(args)),
        session,
        reason=args.reason,
        at=_now(),
        wanted=registry.by_keyword(args.keyword),
        replace=args.replace,
    )
    if not found.done and not found.refused:
        chosen = f" that -k {args.keyword!r} chooses" if args.keyword else ""
        raise ValueError(f"{args.results}: no benchmark{chosen} was measured in it.")
    print("\n".join([*found.done, *(f"REFUSED  {line}" for line in found.refused)]))
    if not args.reason.strip():
        print('Nothing was written. Write it with --reason "...".')
    return 1 if found.refused else 0


@command(
    _PLATFORM,
    registry.KEYWORD,
    registry.BASELINES,
    _REASON,
    argument("--tolerance", metavar="5%", help="5%%, auto (what the runs resolve, at least 3%%) or default"),
    argument("--noisy", action="store_true", help="of --tolerance: only benchmarks too noisy for theirs"),
    argument("--anchor", choices=("set", "clear"), help="make the stored runs the anchor, or remove it"),
    argument(
        "--remove",
        action="append",
        default=[],
        metavar="ID",
        help="a benchmark, by its id or name; repeatable",
    ),
    group="baseline",
    example="baseline edit h200 --tolerance 8% --reason 'noisy node'",
)
def edit(args: argparse.Namespace) -> int:
    """Change tolerances and anchors, remove benchmarks.

    Without --reason it only shows what would change.
    """
    if (args.tolerance is not None) + bool(args.anchor) + bool(args.remove) != 1:
        raise ValueError("Choose one of --tolerance, --anchor and --remove; each gets its own reason.")
    store, files, wanted = _stored(args)
    if args.tolerance is not None:
        change = baseline_edits.set_tolerance(_tolerance(args.tolerance), noisy_only=args.noisy)
    elif args.anchor:
        change = baseline_edits.set_anchor(clear=args.anchor == "clear")
    else:
        change = baseline_edits.remove({key for name in args.remove for key in _keys_of(name, files)})
    lines = baseline_edits.edit_baselines(store, files, change, reason=args.reason, at=_now(), wanted=wanted)
    print("\n".join(lines or ["There is nothing to change."]))
    if lines and not args.reason.strip():
        print('Nothing was changed. Write it with --reason "...".')
    return 0


def _tolerance(text: str) -> baseline_edits.Tolerance:
    if text.strip().lower() == "default":
        return None
    try:
        return parse_tolerance(text)
    except ValueError as error:
        raise ValueError(f"--tolerance {text!r} {error} Or auto, or default.") from None


def _keys_of(name: str, files: Sequence[BaselineFile]) -> set[str]:
    """Return the keys of an id, or of a name that only one benchmark has."""
    stored = {key for file in files for key in file.benchmarks}
    ids = {node_id_of(key) for key in stored}
    same = sorted(each for each in ids if each == name or each.endswith(f"::{name}"))
    if keys := {key for key in stored if name == key or same == [node_id_of(key)]}:
        return keys
    hint = f" Write {' or '.join(same)}." if same else did_you_mean(name, ids)
    raise ValueError(f"--remove {name}: no baseline has it.{hint}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
