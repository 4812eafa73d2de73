"""The summary in the file that GitHub gives a step; whatever goes wrong there costs no session.

What was measured is worth more than its summary: what went wrong is said in words, and nothing where all went well.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
STEP_BYTES = 1024 * 1024  # a step's file that is larger is not shown at all
_SPARE_BYTES = 8 * 1024  # for what the step may write after us
_CUT = "\n\n**The rest is left out: GitHub shows 1 MiB a step.** The log and `--accel-report` have it all.\n"
_FENCE = re.compile(r"^ *(`{3,})", re.MULTILINE)


def append_step_summary(environ: Mapping[str, str], text: str) -> str:
    """Add to what the step has said already, as far as there is room; a warning where it was cut or cannot be."""
    name = environ.get(STEP_SUMMARY, "")
    if not name:
        return ""
    try:
        return _append(Path(name), text)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        why = getattr(error, "strerror", None) or error
        return f"{STEP_SUMMARY}={name}: the summary cannot be written: {why}. --accel-report writes it elsewhere."


def _append(path: Path, text: str) -> str:
    # Never created: the runner made it, and whoever reads a name that it did not make will not see what we write.
    # Non-blocking: a FIFO that nobody reads would wait for ever.
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "ab") as stream:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            return f"{STEP_SUMMARY}={path}: is not a regular file, and was left alone. --accel-report writes one."
        apart = b"\n\n" if facts.st_size else b""
        room_bytes = STEP_BYTES - _SPARE_BYTES - facts.st_size - len(apart)
        data = text.encode("utf-8", "backslashreplace")
        if len(data) <= room_bytes:
            stream.write(apart + data)
            return ""
        if room_bytes >= 2 * len(_CUT):
            stream.write(apart + _cut(data, room_bytes))
        return (
            f"{STEP_SUMMARY}: the summary has {len(data)} bytes, and of GitHub's {STEP_BYTES} a step "
            f"{max(0, room_bytes)} were left: the rest was left out. --accel-report writes all of it."
        )


def _cut(data: bytes, room_bytes: int) -> bytes:
    """Whole lines; what was open is closed, so that nothing after it is swallowed."""
    closing = len("\n```````\n\n</details>\n")
    kept = data[: room_bytes - len(_CUT) - closing].decode("utf-8", "ignore").rpartition("\n")[0]
    fences = _FENCE.findall(kept)
    ends = f"\n{fences[-1]}" if len(fences) % 2 else ""
    if kept.count("<details>") > kept.count("</details>"):
        ends += "\n\n</details>"
    return (kept + ends + _CUT).encode("utf-8")
