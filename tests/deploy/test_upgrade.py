"""`pytest-accel upgrade` with stand-ins for the rare ends, and with real processes of two settings of one environment."""

import io
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from pytest_accel.cli import main
from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.results import Ending, Result
from pytest_accel.stats.run import Run
from pytest_accel.storage.results import read_results, write_results
from tests.deploy.project import CLOCK
from tests.support.processes import inherited
from tests.support.results import NOW, THEN, make_result, make_session

LONG_S = 300.0  # of waiting for a process; only a broken test waits so long

SUITE = """
import os

from pytest_accel import cpu

SLOW_S = 0.0012 if os.environ.get("NEW_IS_SLOWER") else 0.001


@cpu
def test_step(accel, advance):
    accel.measure(lambda: advance(0.001), work=1, unit="calls")


@cpu
def test_step_slow(accel, advance):
    accel.measure(lambda: advance(SLOW_S), work=1, unit="calls")
"""
# An environment whose pytest has been: it leaves the results that it is told to, by the name of the turn or of the side.
STAND_IN = """
import json
import os
import pathlib
import shutil
import sys
import time

side, words = sys.argv[1], sys.argv[3:]  # the third is python3
swapped = words[0].partition("=")[2].split("/")[-2:][0] if words[0].startswith("PYTHONPATH=") else ""
if "pytest_accel.commands.overlay" in words:
    seen = {"old": "new", "new": "old"}[side] if swapped else side
    versions = json.loads(pathlib.Path("packages.json").read_text())[seen]
    facts = {"packages": versions, "variables": {"PYTHONPATH": "", "LD_PRELOAD": ""}, "problem": ""}
    pathlib.Path(words[words.index("pytest_accel.commands.overlay") + 1]).write_text(json.dumps(facts))
    sys.exit(0)
side = swapped or side
(path,) = (pathlib.Path(word.partition("=")[2]) for word in words if word.startswith("--accel-json="))
lists = [pathlib.Path(word.partition("=")[2]) for word in words if word.startswith("--accel-exclude=")]
left_out = json.loads(lists[0].read_text()) if lists else []
with open("called", "a") as stream:
    stream.write(json.dumps([path.stem, words, left_out]) + "\\n")
print(f"the last words of {path.stem}")
sys.stdout.flush()
how = pathlib.Path(f"how-{swapped or path.stem}")
if how.exists():
    text = how.read_text()
    if text == "hang":
        while True:
            time.sleep(0.05)
    sys.exit(int(text))
made = pathlib.Path(f"made-{path.stem}.json")
shutil.copy(made if made.exists() else f"made-{side}.json", path)
"""


def measured(step_s: float, side: str, name: str = "test_a", **more: object) -> Result:
    environment = THEN if side == "old" else NOW
    run = Run(session="s", rounds_s=(step_s,) * 6, steps_per_round=10, environment=environment.key)
    made = make_result(Outcome.NO_BASELINE, name=name)
    return replace(made, runs=(run,), environment=environment.key, verdicts=(), changes=(), **more)


@dataclass(slots=True)
class Site:
    """A folder in which somebody compares two environments, with stand-ins for both."""

    root: Path
    environ: dict[str, str]

    def command(self, *words: str, old: str = "", new: str = "") -> list[str]:
        """Return the command's arguments; stand-ins where nothing else is named."""
        stand_in = [shlex.join([sys.executable, "stand_in.py", side]) for side in ("old", "new")]
        return ["upgrade", old or stand_in[0], new or stand_in[1], "--keep", "kept", *words]

    def upgrade(self, *words: str, old: str = "", new: str = "") -> subprocess.CompletedProcess[str]:
        """Run the command in this process."""
        arguments = self.command(*words, old=old, new=new)
        out, err = io.StringIO(), io.StringIO()
        with (
            redirect_stdout(out),
            redirect_stderr(err),
            chdir(self.root),
            mock.patch.dict(os.environ, self.environ, clear=True),
        ):
            try:
                status = main(arguments)
            except SystemExit as refused:  # by argparse
                status = refused.code
        return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())

    def left(self, name: str, results: Iterable[Result]) -> None:
        """Write what a stand-in is to leave."""
        write_results(self.root / f"made-{name}.json", make_session(results))

    def calls(self) -> list[tuple[Any, ...]]:
        """Return the calls of stand-ins in order, as each noted its own."""
        path = self.root / "called"
        return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []

    def turns(self) -> list[str]:
        return [stem for stem, _, _ in self.calls()]


@pytest.fixture
def site(tmp_path) -> Site:
    root = tmp_path / "site"
    root.mkdir()
    files = {"pytest.ini": "[pytest]\n", "conftest.py": CLOCK, "test_tiny.py": SUITE, "stand_in.py": STAND_IN}
    for name, text in files.items():
        (root / name).write_text(text)
    environ = {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # other plugins of this environment cost a second in every process
        "PYTEST_ADDOPTS": "-p tests.support.quick_sessions -p benchmark -p accel -p no:cacheprovider",
    }
    made = Site(root, inherited("PYTEST_", "GITHUB_", "CI_", "SLURM_") | environ)
    made.left("old", [measured(0.04, "old")])
    made.left("new", [measured(0.04, "new")])
    return made


def virtual_environment(folder: Path) -> Path:
    """Make a real one that finds what this one has, and return its own folder of packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return packages


def install(packages: Path, name: str, version: str, text: str) -> None:
    """Install a package of one module."""
    information = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": text,
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    }
    files[f"{information}/RECORD"] = "".join(f"{file},,\n" for file in files)
    for file, content in files.items():
        (packages / file).parent.mkdir(exist_ok=True)
        (packages / file).write_text(content)


FIRST = ["01-1-old", "01-2-new", "01-3-new", "01-4-old"]
SECOND = ["02-1-new", "02-2-old", "02-3-old", "02-4-new"]


# --- real processes -------------------------------------------------------------------------------


@pytest.mark.rehearsal
def test_slower_environment_fails_after_two_blocks_and_an_equal_benchmark_is_ok_after_one(site, tmp_path):
    """OLD is a real virtual environment; NEW is this one with a variable that makes one benchmark slower."""
    virtual_environment(tmp_path / "old")
    done = site.upgrade(
        *("--", "test_tiny.py", "--accel-budget=20ms", "-oaccel_warmup=20ms"),
        old=str(tmp_path / "old"),
        new=f"env NEW_IS_SLOWER=1 {shlex.quote(sys.executable)}",
    )
    assert done.returncode == 1, done.stderr
    assert "REGRESSED  test_step_slow: 16.7 % slower (at least " in done.stdout
    assert "tolerance 5.0 %), 4 pairs, run-to-run noise " in done.stdout
    assert "ok  test_step: 0.0 % slower (at most " in done.stdout
    assert "new: env NEW_IS_SLOWER=1 " in done.stdout
    assert "differs: nothing in the recorded environment" in done.stdout
    assert "1 of 2 benchmarks failed. 8 processes, " in done.stdout
    found = read_results(site.root / "kept" / "upgrade.json")
    assert found.exit_status == 1
    pairs = {each.benchmark: each.verdict.runs for each in found.results}
    assert pairs == {"test_tiny.py::test_step": 2, "test_tiny.py::test_step_slow": 4}
    for stem in SECOND:  # and `test_step_slow`, whose name begins as the other's, was
        session = read_results(site.root / "kept" / f"{stem}.json")
        assert [each.benchmark for each in session.results] == ["test_tiny.py::test_step_slow"]
    assert not (site.root / "kept" / "baselines").exists()
    assert not (site.root / ".accel").exists()  # the site's own history has none of it


PACKAGES_SUITE = """
import augment
import collate
import decode

from pytest_accel import cpu


@cpu
def test_loader(accel):
    accel.measure(lambda: (augment.step(), collate.step(), decode.step()), work=1, unit="batches")


@cpu
def test_augment(accel):
    accel.measure(augment.step, work=1, unit="batches")
"""
MODULE = "import time\n\nVERSION = {version}\n\ndef step():\n    time.sleep({step_s})\n"


@pytest.mark.rehearsal
def test_slow_package_is_convicted_and_the_others_that_differ_are_not(site, tmp_path):
    """Three packages differ between two virtual environments; the new `collate` cannot be imported beside the old `augment`."""
    for side, version, decode_s in (("old", 1, 0.002), ("new", 2, 0.008)):
        packages = virtual_environment(tmp_path / side)
        needs = f"\nimport augment\nif augment.VERSION < {version}:\n    raise ImportError('augment is too old')\n"
        for name, step_s in (("augment", 0.002), ("collate", 0.002), ("decode", decode_s)):
            text = MODULE.format(version=version, step_s=step_s) + (needs if name == "collate" else "")
            install(packages, name, f"{version}.0", text)
    (site.root / "conftest.py").unlink()  # a real clock
    (site.root / "test_tiny.py").write_text(PACKAGES_SUITE)
    own = ("--accel-budget=100ms", "-oaccel_warmup=20ms", "--accel-tolerance=20%", "--accel-in-process")
    done = site.upgrade(
        *("--isolate", "--", "test_tiny.py", *own), old=str(tmp_path / "old"), new=str(tmp_path / "new")
    )
    assert done.returncode == 1, done.stderr
    found = {each.name: each for each in read_results(site.root / "kept" / "upgrade.json").results}
    (cause,) = found["test_loader"].causes
    assert cause.text == "decode 1.0 -> 2.0 alone"
    assert 0.5 < cause.explained / -math.log1p(-found["test_loader"].verdict.slowdown.point) < 1.5
    assert f"cause: test_loader: {cause.text}: explains " in done.stdout
    assert found["test_augment"].notes == []  # it lost nothing
    quick, picky, slow = found["test_loader"].notes
    assert quick.startswith("augment 1.0 -> 2.0 alone costs ")
    assert "OLD with NEW's not possible: ImportError: augment is too old; NEW with OLD's recovers " in picky
    assert slow.startswith(cause.text)
    assert " not possible" not in slow  # both ways
    assert "isolating 3 of 3, decode 1.0 -> 2.0\n" in done.stderr
    assert not [*(site.root / "kept").glob("isolate/*/packages")]


# --- the course -----------------------------------------------------------------------------------


def test_unchanged_environment_is_accepted_after_one_block(site):
    summary = site.root / "summary.md"
    summary.touch()
    site.environ["GITHUB_STEP_SUMMARY"] = str(summary)
    done = site.upgrade("--", "bench_suites", "-m", "gh200")
    assert done.returncode == 0, done.stderr
    assert site.turns() == FIRST
    assert "1 benchmark: 1 ok. 4 processes, " in done.stdout
    assert "torch 2.10.0 -> 2.11.0" in done.stdout
    assert "after block 1: 1 ok" in done.stderr
    for _, words, _ in site.calls():
        assert words[:2] == ["-m", "pytest"]
        assert words[-3:] == ["bench_suites", "-m", "gh200"]
        assert f"--accel-baselines={site.root / 'kept' / 'baselines'}" in words  # never the site's own
    assert summary.read_text().lstrip() == (site.root / "kept" / "upgrade.md").read_text()


def test_decided_benchmark_is_left_out_of_the_next_block(site):
    site.left("old", [measured(0.04, "old"), measured(0.04, "old", "test_b")])
    site.left("new", [measured(0.04, "new"), measured(0.05, "new", "test_b")])
    done = site.upgrade("--", "x")
    assert done.returncode == 1
    assert site.turns() == [*FIRST, *SECOND]
    assert [left_out for _, _, left_out in site.calls()] == [[]] * 4 + [
        ["bench_suites/test_cnn.py::test_a"]
    ] * 4
    assert "after block 1: 1 ok, 1 open" in done.stderr


def test_open_question_says_what_would_decide_it_and_fails_only_on_request(site):
    for number, group in enumerate((FIRST, SECOND)):
        for place, stem in enumerate(group):
            side = stem.rpartition("-")[2]
            wobble = 1 + 0.12 * ((place + number) % 2)
            site.left(stem, [measured(0.04 * wobble * (1.035 if side == "new" else 1), side)])
    done = site.upgrade("--blocks", "2", "--", "x")
    assert done.returncode == 0
    assert "INCONCLUSIVE  test_a: " in done.stdout
    assert " resolves " in done.stdout
    assert site.turns() == [*FIRST, *SECOND]
    (site.root / "kept").rename(site.root / "earlier")
    assert site.upgrade("--blocks", "2", "--", "x", "--accel-inconclusive=fail").returncode == 1


def test_benchmark_that_the_new_environment_does_not_run_is_lost(site):
    site.left("new", [make_result(Ending.FAILED, name="test_a"), measured(0.04, "new", "test_b")])
    site.left("old", [measured(0.04, "old"), measured(0.04, "old", "test_b")])
    done = site.upgrade("--", "x")
    assert done.returncode == 1
    assert "FAILED  test_a: the old environment measures it, the new one does not: failed: " in done.stdout
    assert "ok  test_b: " in done.stdout


def test_process_that_breaks_off_ends_the_upgrade_after_a_report_of_complete_blocks(site):
    site.left("new", [measured(0.05, "new")])
    (site.root / "how-02-2-old").write_text("-11")
    done = site.upgrade("--", "x")
    assert done.returncode == 3
    assert "the last words of 02-2-old" in done.stderr
    assert "INCONCLUSIVE  test_a: 20.0 % slower" in done.stdout
    assert "it ended before this was decided" in done.stdout
    assert read_results(site.root / "kept" / "upgrade.json").exit_status == 3
    assert site.turns() == [*FIRST, *SECOND[:2]]


def test_interrupt_keeps_and_reports_complete_blocks(site):
    site.left("new", [measured(0.05, "new")])
    (site.root / "how-02-1-new").write_text("hang")
    command = [sys.executable, "-m", "pytest_accel", *site.command("--", "x")]
    with subprocess.Popen(
        command, cwd=site.root, env=site.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            until = time.monotonic() + LONG_S
            while "02-1-new" not in site.turns() and process.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=LONG_S)
        finally:
            process.kill()
    assert process.returncode == 2, err
    assert "interrupted.\nResults and logs are in kept" in err
    assert "INCONCLUSIVE  test_a: 20.0 % slower" in out
    assert "Traceback" not in err


@pytest.fixture
def slow_b(site) -> Site:
    """A site with three packages that differ; `b` has the loss. Folders of the isolation are named by it."""
    versions = {"a": "1.0", "b": "1.0", "c": "1.0"}
    of_new = {"a": "2.0", "b": "2.0", "d": "1.0"}
    (site.root / "packages.json").write_text(json.dumps({"old": versions, "new": of_new}))
    site.left("new", [measured(0.05, "new"), measured(0.04, "new", "test_b")])
    site.left("old", [measured(0.04, "old"), measured(0.04, "old", "test_b")])
    for name, into_old_s, into_new_s in (("a", 0.04, 0.05), ("b", 0.05, 0.04), ("c", 0.04, 0.05)):
        for number in (1, 2, 3):
            site.left(f"{number:02d}-{name}-into-old", [measured(into_old_s, "old")])
            site.left(f"{number:02d}-{name}-into-new", [measured(into_new_s, "new")])
    return site


def test_packages_are_swapped_in_turn_until_one_explains_the_loss(slow_b):
    done = slow_b.upgrade("--isolate", "--", "x")
    assert done.returncode == 1, done.stderr
    result = next(each for each in read_results(slow_b.root / "kept" / "upgrade.json").results if each.failed)
    assert [each.text for each in result.causes] == ["b 1.0 -> 2.0 alone"]
    assert "cause: test_a: b 1.0 -> 2.0 alone: explains 20.0 of 20.0 %\n" in done.stdout
    assert [each.partition(" (")[0] for each in result.notes] == [
        "a 1.0 -> 2.0 alone costs 0.0 %",
        "b 1.0 -> 2.0 alone costs 20.0 %",
    ]
    decided_at_once, confirmed = [*FIRST] * 2, [*FIRST, *SECOND] * 2
    assert slow_b.turns() == [*FIRST, *SECOND, *decided_at_once, *confirmed]
    assert {name for *_, left_out in slow_b.calls()[8:] for name in left_out} == {
        "bench_suites/test_cnn.py::test_b"
    }
    assert "2 of 4, block 1 of 5, 2/4 old with new's b" in done.stderr
    assert " 32 processes, " in done.stdout


def test_named_packages_are_all_swapped_and_what_is_not_possible_is_said(slow_b):
    (slow_b.root / "how-01-b-into-old").write_text("139")
    done = slow_b.upgrade("--isolate=B,c+a,d", "--", "x")
    assert done.returncode == 1, done.stderr
    result = next(each for each in read_results(slow_b.root / "kept" / "upgrade.json").results if each.failed)
    picky, several, added = result.notes
    assert result.causes[0].text.endswith(" alone, shown one way only")
    assert "OLD with NEW's not possible: pytest left with exit status 139 there (01-2-new.log)" in picky
    assert "NEW with OLD's recovers 20.0 %" in picky
    assert several.startswith("a 1.0 -> 2.0, c 1.0 gone alone costs 0.0 %")
    assert added.startswith("d 1.0 appeared: OLD with NEW's not possible: ")
    assert added.endswith(
        "NEW with OLD's not possible: the package is not there, and an overlay takes none away"
    )


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("e", "e does not differ. These packages do: a, b, c, d."),
        ("a,b+same", "same does not differ"),
    ],
)
def test_packages_that_do_not_differ_are_refused_before_anything_is_measured(slow_b, names, said):
    path = slow_b.root / "packages.json"
    path.write_text(
        json.dumps({side: {**each, "same": "1.0"} for side, each in json.loads(path.read_text()).items()})
    )
    refused = slow_b.upgrade(f"--isolate={names}", "--", "x")
    assert refused.returncode == 2
    assert said in refused.stderr
    assert slow_b.turns() == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--blocks", "1", "--", "x"), "--blocks: '1' is not a whole number from 2 to 20"),
        (("--", "x", "--accel-record"), "--accel-record after --: leave it out"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_measured(site, words, told):
    done = site.upgrade(*words)
    assert done.returncode == 2
    assert told in done.stderr
    assert site.turns() == []


@pytest.mark.parametrize(
    ("keep", "said"),
    [("bench", "it is not empty. Name a new folder."), ("stand_in.py/x", "cannot be written to")],
)
def test_folder_that_cannot_be_used_is_one_clear_error(site, keep, said):
    (site.root / "bench" / "old").mkdir(parents=True)
    refused = site.upgrade("--keep", keep, "--", "x")
    assert refused.returncode == 2
    assert said in refused.stderr


def test_environment_without_the_plugin_or_the_folder_is_one_error_with_the_remedy(site):
    (site.root / "empty.py").write_text("print('no module named pytest')")
    done = site.upgrade("--", "x", new=shlex.join([sys.executable, "empty.py"]))
    assert done.returncode == 1
    assert "no module named pytest\nIt needs pytest-accel" in done.stderr
    assert f"--volume {site.root}:{site.root}" in done.stderr


def test_two_versions_of_the_plugin_are_refused(site):
    newer = replace(make_session([measured(0.04, "new")]), version="99.0")
    write_results(site.root / "made-new.json", newer)
    refused = site.upgrade("--", "x")
    assert refused.returncode == 2
    assert "Install the same version in both" in refused.stderr
