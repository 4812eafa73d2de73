"""The table: aligned, without empty columns, markup per cell."""

from __future__ import annotations

from pytest_accel.report.table import Cell, Column, write_table


class Paper:
    def __init__(self) -> None:
        self.text = ""
        self.markup: list[tuple[str, dict[str, bool]]] = []

    def write(self, content: str, **markup: bool) -> None:
        self.text += content
        self.markup.append((content, markup))


def table(columns, rows) -> tuple[list[str], Paper]:
    paper = Paper()
    write_table(paper, columns, [[Cell(text=text) for text in row] for row in rows])
    return paper.text.splitlines(), paper


def test_numbers_are_aligned_right_and_words_left():
    lines, _ = table(
        [Column(title="name"), Column(title="rate", right=True)], [["a", "1,000"], ["longer", "5"]]
    )
    assert lines == ["name     rate", "a       1,000", "longer      5"]


def test_columns_without_a_value_are_left_out():
    lines, _ = table(
        [Column(title="name"), Column(title="memory"), Column(title="x")], [["a", "", "1"], ["b", "", ""]]
    )
    assert lines[0].split() == ["name", "x"]


def test_last_column_is_not_padded():
    lines, _ = table([Column(title="name"), Column(title="verdict")], [["a", "ok"]])
    assert lines == ["name  verdict", "a     ok"]


def test_titles_may_be_wider_than_values():
    lines, _ = table([Column(title="first step", right=True), Column(title="x")], [["1 s", "y"]])
    assert lines == ["first step  x", "       1 s  y"]


def test_markup_belongs_to_its_cell():
    paper = Paper()
    write_table(paper, [Column(title="verdict")], [[Cell(text="REGRESSED", markup={"red": True})]])
    assert ("REGRESSED", {"red": True}) in paper.markup
    assert ("verdict", {"bold": True}) in paper.markup


def test_single_row_and_single_column():
    lines, _ = table([Column(title="a")], [["b"]])
    assert lines == ["a", "b"]
