"""An upgrade as people and programs read it: one screen, one page of Markdown, one JSON; and what to do next."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from pytest_accel.report.escaping import code, prose
from pytest_accel.report.remedies import kept_options, naming
from pytest_accel.report.terminal import Cell, Column, changed, explain, lines_of
from pytest_accel.report.verdicts import deciding, shown_verdicts, status_word
from pytest_accel.stats.comparison import was_slowed
from pytest_accel.stats.environment import describe
from pytest_accel.stats.metric_gates import shown_name
from pytest_accel.stats.quantities import counted, inert, percent, printable, si
from pytest_accel.stats.results import Result, SessionResults
from pytest_accel.stats.upgrade import Decision, Effect, Row, Upgrade
from pytest_accel.stats.verdict import THROUGHPUT, Outcome, Verdict
from pytest_accel.storage.schema import rendered

KIND = "pytest-accel upgrade"
SCHEMA_VERSION = 1
_ROWS = 40  # of a screen; what is ok gives way first
_CHANGES = 12
_NAMED = 5  # benchmarks in one command
_COMPARISONS_OWN = ("--accel-baselines=", "--accel-history=")
_QUIET = frozenset({Effect.OK, Effect.IMPROVED})
_GRAVITY = (
    *(Effect.REGRESSED, Effect.LOST, Effect.DRIFTED, Effect.INCONCLUSIVE, Effect.NOT_JUDGED),
    *(Effect.IMPROVED, Effect.OK),
)
_HEADLINES = {
    Decision.ACCEPT: "nothing is slower than is tolerated",
    Decision.REJECT: "the new environment is worse",
    Decision.REPEAT: "the comparison is not to be believed",
    Decision.LOOK: "nothing is known to be worse, and not everything is known",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the reader has to know beside the verdicts: what was compared, and where all of it lies."""

    old: str  # the commands that lead into the environments
    new: str
    new_pytest: str  # how pytest is called in the new one
    folder: str
    sessions: Mapping[str, SessionResults]  # by phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Something that can be done next: in words, or as a command."""

    title: str
    text: str
    is_command: bool = False


# --- the screen -------------------------------------------------------------------------------------


def screen(upgrade: Upgrade, told: Told) -> list[str]:
    """What a person reads first."""
    rows = in_order(upgrade.rows)
    lines = [*table_lines(rows[:_ROWS]), *_left_out(rows)] if rows else []
    lines += ["", *what_differs(upgrade, "upgrade.md")]
    lines += [f"{title}  {text}" for row in rows for title, text in _words(row)]
    lines += list(_remarks(upgrade))
    lines += ["", headline(upgrade)]
    steps = next_steps(upgrade, told)
    width = max(len(step.title) for step in steps)
    lines += [f"  {step.title.ljust(width)}  {step.text}" for step in steps]
    lines.append(f"All of it: {told.folder} (upgrade.md, upgrade.json, results and logs of each phase).")
    return [inert(printable(line)) for line in lines]


def headline(upgrade: Upgrade) -> str:
    counts = Counter(row.effect for row in upgrade.rows)
    told = ", ".join(f"{counts[effect]} {effect_word(effect)}" for effect in _GRAVITY if counts[effect])
    text = _HEADLINES[upgrade.decision]
    if not upgrade.judged and not upgrade.of(Effect.DRIFTED, Effect.LOST):
        text = "nothing was judged, and that is not green"
    return f"{upgrade.decision.value.upper()}: {text} ({told or 'no benchmark'}{_tolerated(upgrade)})."


def _tolerated(upgrade: Upgrade) -> str:
    """How much loss passes unseen: whoever accepts should know."""
    verdicts = [row.new.verdict for row in upgrade.judged if row.new and row.new.verdict]
    tolerances = sorted({verdict.tolerance for verdict in verdicts})
    if not tolerances:
        return ""
    least, most = percent(tolerances[0]), percent(tolerances[-1])
    return f"; tolerance {least}" if least == most else f"; tolerances {least} to {most}"


def in_order(rows: Sequence[Row]) -> list[Row]:
    """The gravest and the largest loss first; equals stay in the order of the session."""

    def order(row: Row) -> tuple[int, float]:
        losses = [each.slowdown.point for each in (row.new.verdicts if row.new else ()) if each.slowdown]
        loss = 0.0 if row.effect in _QUIET else max(losses, default=0.0)
        return _GRAVITY.index(row.effect), -loss

    return sorted(rows, key=order)


def table_lines(rows: Sequence[Row]) -> list[str]:
    """One row a benchmark."""
    columns = [
        *(Column(title=title) for title in ("benchmark", "platform", "unit")),
        *(Column(title=title, right=True) for title in ("old", "new", "change")),
        Column(title="verdict"),
    ]
    return lines_of(columns, [[Cell(text=printable(text)) for text in _cells(row)] for row in rows])


def _cells(row: Row) -> tuple[str, ...]:
    unit = f"{row.unit}/s" if row.unit else ""
    figures = (_rate(row.old_throughput), _rate(row.new_throughput), _change(row))
    return row.name, row.platform, unit, *figures, effect_word(row.effect)


def _rate(value: float | None) -> str:
    return "" if value is None else si(value)


def _change(row: Row) -> str:
    """Of the throughput, where the gate compared it."""
    verdict = row.new.verdict if row.new else None
    return changed(verdict.slowdown.point) if verdict and verdict.slowdown else ""


def effect_word(effect: Effect) -> str:
    """As the terminal shows it: what needs attention in capitals."""
    return effect.value if effect in _QUIET else effect.value.upper()


def _left_out(rows: Sequence[Row]) -> list[str]:
    hidden = Counter(effect_word(row.effect) for row in rows[_ROWS:])
    return [f"and {count} more that are {word} (upgrade.md)" for word, count in hidden.items()]


def what_differs(upgrade: Upgrade, rest_in: str) -> Iterator[str]:
    """Between the environments: the suspects, on a line; the rest of them is in that file."""
    changes = upgrade.changes
    if upgrade.identity:
        yield f"another machine: {describe(upgrade.identity)}"
    if not changes:
        yield "differs: nothing in the recorded environment"
        return
    more = f", and {len(changes) - _CHANGES} more ({rest_in})" if len(changes) > _CHANGES else ""
    yield f"differs: {describe(changes[:_CHANGES])}{more}"


# --- a benchmark in words ---------------------------------------------------------------------------


def _words(row: Row) -> Iterator[tuple[str, str]]:
    """A line for everything that is not simply ok."""
    if row.effect is not Effect.OK:
        yield effect_word(row.effect), f"{row.name}: {explanation(row)}"
    elif row.fails and row.new:
        yield status_word(row.new), f"{row.name}: {row.new.text}"
    if row.numerics:
        yield "NUMERICS", f"{row.name}: {row.numerics}"


def explanation(row: Row) -> str:
    """Why it is what it is: by how much and how surely, or why nobody can say."""
    match row.effect:
        case Effect.DRIFTED:
            return f"{row.why}{_drifted(row)}"
        case Effect.LOST | Effect.NOT_JUDGED:
            return row.why
        case _:
            return row.why or (_of_new(row.new) if row.new else "")


def _drifted(row: Row) -> str:
    """What both say against the first look at the old one."""
    sides = (("old again", row.again), ("new", row.new))
    told = [f"{name} {_short(result)}" for name, result in sides if result and result.verdict]
    return f" ({'; '.join(told)}): the machine changed meanwhile" if told else ""


def _short(result: Result) -> str:
    verdict = deciding(result)
    if verdict is None or verdict.slowdown is None:
        return str(result.status.value)
    of = "" if verdict.of == THROUGHPUT else f"{shown_name(verdict.of)} "
    return f"{result.status.value} {of}{changed(verdict.slowdown.point, verdict.of)}"


def _of_new(result: Result) -> str:
    first = deciding(result)
    grave = [
        verdict
        for verdict in shown_verdicts(result)
        if verdict is first or verdict.outcome in {Outcome.REGRESSED, Outcome.INCONCLUSIVE}
    ]
    return "; ".join(
        _verdict(verdict) if verdict.of == THROUGHPUT else f"{shown_name(verdict.of)} {_verdict(verdict)}"
        for verdict in grave
    )


def _verdict(verdict: Verdict) -> str:
    """As everywhere, less what a session advises about baselines: here they are only a means."""
    found = verdict.slowdown
    if found is None or verdict.outcome not in {Outcome.IMPROVED, Outcome.INCONCLUSIVE}:
        return explain(verdict)
    tolerance = f"tolerance {percent(verdict.tolerance)}"
    text, runs = changed(found.point, verdict.of), counted(verdict.looks, "run")
    if verdict.outcome is Outcome.IMPROVED:
        return f"{text} (at least {changed(found.high, verdict.of)}; {tolerance}), {runs}"
    bounds = f"{changed(found.low, verdict.of)} to {changed(found.high, verdict.of)}"
    noise = f"noise {percent(verdict.noise or 0)} resolves {percent(verdict.resolution or 0)} here"
    return f"{text} ({bounds}; {tolerance}), {runs}; {noise}"


def _remarks(upgrade: Upgrade) -> Iterator[str]:
    for remark in upgrade.remarks:
        yield f"note: {remark}"
    unsure = [row.name for row in upgrade.rows if row.is_unsure]
    if unsure:
        yield (
            f"note: whether the machine drifted is not known for {counted(len(unsure), 'benchmark')}: the old "
            f"environment, measured again, is inconclusive against itself ({_some(unsure)})"
        )
    if upgrade.skipped:
        yield f"note: {counted(upgrade.skipped, 'benchmark')} of other machines skipped in both"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


# --- what to do -------------------------------------------------------------------------------------


def next_steps(upgrade: Upgrade, told: Told) -> list[Step]:
    """What can be done now, the advised first."""
    # A drill moves no baseline.
    moved = [row for row in upgrade.of(Effect.REGRESSED, Effect.IMPROVED) if not _was_slowed(row)]
    match upgrade.decision:
        case Decision.ACCEPT:
            steps = [
                Step(title="accept", text="switch to the new one; the site's baselines hold as they are"),
                *([_update("keep the gain", moved, upgrade, told)] if moved else []),
            ]
        case Decision.REJECT:
            steps = [
                Step(
                    title="reject", text="stay with the old one, and show upgrade.md to who made the new one"
                ),
                *([_update("accept all the same", moved, upgrade, told)] if moved else []),
            ]
        case Decision.REPEAT:
            steps = [
                Step(title="find the cause", text="pytest-accel doctor", is_command=True),
                Step(
                    title="repeat",
                    text="the same command without --keep, or with a new folder, on a quiet node",
                ),
            ]
        case Decision.LOOK:
            steps = [
                Step(
                    title="look again",
                    text=f"--runs 10 in a new folder, longer --accel-budget after --, or a tolerance that this machine "
                    f"can hold, for: {_some([row.name for row in upgrade.open])}",
                ),
                Step(title="accept", text="knowing that for these nobody can say"),
            ]
    return [*steps, *_files(told)]


def _was_slowed(row: Row) -> bool:
    return row.new is not None and any(map(was_slowed, row.new.runs))


def _update(title: str, rows: Sequence[Row], upgrade: Upgrade, told: Told) -> Step:
    """The command that moves the site's baselines of what moved, and of nothing else."""
    names = [row.benchmark for row in rows]
    platforms = list(dict.fromkeys(row.platform for row in rows if row.platform))
    reason = describe(upgrade.changes[:3]) or "the new environment"
    command = told.sessions["new"].command
    words = [*naming(names, command), *(["-m", " or ".join(platforms)] if platforms else [])]
    # Not the folders of this comparison: the site's own baselines are to move.
    words += [word for word in kept_options(command) if not word.startswith(_COMPARISONS_OWN)]
    words += ["--accel-update", "--accel-reason", reason]
    return Step(title=title, text=f"{told.new_pytest} {shlex.join(words)}", is_command=True)


def _files(told: Told) -> list[Step]:
    """What the other commands make of the results."""
    old, new = (f"{told.folder}/{phase}.json" for phase in ("old", "new"))
    commands = (["compare", old, new], ["report", new, "-o", f"{told.folder}/new.html"])
    return [
        Step(title=title, text=shlex.join(["pytest-accel", *words]), is_command=True)
        for title, words in zip(("look closer", "see it drawn"), commands, strict=True)
    ]


# --- Markdown ---------------------------------------------------------------------------------------


def markdown(upgrade: Upgrade, told: Told) -> str:
    """The page that is handed round."""
    rows = in_order(upgrade.rows)
    steps = next_steps(upgrade, told)
    parts = [
        f"# Upgrade: {prose(headline(upgrade))}",
        f"- old: {code(told.old)}\n- new: {code(told.new)}\n" + "\n".join(_sessions(told)),
        *(["\n".join(_rows(rows))] if rows else []),
        *_listed("Why", [f"**{title}** {prose(text)}" for row in rows for title, text in _words(row)]),
        *_listed(
            "What differs between the environments",
            [prose(str(each)) for each in (*upgrade.identity, *upgrade.changes)]
            or ["nothing in the recorded environment"],
        ),
        *_listed("Notes", [prose(each.removeprefix("note: ")) for each in _remarks(upgrade)]),
        *_listed(
            "What to do next",
            [
                f"{step.title}: {code(step.text, characters=2000) if step.is_command else prose(step.text)}"
                for step in steps
            ],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _sessions(told: Told) -> Iterator[str]:
    for phase, session in told.sessions.items():
        host = f" on {code(session.host)}" if session.host else ""
        yield f"- phase {phase}: session {code(session.session)} of {code(session.at)}{host}"


def _rows(rows: Sequence[Row]) -> Iterator[str]:
    yield "| benchmark | platform | unit | old | new | change | verdict |"
    yield "| --- | --- | --- | ---: | ---: | ---: | --- |"
    for row in rows:
        name, *cells = _cells(row)
        yield f"| {code(name, in_table=True)} | {' | '.join(map(prose, cells))} |"


def _listed(title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", "\n".join(f"- {line}" for line in lines)] if lines else []


# --- JSON -------------------------------------------------------------------------------------------


def as_json(upgrade: Upgrade, told: Told) -> str:
    """Everything, unrounded."""
    content = {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "decision": upgrade.decision.value,
        "exit_status": upgrade.status,
        "old": told.old,
        "new": told.new,
        "bracketed": upgrade.bracketed,
        "skipped": upgrade.skipped,
        "sessions": {
            phase: {"session": each.session, "at": each.at, "host": each.host, "version": each.version}
            for phase, each in told.sessions.items()
        },
        "changes": [asdict(change) for change in upgrade.changes],
        "identity": [asdict(change) for change in upgrade.identity],
        "remarks": [remark.removeprefix("note: ") for remark in _remarks(upgrade)],
        "next": [asdict(step) for step in next_steps(upgrade, told)],
        "benchmarks": [_plain(row) for row in upgrade.rows],
    }
    return rendered(content, "") + "\n"


def _plain(row: Row) -> dict[str, object]:
    return {
        "benchmark": row.benchmark,
        "platform": row.platform,
        "unit": row.unit,
        "effect": row.effect.value,
        "fails": row.fails,
        "explanation": explanation(row),
        "numerics": row.numerics,
        "old_throughput": row.old_throughput,
        "new_throughput": row.new_throughput,
        "verdicts": [plain_verdict(verdict) for verdict in (row.new.verdicts if row.new else ())],
        "old_again": plain_verdict(row.again.verdict) if row.again and row.again.verdict else None,
    }


def plain_verdict(verdict: Verdict) -> dict[str, object]:
    """For JSON."""
    return {**asdict(verdict), "outcome": verdict.outcome.value}
