"""What a command shows while it waits for others: one live line on a terminal, a few lines in a log."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO


class Console:
    """Progress: one live line on a terminal; in a log, a line when something changed, and one a minute."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._live = stream.isatty()
        self._topic = ""
        self._shown = clock()

    def show(self, text: str, detail: str = "", *, topic: str | None = None) -> None:
        """`topic` is what counts as a change; the text itself where it is not given."""
        line = f"{text} | {detail}" if detail else text
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\x1b[K{line[:width]}")
        elif (topic or text) != self._topic or self._clock() - self._shown >= 60:
            self._write(f"{line}\n")
            self._shown = self._clock()
        self._topic = topic or text

    def say(self, line: str) -> None:
        self.clear()
        self._write(f"{line}\n")

    def clear(self) -> None:
        if self._live:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def last_line(log: Path) -> str:
    """Of what has been written so far; without what a terminal would obey."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines() if line.strip()]
    return "".join(filter(str.isprintable, lines[-1])) if lines else ""
