"""Terminal output: lines of verdicts, the table after the run, the progress line."""

from types import SimpleNamespace

import pytest

from pytest_accel.report.terminal import (
    Cell,
    Progress,
    line_of,
    line_text,
    padded_rows,
    platform_brief,
    text_table,
)
from pytest_accel.stats.environment import Change
from pytest_accel.stats.gate import Estimate, Outcome, Verdict
from pytest_accel.stats.metric_gates import PlatformShift


def verdict(outcome: Outcome, point: float, low: float, high: float, **more) -> Verdict:
    known = {"tolerance": 0.05, "noise": 0.008, "resolution": 0.12, "runs": 2, "baseline_runs": 5}
    return Verdict(outcome=outcome, slowdown=Estimate(point=point, low=low, high=high), **(known | more))


LINES = [
    (
        verdict(Outcome.REGRESSED, 0.071, 0.046, 0.09),
        (
            "REGRESSED  test_gpt (h200): 7.1 % slower (at least 4.6 %; tolerance 5.0 %), 2 runs vs 5 baseline runs, "
            "run-to-run noise 0.8 %"
        ),
    ),
    (
        verdict(Outcome.OK, 0.004, -0.02, 0.027, runs=1),
        "ok  test_gpt (h200): 0.4 % slower (at most 2.7 % slower; tolerance 5.0 %), 1 run",
    ),
    (
        verdict(Outcome.IMPROVED, -0.2, -0.25, -0.15),
        (
            "improved  test_gpt (h200): 20.0 % faster (at least 15.0 % faster; tolerance 5.0 %), 2 runs: refresh the "
            "baseline with --accel-update, or the loss of this gain will go unnoticed"
        ),
    ),
    (
        verdict(Outcome.INCONCLUSIVE, 0.042, 0.011, 0.073, runs=5, noise=0.029),
        (
            "INCONCLUSIVE  test_gpt (h200): 4.2 % slower (1.1 % slower to 7.3 % slower; tolerance 5.0 %), 5 runs; "
            "noise 2.9 % resolves 12.0 % here: quieten the machine (pytest-accel doctor), or tolerate 12 %"
        ),
    ),
    (
        verdict(Outcome.INCONCLUSIVE, 0.058, 0.024, 0.067, runs=5, resolution=0.036),
        (
            "INCONCLUSIVE  test_gpt (h200): 5.8 % slower (2.4 % slower to 6.7 % slower; tolerance 5.0 %), 5 runs; "
            "noise 0.8 % would resolve 3.6 %, but the runs do not agree: measure again, and look at what differs from process to process"
        ),
    ),
    (
        verdict(Outcome.INCONCLUSIVE, 0.01, -0.03, 0.06),
        (
            "INCONCLUSIVE  test_gpt (h200): 1.0 % slower (3.0 % faster to 6.0 % slower; tolerance 5.0 %), 2 runs; "
            "noise 0.8 % resolves 12.0 % here: record more baseline runs with --accel-record"
        ),
    ),
    (
        verdict(Outcome.REGRESSED, 0.031, 0.02, 0.04, of="accuracy", tolerance=0.01, runs=3),
        (
            "REGRESSED  test_gpt (h200) accuracy: 3.1 % lower (at least 2.0 %; tolerance 1.0 %), 3 runs vs 5 baseline "
            "runs, run-to-run noise 0.8 %"
        ),
    ),
    (
        verdict(Outcome.REGRESSED, 0.083, 0.061, 0.1, of="energy_per_step_j"),
        (
            "REGRESSED  test_gpt (h200) energy: 8.3 % more (at least 6.1 %; tolerance 5.0 %), 2 runs vs 5 baseline runs, "
            "run-to-run noise 0.8 %"
        ),
    ),
    (
        verdict(Outcome.INCONCLUSIVE, 0.01, -0.03, 0.06, of="accuracy", noise=0.029),
        (
            "INCONCLUSIVE  test_gpt (h200) accuracy: 1.0 % lower (3.0 % higher to 6.0 % lower; tolerance 5.0 %), "
            "2 runs; noise 2.9 % resolves 12.0 % here: measure it over more work, or tolerate 12 %"
        ),
    ),
]


@pytest.mark.parametrize(
    ("found", "line"), LINES, ids=lambda value: getattr(getattr(value, "outcome", ""), "name", "")
)
def test_line_of_a_verdict(found, line):
    assert line_text("test_gpt (h200)", line_of(found)) == line


def test_loss_of_a_platform_in_short_has_its_causes_else_what_changed():
    found = PlatformShift(c=0.1, at_least=0.08, slower=7, members=8, tolerance=0.05, regressed=True)
    changes = [Change(name="torch", old="2.11.0", new="2.12.0")]
    short = "9.5 % slower (at least 7.7 %), 7 of 8 benchmarks together"
    assert platform_brief(found, changes) == f"{short}; torch 2.11 -> 2.12"
    assert platform_brief(found, changes, ["the SM clock explains"]) == f"{short}; the SM clock explains"
    assert platform_brief(found, []) == short


@pytest.mark.parametrize(
    ("titles", "rows", "lines"),
    [
        (
            ["name", "rate>"],
            [["a", "1,000"], ["longer", "5"]],
            ["name     rate", "a       1,000", "longer      5"],
        ),
        (["name", "memory", "x"], [["a", "", "1"], ["b", "", ""]], ["name  x", "a     1", "b"]),
        (["first step>", "x"], [["1 s", "y"]], ["first step  x", "       1 s  y"]),
    ],
    ids=["numbers right, words left", "empty column left out", "wide title"],
)
def test_table_is_aligned(titles, rows, lines):
    assert text_table(titles, rows) == lines


WIDE = "test_训练_大语言模型_😀[批量大小=128]"  # 37 columns in 25 characters
COLUMNS = ["benchmark", "verdict", "throughput", "x"]


def shown_rows(name: str, width: int) -> list[str]:
    rows = [[Cell(text=each) for each in (name, "REGRESSED", "1,234", "y")] for name in (name, "test_short")]
    return ["".join(cell.text for cell in row) for row in padded_rows(COLUMNS, rows, width)[0]]


def test_wide_characters_take_two_columns():
    assert shown_rows(WIDE, 80) == [
        f"benchmark{' ' * 28}  verdict    throughput  x",
        f"{WIDE}  REGRESSED  1,234       y",
        f"test_short{' ' * 27}  REGRESSED  1,234       y",
    ]


def test_name_longer_than_the_terminal_leaves_room_for_figures():
    header, long, _ = shown_rows("test_" + "x" * 300, 80)
    assert header.split() == ["benchmark", "verdict", "throughput", "x"]
    assert len(long) == 80
    assert "…" in long


def test_columns_without_room_are_named_with_the_width_that_has_it():
    row = [Cell(text=each) for each in ("test_short", "REGRESSED", "1,234", "y")]
    assert padded_rows(COLUMNS, [row], 35)[1] == ["No room for: x (COLUMNS=36 shows", "    them)."]
    assert padded_rows(COLUMNS, [row], 36)[1] == []


def test_markup_belongs_to_its_cell():
    (header, row), _ = padded_rows(["verdict"], [[Cell(text="REGRESSED", markup={"red": True})]])
    assert header == [Cell(text="verdict", markup={"bold": True})]
    assert row == [Cell(text="REGRESSED", markup={"red": True})]


class Terminal:
    fullwidth = 80
    width_of_current_line = 20
    hasmarkup = True
    _current_line = ""

    def __init__(self) -> None:
        self.written: list[str] = []

    def write(self, msg: str, *, flush: bool = False) -> None:
        assert flush
        self.written.append(msg)

    @property
    def shown(self) -> str:
        """What the reader sees below pytest's own line; the cursor is where it was."""
        column = self.width_of_current_line - (80 if self.width_of_current_line > 80 else 0)
        last, end = self.written[-1], "\r\x1b[A" + (f"\x1b[{column}C" if column else "")
        assert last.startswith("\n\x1b[K")
        assert last.endswith(end)
        return last.removeprefix("\n\x1b[K").removesuffix(end)


@pytest.fixture
def terminal():
    return Terminal()


@pytest.fixture
def clock():
    return SimpleNamespace(now=100.0)


@pytest.fixture
def progress(terminal, clock):
    return Progress("test_gpt", terminal, clock=lambda: clock.now)


def test_phase_counts_down_or_up_and_is_erased_at_the_end(progress, terminal, clock):
    progress.phase("compiling", None)
    assert terminal.shown == " test_gpt: compiling"
    clock.now += 161
    progress.tick()
    assert terminal.shown == " test_gpt: compiling, 2:41"
    progress.phase("measuring", 5.0)
    assert terminal.shown == " test_gpt: measuring, 0:05 left"
    clock.now += 2
    progress.tick()
    assert terminal.shown == " test_gpt: measuring, 0:03 left"
    clock.now += 60
    progress.tick()
    assert terminal.shown == " test_gpt: measuring, 0:00 left"
    progress.close()
    assert terminal.shown == ""


def test_what_is_left_of_the_session_goes_first_where_room_is_short(terminal, clock):
    progress = Progress("test_gpt_with_a_long_name[800m]", terminal, clock=lambda: clock.now, left_s=3725)
    terminal.fullwidth = 80
    progress.phase("compiling", None)
    assert terminal.shown == " test_gpt_with_a_long_name[800m]: compiling; about 1:02:05 left of the session"
    terminal.fullwidth = 60
    progress.phase("compiling", None)
    assert terminal.shown == " test_gpt_with_a_long_name[800m]: compiling"
    terminal.fullwidth = 32
    progress.phase("compiling", None)
    assert terminal.shown == " test_gpt_wit…[800m]: compiling"
    terminal.fullwidth = 80
    clock.now += 3800
    progress.tick()
    assert terminal.shown == " test_gpt_with_a_long_name[800m]: compiling, 1:03:20"


def test_log_has_a_line_every_half_minute(clock):
    lines = []
    progress = Progress("test_gpt", None, clock=lambda: clock.now, log=lines.append)
    progress.phase("compiling", None)
    for _ in range(161):
        clock.now += 1
        progress.tick()
    assert lines == [f"test_gpt: compiling, {at}" for at in ("0:30", "1:00", "1:30", "2:00", "2:30")]


def test_log_has_its_lines_also_where_every_run_is_short(clock):
    lines, logged_s = [], None
    for run in range(7):
        progress = Progress(f"run {run}", None, clock=lambda: clock.now, log=lines.append, logged_s=logged_s)
        progress.phase("measuring", None)
        for _ in range(10):
            clock.now += 1
            progress.tick()
        logged_s = progress.logged_s
    assert lines == ["run 2: measuring, 0:10", "run 5: measuring, 0:10"]


def test_ticks_are_rare_however_often_they_come(progress, terminal, clock):
    progress.phase("measuring", 100.0)
    for _ in range(1000):
        clock.now += 0.01
        progress.tick()
    assert 10 / Progress.interval_s * 0.9 <= len(terminal.written) <= 10 / Progress.interval_s + 2


@pytest.mark.parametrize("taken", [0, 40, 79, 80, 95])
def test_line_never_wraps_and_is_erased(progress, terminal, taken):
    terminal.width_of_current_line = taken
    progress.phase("measuring a benchmark with a rather long description of what it does", 5.0)
    assert len(terminal.shown) < terminal.fullwidth
    progress.close()
    assert terminal.shown == ""


def test_without_a_terminal_nothing_happens():
    progress = Progress("x", None)
    progress.phase("measuring", None)
    progress.tick()
    progress.close()
