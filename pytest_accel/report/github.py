"""GitHub: annotations as workflow commands, and the summary of a step.

A workflow command begins a line, and its properties end at the first `::` (`ActionCommand.cs` of actions/runner).
Values are escaped as the runner unescapes them, so that no name can end a property, a command or a line.
"""

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath

from pytest_accel.report.verdicts import VERDICTS, in_order, status_word
from pytest_accel.stats.environment import describe
from pytest_accel.stats.quantities import clipped, counted, printable
from pytest_accel.stats.results import Result, SessionResults

SHOWN = 10  # GitHub shows so many errors of a step, and so many warnings
_MESSAGE_CHARACTERS = 4000  # the runner cuts at 4,096
_TITLE_CHARACTERS = 200
_LINES = 12
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
STEP_BYTES = 1024 * 1024  # a larger file of a step is not shown at all
_SPARE_BYTES = 8 * 1024  # for what the step may write after us
_TOO_LONG = "the summary is left out, GitHub shows 1 MiB a step."
_CUT = f"\n\n**Of this session {_TOO_LONG}** The log and `--accel-report` have it.\n"

# --- annotations ------------------------------------------------------------------------------------


def workflow_commands(
    session: SessionResults, environ: Mapping[str, str], *, rootdir: PurePath | None = None
) -> list[str]:
    """Return lines to print, each a workflow command; none outside GitHub.

    Files are relative to pytest's `rootdir`, and GitHub wants them relative to the repository.
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
    shown = results if len(results) <= SHOWN else results[: SHOWN - 1]  # the last one counts the others
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
    line = {"line": str(result.line)} if result.line > 0 else {}
    return {"file": printable(str(prefix / result.file)), **line, "title": title}


def _message(result: Result) -> str:
    lines = [*(line.named for line in result.lines), *result.traceback[-_LINES:]] or [status_word(result)]
    if changes := describe(result.changes):
        lines.append(f"changed since the baseline: {changes}")
    shown = (printable(line) for text in lines for line in text.splitlines())
    return clipped("\n".join(shown), _MESSAGE_CHARACTERS)


def _command(level: str, properties: Mapping[str, str], message: str) -> str:
    named = ",".join(f"{name}={_escaped_property(value)}" for name, value in properties.items())
    return f"::{level} {named}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escaped_property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def _prefix(rootdir: PurePath | None, workspace: str) -> PurePosixPath:
    """Return the path from the repository to pytest's root directory; empty where it is not known."""
    if rootdir is None or not workspace or not rootdir.is_relative_to(workspace):
        return PurePosixPath()
    return PurePosixPath(rootdir.relative_to(workspace).as_posix())


# --- the summary of a step --------------------------------------------------------------------------


def append_step_summary(environ: Mapping[str, str], text: str) -> str:
    """Append to the file of the step, as far as there is room; return a warning where that failed or was cut."""
    name = environ.get(STEP_SUMMARY, "")
    if not name:
        return ""
    try:
        return _append(Path(name), text)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        why = getattr(error, "strerror", None) or error
        return f"{STEP_SUMMARY}={name}: the summary cannot be written: {why}. --accel-report writes it elsewhere."


def _append(path: Path, text: str) -> str:
    # Not created: the runner reads only the file that it made. Non-blocking: a FIFO would wait for ever.
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "ab") as stream:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            return f"{STEP_SUMMARY}={path}: is not a regular file, and was left alone. --accel-report writes one."
        apart = "\n\n" if facts.st_size else ""
        headline = text.partition("\n")[0] + _CUT
        for part in (text, headline):
            data = f"{apart}{part}".encode("utf-8", "backslashreplace")
            if facts.st_size + len(data) <= STEP_BYTES - _SPARE_BYTES:
                stream.write(data)
                break
        return "" if part is text else f"{STEP_SUMMARY}: {_TOO_LONG} --accel-report writes all of it."
