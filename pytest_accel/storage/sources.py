"""Sources of a comparison: platforms, folders, results, git revisions and studies, by their names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pytest_accel.platforms.names import closest
from pytest_accel.stats.comparison import Entry, Value, figures
from pytest_accel.stats.quantities import counted
from pytest_accel.stats.results import Ending, Result, SessionResults
from pytest_accel.stats.verdict import Outcome
from pytest_accel.storage.baselines import MAX_BYTES, PUBLISHED, BaselineError, BaselineFile, parse
from pytest_accel.storage.codec import loads
from pytest_accel.storage.comparison import Side
from pytest_accel.storage.files import decode_text, format_errors, read_revision, read_text
from pytest_accel.storage.references import (
    Figure,
    Study,
    linked_figures,
    published_folder,
    read_study,
    similar_links,
)
from pytest_accel.storage.results import parse as parse_results
from pytest_accel.storage.results import read_results_text

KINDS = ("platform", "published", "git", "file")
_BASELINE_KEYS = {"suite", "benchmarks"}
_RESULTS_KEYS = {"kind", "machine_info"}  # ours, and pytest-benchmark's


class SourceError(ValueError):
    """A name that means no set, or two; the message says what there is and what to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSource:
    """The set that one name means: for each platform its baselines or runs, or the figures of a study."""

    name: str
    sides: tuple[Side, ...]
    files: tuple[BaselineFile, ...] = ()  # where they are baselines
    origin: tuple[object, ...] = ()  # equal where two names mean one set


def read_sources(names: Sequence[str], baselines: Path) -> list[ComparisonSource]:
    """Return one set for each name, in that order, with distinct labels."""
    found = [find_source(name, baselines) for name in names]
    for index, each in enumerate(found):
        for name, other in zip(names[:index], found[:index], strict=False):
            if other.origin == each.origin:
                again = "is named twice" if name == names[index] else f"and {name!r} are one set"
                raise SourceError(f"{names[index]!r} {again}: compared with itself it is the same.")
    titles = _titles(names, found)
    return [_labelled(each, title, alone=len(found) == 1) for each, title in zip(found, titles, strict=True)]


def find_source(name: str, baselines: Path) -> ComparisonSource:
    """Return the set that a name means, or raise SourceError where it means none or several."""
    kind, colon, rest = name.partition(":")
    if kind in KINDS and rest:
        return _readers(rest, baselines)[kind]()
    if not name or (colon and kind in KINDS):
        raise SourceError(f"{name!r} names nothing. {_there_are(baselines)}")
    meanings = _meanings(name, baselines)
    if len(meanings) > 1:
        raise SourceError(f"{name!r} could be {len(meanings)} things. Write {' or '.join(meanings)}.")
    if not meanings:
        raise SourceError(_unknown(name, baselines))
    (meaning,) = meanings.values()
    return meaning()


def _readers(name: str, baselines: Path) -> dict[str, Callable[[], ComparisonSource]]:
    return {
        "platform": lambda: of_platform(name, baselines),
        "published": lambda: of_study(name, baselines),
        "git": lambda: of_revision(name, baselines),
        "file": lambda: of_path(Path(name), name),
    }


def _meanings(name: str, baselines: Path) -> dict[str, Callable[[], ComparisonSource]]:
    """Return everything that a bare name could mean, by its unambiguous spelling."""
    readers, found = _readers(name, baselines), {}
    path, platform = Path(name), baselines / name
    is_platform = "/" not in name and name not in (PUBLISHED, ".", "..") and platform.is_dir()
    if is_platform:
        found[f"platform:{name}"] = readers["platform"]
    if path.exists() and not (is_platform and path.samefile(platform)):
        found[name if name.startswith(("/", ".")) else f"./{name}"] = readers["file"]
    if _is_study(name, baselines):
        found[f"published:{name}"] = readers["published"]
    revision, colon, inside = name.partition(":")
    if colon and revision and not path.exists():
        found[f"git:{name}"] = lambda: of_revision(f"{revision}:{inside}", baselines)
    return found


def _is_study(name: str, baselines: Path) -> bool:
    source = name.partition("/")[0]
    return bool(source.strip(".")) and (published_folder(baselines) / f"{source}.json").is_file()


def _unknown(name: str, baselines: Path) -> str:
    near = closest(name, [*_platforms(baselines), *_studies(baselines)], limit=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"{name!r} is nothing to compare.{hint} {_there_are(baselines)}"


def _there_are(baselines: Path) -> str:
    platforms, studies = _platforms(baselines), _studies(baselines)
    return (
        f"There are, in {baselines}: platforms {', '.join(platforms) or 'none'}; studies "
        f"{', '.join(studies) or 'none'}. Or name a folder of baselines, a file of --accel-json, or git:REVISION."
    )


def _platforms(baselines: Path) -> list[str]:
    return [each.name for each in _platform_folders(baselines)]


def _studies(baselines: Path) -> list[str]:
    return sorted(each.stem for each in published_folder(baselines).glob("*.json"))


# --- platforms and folders --------------------------------------------------------------------------


def of_platform(name: str, baselines: Path) -> ComparisonSource:
    folder = baselines / name
    if "/" in name or name == PUBLISHED or not folder.is_dir():
        raise SourceError(f"platform:{name}: {baselines} has no baselines of it. {_unknown(name, baselines)}")
    return _of_files(name, _read_folder(folder), f"baselines in {folder}", _origin(folder))


def of_path(path: Path, name: str) -> ComparisonSource:
    """Return the set of a folder of one platform's baselines, of a root of several, or of one file."""
    if path.is_dir():
        return _of_files(name, _read_folder(path), f"baselines in {path}", _origin(path))
    text, where = read_results_text(path), str(path)
    if len(text) <= MAX_BYTES and _is_baseline(text, where):
        return _of_files(name, [parse(text, where)], f"baselines in {path}", _origin(path))
    return _of_results(name, parse_results(text, where), _origin(path))


def _origin(path: Path) -> tuple[object, ...]:
    """Return what a path is, independent of its spelling."""
    facts = path.stat()
    return "file", facts.st_dev, facts.st_ino


def _read_folder(folder: Path) -> list[BaselineFile]:
    own = sorted(folder.glob("*.json"))
    paths = own or [path for each in _platform_folders(folder) for path in sorted(each.glob("*.json"))]
    if not paths:
        raise SourceError(
            f"{folder} holds no baselines. A folder of baselines has one folder for each platform, "
            "and in it one JSON file for each suite: record some with --accel-record."
        )
    read = ((path, read_text(path, BaselineError, MAX_BYTES)) for path in paths)
    return [_baseline_of(text, path, folder) for path, text in read if text is not None]


def _baseline_of(text: str, path: Path, folder: Path) -> BaselineFile:
    """Return the baselines of one file of a folder; a file of something else is neither restored nor deleted."""
    if not _is_baseline(text, str(path)):
        raise SourceError(
            f"{path} is no baseline, so that {folder} is no folder of baselines. Name that file itself if you mean it "
            f"(./{path.name} is a set if --accel-json wrote it), or the folder that has only baselines."
        )
    return parse(text, str(path))


def _platform_folders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(
        each
        for each in root.iterdir()
        if each.is_dir() and each.name != PUBLISHED and not each.name.startswith(".")
    )


def _is_baseline(text: str, where: str) -> bool:
    """Return whether a JSON text holds baselines, and not results."""
    with format_errors(where, BaselineError):
        top = loads(text)
    return isinstance(top, dict) and bool(_BASELINE_KEYS & top.keys()) and not _RESULTS_KEYS & top.keys()


def _of_files(
    name: str, files: Sequence[BaselineFile], about: str, origin: tuple[object, ...]
) -> ComparisonSource:
    platforms: dict[str, dict[str, Entry]] = {}
    for file in files:
        entries = platforms.setdefault(file.platform, {})
        for key, entry in file.benchmarks.items():
            entries[key] = Entry(
                key=key,
                name=short_name(key),
                values=figures(entry.runs, entry.work_per_step, entry.unit),
                configuration=entry.configuration,
                work_per_step=entry.work_per_step,
                unit=entry.unit,
                tolerance=entry.tolerance,
                runs=entry.runs,
                environments=file.environments,
            )
    sides = tuple(_measured_side(name, platform, entries, about) for platform, entries in platforms.items())
    return ComparisonSource(name=name, sides=sides, files=tuple(files), origin=origin)


def short_name(key: str) -> str:
    """Return a benchmark's key without the path of its file."""
    return key.partition("::")[2] or key


def _measured_side(name: str, platform: str, entries: Mapping[str, Entry], about: str) -> Side:
    words = f"{counted(sum(1 for entry in entries.values() if entry.runs), 'benchmark')}, {about}"
    return Side(label=name, group=name, platform=platform, about=words, entries=entries)


# --- results ----------------------------------------------------------------------------------------


def _of_results(name: str, session: SessionResults, origin: tuple[object, ...]) -> ComparisonSource:
    platforms: dict[str, dict[str, Entry]] = {}
    for result in session.results:
        if result.status is Outcome.VANISHED or result.is_platform:
            continue
        key = result.key or result.benchmark
        entries = platforms.setdefault(result.disk_name, {})
        if key in entries:
            raise SourceError(f"{name}: {key!r} is in it twice. Write it again with --accel-json.")
        entries[key] = _entry_of(key, result, session)
    unplaced = platforms.pop("", {})  # failed before its platform was known: listed with every platform
    measured = {
        platform: {**{key: each for key, each in unplaced.items() if each.status is Ending.FAILED}, **entries}
        for platform, entries in platforms.items()
        if any(entry.runs for entry in entries.values())
    }
    if not measured:
        raise SourceError(f"{name}: its session measured nothing, so that there is nothing to compare.")
    about = f"results of session {session.session}" + (f" of {session.at}" if session.at else "")
    sides = tuple(_measured_side(name, platform, each, about) for platform, each in measured.items())
    return ComparisonSource(name=name, sides=sides, origin=origin)


def _entry_of(key: str, result: Result, session: SessionResults) -> Entry:
    """Return the entry of a result, also of one without runs: a comparison must show what failed."""
    return Entry(
        key=key,
        name=short_name(key),
        values=figures(result.runs, result.work_per_step, result.unit) if result.runs else {},
        status=result.status,
        links=tuple(reference.id for reference in result.references),
        configuration=result.configuration,
        work_per_step=result.work_per_step,
        unit=result.unit,
        tolerance=result.tolerance,
        gates={verdict.of: verdict.tolerance for verdict in result.verdicts[1:]},
        runs=result.runs,
        environments=session.environments,
    )


# --- revisions --------------------------------------------------------------------------------------


def of_revision(name: str, baselines: Path) -> ComparisonSource:
    """Return the set of `REV`, with the folder of baselines that we have today, or of `REV:PATH`."""
    revision, colon, path = name.partition(":")
    folder, inside = (Path.cwd(), path) if colon else _below_existing(baselines)
    read = read_revision(revision, inside, folder)
    about, origin = f"baselines in git, {revision}:{inside}", ("git", revision, inside)
    try:
        if colon and list(read) == [PurePosixPath(PurePosixPath(path).name)]:
            (data,) = read.values()
            text = decode_text(data, name, BaselineError)
            if not _is_baseline(text, name):
                return _of_results(name, parse_results(text, name), origin)
            files = [parse(text, name)]
        else:
            files = [
                parse(decode_text(data, f"{name}/{where}", BaselineError), f"{name}/{where}")
                for where, data in read.items()
                if PUBLISHED not in where.parts[:-1]
            ]
    except BaselineError as error:
        if error.remedy != error.default_remedy(error.file):
            raise
        remedy = "Name another revision, or another path in it."  # a past revision cannot be restored
        raise BaselineError(error.file, error.place, error.problem, remedy) from None
    if not files:
        raise SourceError(
            f"git:{name}: it holds no baselines at {inside}. Name the folder: git:REVISION:PATH."
        )
    return _of_files(name, files, about, origin)


def _below_existing(baselines: Path) -> tuple[Path, str]:
    """Return a folder that exists today, and the path from it to the baselines in git's form."""
    whole = baselines.absolute()
    at = next(parent for parent in whole.parents if parent.is_dir())
    return at, f"./{whole.relative_to(at).as_posix()}"


# --- studies ----------------------------------------------------------------------------------------


def of_study(name: str, baselines: Path) -> ComparisonSource:
    """Return the figures of a study, or those whose ids begin with the name."""
    if not _is_study(name, baselines):
        raise SourceError(f"published:{name}: there is no such study. {_unknown(name, baselines)}")
    study = read_study(published_folder(baselines) / f"{name.partition('/')[0]}.json")
    chosen = linked_figures(study.figures, name)
    if not chosen:
        near = similar_links(study.figures, name)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise SourceError(
            f"published:{name}: no figure of {study.source.title} has an id that begins so.{hint}"
        )
    sides = tuple(_study_sides(name, study, chosen))
    return ComparisonSource(name=name, sides=sides, origin=(PUBLISHED, name.rstrip("/")))


def _study_sides(name: str, study: Study, chosen: Iterable[Figure]) -> Iterable[Side]:
    platforms: dict[str, dict[str, Entry]] = {}
    for figure in chosen:
        entries = platforms.setdefault(figure.platform, {})
        key = _workload_key(figure)
        value = {figure.metric: Value(value=figure.value, unit=figure.unit, flags=figure.flags)}
        before = entries.get(key)
        if before is not None and figure.metric in before.values:  # one workload in two rows of a study
            key, before = figure.id, None
        entries[key] = (
            dataclasses.replace(before, values={**before.values, **value})
            if before
            else Entry(key=key, name=figure.row, table=figure.table, values=value)
        )
    for platform, entries in platforms.items():
        source = study.source
        about = f"published: {source.title} ({source.authors}, {source.year})"
        yield Side(label=name, group=name, platform=platform, about=about, study=source.key, entries=entries)


def _workload_key(figure: Figure) -> str:
    """Return the id without its platform and without the metric before it."""
    return figure.id.removesuffix(f"/{figure.platform}").removesuffix(f"/{figure.metric}")


# --- labels -----------------------------------------------------------------------------------------


def _titles(names: Sequence[str], found: Sequence[ComparisonSource]) -> list[str]:
    """Return distinct titles, as short as possible: the last part of a path, the name, or all that was written."""
    for titles in ([_short(each.name) for each in found], [each.name for each in found]):
        if len(set(titles)) == len(titles):
            return titles
    return list(names)


def _short(name: str) -> str:
    return PurePosixPath(name).name or name if name.startswith((".", "/")) or name.endswith(".json") else name


def _labelled(found: ComparisonSource, title: str, *, alone: bool) -> ComparisonSource:
    """Return the set with labels: its title, with the platform where it has several."""
    several = len(found.sides) > 1
    sides = []
    for side in found.sides:
        label = f"{title} {side.platform}" if several and not alone else side.platform if alone else title
        sides.append(dataclasses.replace(side, label=label, group=title))
    return dataclasses.replace(found, name=title, sides=tuple(sides))
