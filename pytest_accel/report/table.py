"""The table after the run: one row a benchmark, aligned, plain text with colours where there are any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

GAP = "  "


class Writer(Protocol):
    """What is used of pytest's terminal reporter."""

    def write(self, content: str, **markup: bool) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    title: str
    right: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    text: str
    markup: dict[str, bool] = field(default_factory=dict)


def write_table(writer: Writer, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    """Write a header and the rows; columns without a value in any row are left out."""
    shown = [index for index in range(len(columns)) if any(row[index].text for row in rows)]
    widths = {i: max(len(columns[i].title), *(len(row[i].text) for row in rows)) for i in shown}
    header = [Cell(text=column.title, markup={"bold": True}) for column in columns]
    for row in [header, *rows]:
        for position, index in enumerate(shown):
            last = position == len(shown) - 1
            text = row[index].text
            padded = text.rjust(widths[index]) if columns[index].right else text.ljust(widths[index])
            writer.write((padded.rstrip() if last else padded + GAP), **row[index].markup)
        writer.write("\n")


class _Text:
    """A terminal without colours."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def write(self, content: str, **_markup: bool) -> None:
        self.parts.append(content)


def lines_of(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """The table as plain lines."""
    text = _Text()
    write_table(text, columns, rows)
    return [line.rstrip() for line in "".join(text.parts).splitlines()]
