"""The container upgrade gate, rehearsed: stand-ins for the rare ends, and two real environments with two versions of torch."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from pytest_accel.stats.results import Ending
from pytest_accel.stats.verdict import Outcome
from tests.support.processes import left_in
from tests.support.results import make_result
from tests.support.sites import Site

ROOT = Path(__file__).parents[2]
SECOND_TORCH = Path(__file__).with_name("second_torch.sh")
LONG_S = 300.0  # of waiting for a process; only a broken test waits so long

# No test hopes for a timing: a step takes a millisecond of a clock of its own, and so does a delay on purpose.
CLOCK = """
import types

import pytest

import pytest_accel.measure.device
import pytest_accel.measure.rounds
import pytest_accel.measure.warmup


class Clock:
    now_s = 0.0

    def step(self):
        self.now_s += 0.001

    def read(self):
        return self.now_s

    def read_and_tick(self):
        self.now_s += 0.00001
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module, read in (("steps", clock.read), ("timer", clock.read), ("device", clock.read_and_tick)):
        ours = types.SimpleNamespace(perf_counter=read, process_time=read)
        monkeypatch.setattr(getattr(pytest_accel.measure, module), "time", ours)
    return clock
"""
SUITE = """
import os
import pathlib
import time

from pytest_accel import cpu


@cpu
def test_step(accel, clock):
    if pathlib.Path("hang").exists():
        pathlib.Path("hanging").touch()
        while True:
            time.sleep(0.05)
    accel.measure(clock.step, work=1, unit="calls")
"""
TORCH_SUITE = """
from pytest_accel import cpu


@cpu
def test_product(accel, clock):
    import torch

    x = torch.full((64, 64), 0.5)

    def step():
        clock.step()
        return x @ x

    assert float((x @ x)[0, 0]) == 16.0
    accel.measure(step, work=1, unit="products", configuration={"size": 64})
"""
# An environment whose pytest has been: it answers a probe as it is told, and leaves the results that it is told to.
STAND_IN = """
import json
import os
import pathlib
import shutil
import sys

side, words = sys.argv[1], sys.argv[3:]  # the third is python3
told = json.loads(pathlib.Path("told.json").read_text())
print("=== NVIDIA PyTorch ===")
if words[0] == "-c":
    facts = {
        "python": "3.12.3", "executable": f"/{side}/python3", "folder": os.getcwd(), "pytest": "9.0.0",
        "torch": "2.9.1" if side == "old" else "2.10.0", "pytest_accel": "0.1.0", "seen": "True",
    }
    print(words[2] + json.dumps(facts | told.get(f"{side} facts", {})))
    sys.exit(0)
(path,) = (pathlib.Path(word.partition("=")[2]) for word in words if word.startswith("--accel-json="))
phase = path.stem
with open("called", "a") as stream:
    stream.write(json.dumps([phase, side, words]) + "\\n")
made = pathlib.Path(f"made-{phase}.json")
if made.exists():
    shutil.copy(made, path)
print(f"the last words of {phase}")
sys.exit(told.get(f"{phase} status", 0))
"""


class UpgradeSite(Site):
    def command(self, *words: str, old: str, new: str) -> list[str]:
        return [sys.executable, "-m", "pytest_accel.cli", "upgrade", "--old", old, "--new", new, *words]

    def upgrade(self, *words: str, old: str = "", new: str = "") -> subprocess.CompletedProcess[str]:
        """The command, in this process; stand-ins where nothing else is named."""
        sides = {"old": old or self.stand_in("old"), "new": new or self.stand_in("new")}
        _, _, _, *arguments = self.command(*words, **sides)
        return self.run(arguments)

    def told(self, **facts: object) -> None:
        """What the stand-ins say: `old facts`, `new status`, ..., with _ for the space."""
        plain = {name.replace("_", " ", 1): value for name, value in facts.items()}
        (self.root / "told.json").write_text(json.dumps(plain))

    def phases(self) -> list[str]:
        """Those that were run, in order."""
        return [phase for phase, _, _ in self.calls()]


@pytest.fixture
def site(tmp_path) -> UpgradeSite:
    files = {"conftest.py": CLOCK, "test_tiny.py": SUITE, "stand_in.py": STAND_IN}
    made = UpgradeSite.at(tmp_path / "site", files)
    made.told()
    made.left("old", [make_result(Ending.RECORDED)])
    made.left("new", [make_result(Outcome.OK)])
    made.left("old-again", [make_result(Outcome.OK)])
    return made


# --- what it says --------------------------------------------------------------------------------------


def test_an_upgrade_that_costs_nothing_is_accepted_and_everything_is_kept(site):
    done = site.upgrade("--keep", "kept", "--", "bench_suites", "-m", "gh200")
    assert done.returncode == 0, done.stderr
    assert "ACCEPT: nothing is slower than is tolerated (1 ok; tolerance 5.0 %)." in done.stdout
    assert site.phases() == ["old", "new", "old-again"]
    calls = site.calls()
    assert [side for _, side, _ in calls] == ["old", "new", "old"]
    kept = site.root / "kept"
    for phase, _, words in calls:
        assert words[:2] == ["-m", "pytest"]
        assert ("--accel-record=5" in words) == (phase == "old")
        assert f"--accel-baselines={kept / 'baselines'}" in words  # never the site's own
        assert f"--accel-history={kept / 'history.sqlite'}" in words
        assert words[-3:] == ["bench_suites", "-m", "gh200"]
        assert "NVIDIA PyTorch" in (kept / f"{phase}.log").read_text()
    assert (site.kept("kept/upgrade.json")["decision"], site.kept("kept/upgrade.json")["exit_status"]) == (
        "accept",
        0,
    )
    assert (kept / "upgrade.md").read_text().startswith("# Upgrade: ACCEPT")


def test_a_regression_is_exit_status_1_with_both_ways_out(site):
    site.left("new", [make_result(Outcome.REGRESSED)])
    done = site.upgrade("--keep", "kept", "--", "bench_suites")
    assert done.returncode == 1
    assert "REGRESSED  test_cnn[resnet50-bf16-256]: " in done.stdout
    assert "REJECT: the new environment is worse (1 REGRESSED; tolerance 5.0 %)." in done.stdout
    (accept,) = [line for line in done.stdout.splitlines() if "accept all the same" in line]
    assert f"stand_in.py new python3 -m pytest '{make_result().benchmark}' -m gh200 --accel-update" in accept


def test_a_machine_that_drifted_is_not_an_upgrade(site):
    site.left("new", [make_result(Outcome.REGRESSED)])
    site.left("old-again", [make_result(Outcome.REGRESSED)])
    done = site.upgrade("--", "bench_suites")
    assert done.returncode == 1
    assert (
        "DRIFTED  test_cnn[resnet50-bf16-256]: the old environment, measured again, has another speed"
        in done.stdout
    )
    assert "REPEAT: the comparison is not to be believed (1 DRIFTED)." in done.stdout
    assert "--accel-update" not in done.stdout  # no baseline is moved on such a day


def test_without_the_bracket_two_phases_are_run_and_that_is_said(site):
    done = site.upgrade("--no-bracket", "--runs", "3", "--", "bench_suites")
    assert done.returncode == 0
    assert site.phases() == ["old", "new"]
    assert "the old environment was not measured again" in done.stdout
    assert "--accel-record=3" in (site.root / "called").read_text()


def test_a_new_folder_is_made_where_none_is_named_and_git_leaves_it_alone(site):
    assert site.upgrade("--", "bench_suites").returncode == 0
    (made,) = [each for each in (site.root / "accel-upgrade").iterdir() if each.is_dir()]
    assert (made / "upgrade.json").exists()
    assert (made.parent / ".gitignore").read_text() == "*\n"


def test_a_step_of_github_gets_one_summary_and_the_phases_none(site):
    summary = site.root / "summary.md"
    summary.touch()
    site.environ["GITHUB_STEP_SUMMARY"] = str(summary)
    (site.root / "stand_in.py").write_text(
        "import os\nassert 'GITHUB_STEP_SUMMARY' not in os.environ\n" + STAND_IN
    )
    assert site.upgrade("--keep", "kept", "--", "bench_suites").returncode == 0
    assert summary.read_text() == (site.root / "kept" / "upgrade.md").read_text()


def test_output_of_the_phases_is_shown_when_it_is_asked_for(site):
    assert "the last words of new" in site.upgrade("-v", "--", "bench_suites").stdout
    assert "the last words of new" not in site.upgrade("--", "bench_suites").stdout


# --- what is refused before anything is measured -------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            {"new_facts": {"pytest_accel": ""}},
            "pytest-accel is not installed for /new/python3 (Python 3.12.3)",
        ),
        (
            {"old_facts": {"pytest_accel": "0.0.9"}},
            "has pytest-accel 0.0.9, the new one 0.1.0. Install the same",
        ),
        ({"old_facts": {"folder": "/workspace"}}, "starts in /workspace, and not in"),
        ({"new_facts": {"seen": "False"}}, "cannot be seen, or not be written to, from there. Mount it"),
    ],
    ids=["no plugin", "two versions", "another folder", "no mount"],
)
def test_an_environment_that_cannot_do_it_is_one_clear_error(site, facts, said):
    site.told(**facts)
    done = site.upgrade("--", "bench_suites")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert site.phases() == []


@pytest.mark.parametrize(
    ("old", "said"),
    [
        ("no-such-program exec old.sif", "there is no program 'no-such-program' here"),
        ("env PATH=$OLD 'half", "has no closing quotation. Write it as a shell would."),
        (" ", "--old is empty"),
        ("false", "no Python answered there: the command left with exit status 1"),
        (f"{sys.executable} -m no_such_module", "No module named no_such_module"),
    ],
)
def test_a_command_that_leads_nowhere_is_one_clear_error(site, old, said):
    done = site.upgrade("--", "bench_suites", old=old)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--accel-baselines=mine", "is for this command to say"),
        ("--accel-record", "is for this command to say"),
        ("--junitxml=out.xml", "over the last"),
        ("--accel-slowdown=10%", "would slow both"),
    ],
)
def test_options_that_are_its_own_or_of_no_use_are_refused(site, word, said):
    done = site.upgrade("--", "bench_suites", word)
    assert (done.returncode, site.phases()) == (2, [])
    assert said in done.stderr


# --- going on ------------------------------------------------------------------------------------------


def test_a_phase_that_breaks_leaves_the_rest_whole_and_goes_on_when_it_is_mended(site):
    (site.root / "made-new.json").rename(site.root / "later")
    site.told(new_status=139)
    done = site.upgrade("--keep", "kept", "--", "bench_suites")
    assert done.returncode == 3
    assert "pytest left with exit status 139 there" in done.stderr
    assert "the last words of new" in done.stderr
    assert "--keep kept -- bench_suites" in done.stderr
    (site.root / "later").rename(site.root / "made-new.json")
    site.told()
    done = site.upgrade("--keep", "kept", "--", "bench_suites")
    assert done.returncode == 0
    assert site.phases() == ["old", "new", "new", "old-again"]  # the old one was complete
    assert "1/3 old: recording 5 runs of each: complete already" in done.stderr


@pytest.mark.parametrize("status", [4, 5], ids=["wrong use", "nothing selected"])
def test_pytest_s_own_status_is_handed_on(site, status):
    (site.root / "made-old.json").unlink()
    site.told(old_status=status)
    done = site.upgrade("--", "bench_suites", "-k", "nothing")
    assert (done.returncode, site.phases()) == (status, ["old"])


def test_an_old_environment_that_recorded_nothing_ends_it(site):
    site.left("old", [make_result(Ending.SKIPPED)])
    done = site.upgrade("--", "bench_suites")
    assert (done.returncode, site.phases()) == (1, ["old"])
    assert "nothing was recorded there" in done.stderr


def test_results_of_an_interrupted_session_are_measured_again_and_its_baselines_set_aside(site):
    site.left("old", [make_result(Ending.RECORDED)], exit_status=2)
    site.told(old_status=2)
    assert site.upgrade("--keep", "kept", "--", "bench_suites").returncode == 2
    site.told()
    (site.root / "kept" / "baselines").mkdir()
    site.left("old", [make_result(Ending.RECORDED)])
    done = site.upgrade("--keep", "kept", "--", "bench_suites")
    assert done.returncode == 0, done.stderr
    assert "what an unfinished recording left is now" in done.stderr
    assert len(list((site.root / "kept").glob("unfinished-*"))) == 1


def test_one_recording_serves_another_candidate_as_long_as_none_was_judged(site):
    """The bracket belongs to its candidate, too: it is measured anew."""
    assert site.upgrade("--keep", "kept", "--", "bench_suites").returncode == 0
    other = f"env X=1 {site.stand_in('new')}"
    refused = site.upgrade("--keep", "kept", "--", "bench_suites", new=other)
    assert refused.returncode == 2
    assert "it holds an upgrade with --new" in refused.stderr
    (site.root / "kept" / "new.json").unlink()
    assert site.upgrade("--keep", "kept", "--", "bench_suites", new=other).returncode == 0
    assert site.phases() == ["old", "new", "old-again", "new", "old-again"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--runs", "3", "--", "bench_suites"),
            "it holds an upgrade with --runs '5', and this one has --runs '3'",
        ),
        (("--", "others"), "it holds an upgrade with -- bench_suites, and this one has -- others"),
    ],
)
def test_a_folder_of_another_upgrade_is_refused(site, words, said):
    assert site.upgrade("--keep", "kept", "--", "bench_suites").returncode == 0
    done = site.upgrade("--keep", "kept", *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_an_image_that_was_replaced_under_its_name_is_refused(site):
    assert site.upgrade("--keep", "kept", "--", "bench_suites").returncode == 0
    site.told(old_facts={"torch": "2.9.2"})
    done = site.upgrade("--keep", "kept", "--", "bench_suites")
    assert done.returncode == 2
    assert "is not what was measured in" in done.stderr
    assert "torch 2.9.1 -> 2.9.2" in done.stderr


def test_a_folder_of_something_else_is_not_touched(site):
    (site.root / "mine").mkdir()
    (site.root / "mine" / "thesis.tex").touch()
    done = site.upgrade("--keep", "mine", "--", "bench_suites")
    assert done.returncode == 2
    assert "it is not empty, and no upgrade began there" in done.stderr
    assert [each.name for each in (site.root / "mine").iterdir()] == ["thesis.tex"]


def test_the_old_one_may_be_recorded_today_and_the_new_one_judged_tomorrow(site):
    words = ("--keep", "kept", "--", "bench_suites")
    recorded = site.upgrade("--only-old", *words)
    assert recorded.returncode == 0
    assert site.phases() == ["old"]
    assert "recorded. Upgrade, and go on with:" in recorded.stderr
    assert "--only-old" not in recorded.stderr
    done = site.upgrade(*words)
    assert done.returncode == 0
    assert site.phases() == ["old", "new", "old-again"]


# --- real sessions of pytest ---------------------------------------------------------------------------


def test_interrupted_it_leaves_everything_whole_and_goes_on(site):
    """Ctrl-C while the new one is measured; with real sessions, which have the last word on what they leave."""
    kept = site.root / "kept"
    words = ("--keep", "kept", "--runs", "1", "--", "test_tiny.py")
    # Only the new one hangs: the recording must be complete by then.
    new = shlex.join(
        ["sh", "-c", 'case "$*" in *" -c "*) ;; *) [ -e mended ] || touch hang;; esac; exec "$@"', "sh"]
    )
    new += f" {sys.executable}"
    process = subprocess.Popen(
        site.command(*words, old=sys.executable, new=new),
        cwd=site.root,
        env=site.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + LONG_S
    while not (site.root / "hanging").exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=LONG_S)
    assert process.returncode == 2, output
    assert "interrupted. What is complete is kept in kept. Go on with:" in output
    assert left_in(site.root) == []
    assert (kept / "old.json").exists()
    assert "KeyboardInterrupt" in (kept / "new.log").read_text()  # pytest ended in good order

    (site.root / "hang").unlink()
    (site.root / "mended").touch()
    done = site.upgrade(*words, old=sys.executable, new=new)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "1/3 old: recording 1 run of each: complete already" in done.stderr
    assert [row["effect"] for row in site.kept("kept/upgrade.json")["benchmarks"]] == ["ok"]


def test_what_cannot_be_imported_in_the_new_one_is_lost_and_the_rest_is_judged(site):
    """The most usual fault of a new image; and a token that its command needs stays off the screen and out of files."""
    (site.root / "test_other.py").write_text(
        "import os\n\nfrom pytest_accel import cpu\n\nif 'BROKEN' in os.environ:\n    raise ImportError('libcudart.so.13')\n\n\n@cpu\n"
        "def test_other(accel, clock):\n    accel.measure(clock.step, work=1, unit='calls')\n"
    )
    token = "hf_" + "aB3dE6gH9jK2mN5pQ8sT" * 2
    new = f"env BROKEN=1 HF_TOKEN={token} {sys.executable}"
    done = site.upgrade("--keep", "kept", "--runs", "1", "--", ".", old=sys.executable, new=new)
    effects = {row["benchmark"]: row["effect"] for row in site.kept("kept/upgrade.json")["benchmarks"]}
    assert effects == {"test_tiny.py::test_step": "ok", "test_other.py::test_other": "lost"}
    assert "REJECT" in done.stdout
    assert done.returncode == 1
    written = [
        each.read_text(errors="replace") for each in (site.root / "kept").glob("*.*") if each.is_file()
    ]
    assert not [text for text in (done.stdout, done.stderr, *written) if token in text]


@pytest.fixture(scope="module")
def second_torch() -> Path:
    """A folder with another torch than ours; fetched once, and found again by later runs."""
    done = subprocess.run(
        ["bash", str(SECOND_TORCH), sys.executable],
        capture_output=True,
        text=True,
        timeout=LONG_S * 3,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no second torch: {' '.join(done.stderr.split()[-40:])}")
    return Path(done.stdout.strip())


@pytest.fixture
def two_environments(site, tmp_path, second_torch) -> tuple[str, str]:
    """Virtual environments that share everything but torch."""
    pythons = []
    for name, first in (("old", [second_torch]), ("new", [])):
        folder = tmp_path / name
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=LONG_S
        )
        (packages,) = (folder / "lib").glob("python*/site-packages")
        paths = [*first, sysconfig.get_path("purelib"), ROOT]
        (packages / "shared.pth").write_text("".join(f"{each}\n" for each in paths))
        pythons.append(str(folder / "bin" / "python"))
    del site.environ["PYTHONPATH"]
    (site.root / "test_tiny.py").write_text(TORCH_SUITE)
    old, new = pythons
    return old, new


@pytest.mark.rehearsal
def test_two_real_environments_with_two_versions_of_torch(site, two_environments):
    """As fast: accepted, and the difference is named. Then the new one with an injected slowdown: rejected."""
    old, new = two_environments
    words = ("--keep", "kept", "--runs", "2", "--", "test_tiny.py")
    done = site.upgrade(*words, old=old, new=new)
    assert done.returncode == 0, done.stderr + done.stdout
    differs = {
        change["name"]: (change["old"], change["new"]) for change in site.kept("kept/upgrade.json")["changes"]
    }
    assert differs["torch"] == ("2.9.1", _own_torch())
    assert f"torch 2.9.1 -> {_own_torch()}" in done.stdout
    assert [row["effect"] for row in site.kept("kept/upgrade.json")["benchmarks"]] == ["ok"]
    assert not (site.root / "baselines").exists()  # the site's own are not touched
    assert not (site.root / ".accel").exists()

    for phase in ("new", "old-again"):
        (site.root / "kept" / f"{phase}.json").unlink()
    drill = f"{site.environ['PYTEST_ADDOPTS']} --accel-slowdown=20%"
    slow = shlex.join(["env", f"PYTEST_ADDOPTS={drill}", new])
    done = site.upgrade("--no-bracket", *words, old=old, new=slow)
    assert done.returncode == 1, done.stderr + done.stdout
    (row,) = site.kept("kept/upgrade.json")["benchmarks"]
    assert (row["effect"], site.kept("kept/upgrade.json")["decision"]) == ("regressed", "reject")
    assert row["verdicts"][0]["slowdown"]["point"] == pytest.approx(0.2, abs=0.02)
    assert "new: 2 runs delayed on purpose by --accel-slowdown" in done.stdout
    assert f"torch 2.9.1 -> {_own_torch()}" in done.stdout


def _own_torch() -> str:
    from importlib import metadata

    return metadata.version("torch")
