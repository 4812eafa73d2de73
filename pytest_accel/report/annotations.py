"""Failures as GitHub's workflow commands: they stand at the line of the benchmark in the changed files.

GitLab has nothing of the kind; there JUnit and the metrics report do it (docs/ci-summaries.md).

What the runner makes of a line is `ActionCommand.cs` of actions/runner: a command begins a line, and its properties end
at the first `::`. Escaped as it unescapes, no name can end a property, a command or a line.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePath, PurePosixPath

from pytest_accel.report.escaping import clipped, printable
from pytest_accel.report.verdicts import VERDICTS, in_order, shortfalls, status_word
from pytest_accel.stats.environment import describe
from pytest_accel.stats.quantities import counted
from pytest_accel.stats.results import Result, SessionResults

SHOWN = 10  # of errors, and as many of warnings, GitHub shows the first of a step
_MESSAGE_CHARACTERS = 4000  # the runner cuts at 4,096
_TITLE_CHARACTERS = 200
_LINES = 12


def annotations(
    session: SessionResults, environ: Mapping[str, str], *, rootdir: PurePath | None = None
) -> list[str]:
    """Lines to print, each a command; none where nobody reads them.

    `rootdir` is pytest's: files are relative to it, and GitHub wants them relative to the repository.
    """
    if environ.get("GITHUB_ACTIONS") != "true":
        return []
    prefix = _prefix(rootdir, environ.get("GITHUB_WORKSPACE", ""))
    results = in_order(session.results)
    errors = [result for result in results if result.failed]
    warnings = [result for result in results if not result.failed and VERDICTS[result.status].annotated]
    return [
        *_commands("error", errors, prefix, "failed"),
        *_commands("warning", warnings, prefix, "need attention"),
    ]


def _commands(level: str, results: Sequence[Result], prefix: PurePosixPath, what: str) -> list[str]:
    shown = results if len(results) <= SHOWN else results[: SHOWN - 1]  # the last place is for the others
    lines = [_command(level, _properties(result, prefix), _message(result)) for result in shown]
    if left_out := len(results) - len(shown):
        text = (
            f"{counted(left_out, 'more benchmark')} {what}: GitHub shows {SHOWN} annotations of a kind. "
            "The step's summary has them all."
        )
        lines.append(_command(level, {"title": "pytest-accel"}, text))
    return lines


def _properties(result: Result, prefix: PurePosixPath) -> dict[str, str]:
    where = f" ({result.platform})" if result.platform else ""
    title = clipped(printable(f"{status_word(result)} {result.name}{where}"), _TITLE_CHARACTERS)
    if not result.file:
        return {"title": title}
    place = {"file": printable(str(prefix / result.file))}
    if result.line > 0:
        place["line"] = str(result.line)
    return place | {"title": title}


def _message(result: Result) -> str:
    lines = [result.text or status_word(result), *shortfalls(result), *result.details[-_LINES:]]
    if changes := describe(result.changes):
        lines.append(f"changed since the baseline: {changes}")
    if result.numerics:
        lines.append(f"numerics changed too: {result.numerics}")
    shown = (printable(line) for text in dict.fromkeys(lines) for line in text.splitlines())
    return clipped("\n".join(shown), _MESSAGE_CHARACTERS)


def _command(level: str, properties: Mapping[str, str], message: str) -> str:
    named = ",".join(f"{name}={_escaped_property(value)}" for name, value in properties.items())
    return f"::{level} {named}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escaped_property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def _prefix(rootdir: PurePath | None, workspace: str) -> PurePosixPath:
    """From the repository to pytest's root directory; nothing where that is not known."""
    if rootdir is None or not workspace or not rootdir.is_relative_to(workspace):
        return PurePosixPath()
    return PurePosixPath(rootdir.relative_to(workspace).as_posix())
