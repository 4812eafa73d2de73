"""Nights in a row, by the shell that stands in the deployments: the CPU is the platform, and a file the step's time."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy.project import CI, LONG_S, Left, Project, sessions
from tests.deploy.steps import containers, load, run_github, run_gitlab, scripts
from tests.slurm.cluster import cluster, missing
from tests.support.processes import finished

needs_jq = pytest.mark.skipif(
    shutil.which("jq") is None, reason="jq is not installed: tests/deploy/install.sh"
)
ALWAYS = {"results.json", "junit.xml", "summary.md", "changes.txt", "doctor.txt", "status"}
ARTIFACTS = {*ALWAYS, "report.html", "history.sqlite", "baselines"}


def saying(done: subprocess.CompletedProcess[str]) -> str:
    return f"{done.args}\n{done.stdout}\n{done.stderr}"


# --- GitHub and GitLab ------------------------------------------------------------------------------


FAKE_GH = """#!/usr/bin/env bash
# GitHub cannot be had here: its issues are a file, and `gh` is these lines.
set -eu
echo "$1 $2 $3" >>calls
case "$1 $2" in
"issue list") jq -r "${@: -1}" issues.json ;;
"issue create") jq -n --arg title "$4" '[{number: 7, title: $title}]' >issues.json && cp "$6" body ;;
"issue edit") cp "$5" body ;;
*) exit 9 ;;
esac
"""
FAKE_CURL = """#!/usr/bin/env bash
# GitLab cannot be had here either.
set -eu
grep -q "PRIVATE-TOKEN: secret" || exit 22
case "$*" in
*--get*) echo list >>calls && cat issues.json ;;
*"--request PUT"*description@nights/cpu/proposal.md*/issues/3) echo edit >>calls ;;
*"title=Benchmarks on cpu: "*description@nights/cpu/proposal.md*) echo create >>calls &&
    echo '[{"iid": 3, "title": "Benchmarks on cpu: a baseline to decide on"}]' >issues.json ;;
*) exit 9 ;;
esac
"""


def forge(folder: Path, project: Project, name: str, program: str) -> dict[str, str]:
    """A folder with no issues yet, and the program that asks for them first in the path."""
    folder.mkdir()
    (folder / name).write_text(program)
    (folder / name).chmod(0o755)
    (folder / "issues.json").write_text("[]")
    return {"PATH": f"{folder}:{project.environment['PATH']}"}


@pytest.mark.rehearsal
@needs_jq
def test_three_nights_on_github(project, tmp_path):
    folder, summary = tmp_path / "github", tmp_path / "summary"
    path = forge(folder, project, "gh", FAKE_GH)
    context = {
        "matrix.platform": "cpu",
        "github.workspace": str(project.root),
        "github.repository": "site/nights",
        "github.server_url": "https://github.example",
        "github.run_id": "42",
        "github.token": "t",
        "vars.ACCEL_PYTHON": project.environment["ACCEL_PYTHON"],
        "vars.ACCEL_SUITES": "test_tiny.py",
    }
    kept = project.root / ".accel-state" / "history.sqlite"  # what the cache brings back

    def night(**variables: str) -> tuple[list[int], Left]:
        """Status of each step, and what was uploaded."""
        summary.write_text("")
        done = run_github("night", project, context, GITHUB_STEP_SUMMARY=str(summary), **variables)
        assert done[1].stdout.rstrip().endswith(str(project.root / "night")), saying(done[1])
        return [each.returncode for each in done], Left(project.root / "night")

    def decide() -> list[str]:
        """What it asked of `gh`."""
        shutil.rmtree(folder / "nights", ignore_errors=True)
        shutil.copytree(project.root / "night", folder / "nights" / "night-cpu")
        (folder / "calls").write_text("")
        (done,) = run_github("decide", project, context, cwd=folder, **path)
        assert done.returncode == 0, saying(done)
        return [call.partition(" --")[0] for call in (folder / "calls").read_text().splitlines()]

    steps, first = night()
    assert steps == [0, 0, 0]
    assert first.result["status"] == "recorded"
    assert first.files == {*ARTIFACTS, "proposal.md"}
    assert first.text("proposal.md").startswith("# cpu: 1 recorded\n")
    assert sessions(kept) == sessions(first.folder / "history.sqlite") == 1
    assert decide() == ["issue list", "issue create"]

    project.become_unfit()  # which a night that judges only tells
    steps, second = night()
    assert steps == [0, 0, 0]
    verdict = second.result["verdicts"][0]
    assert (second.result["status"], verdict["baseline_runs"]) == ("ok", 2)
    assert second.files == ARTIFACTS
    assert "PROBLEM" in second.text("doctor.txt")
    assert decide() == []

    project.step_takes(0.002)
    steps, third = night(NCCL_ALGO="Ring")  # stands for an upgrade: something that is recorded
    assert steps == [0, 1, 0]
    assert third.result["status"] == "regressed"
    assert third.files == {*ARTIFACTS, "proposal.md"}
    assert third.text("status") == "1\n"
    assert sessions(kept) == 3
    assert "<failure" in third.text("junit.xml")
    assert third.text("proposal.md").startswith("# cpu: 1 regressed\n")
    assert "| NCCL_ALGO | absent | `Ring` |" in summary.read_text()
    assert decide() == ["issue list", "issue edit 7"]
    assert "https://github.example/site/nights/actions/runs/42" in (folder / "body").read_text()


@pytest.mark.rehearsal
@needs_jq
def test_a_gain_on_gitlab_is_recorded_by_the_command_of_its_issue(project, tmp_path):
    folder = tmp_path / "gitlab"
    path = forge(folder, project, "curl", FAKE_CURL)
    left = Left(project.root / "nights" / "cpu")
    for step_s, status in ((0.001, "recorded"), (0.0005, "improved")):
        project.step_takes(step_s)
        done = run_gitlab("night", project, CI_PROJECT_DIR=str(project.root), ACCEL_DOCTOR="off")
        assert done.returncode == 0, saying(done)
        assert left.result["status"] == status
    assert left.files == {*ARTIFACTS, "proposal.md"} - {"doctor.txt"}
    shutil.copytree(project.root / "nights", folder / "nights")

    said = {
        "CI_API_V4_URL": "https://x/api/v4",
        "CI_PROJECT_ID": "5",
        "CI_PIPELINE_URL": "https://x/p/1",
        **path,
    }
    assert "1 improved" in run_gitlab("decide", project, cwd=folder, **said).stdout
    assert not (folder / "calls").exists()  # without a token the text is in the log
    for _ in range(2):
        done = run_gitlab("decide", project, cwd=folder, ACCEL_ISSUE_TOKEN="secret", **said)
        assert done.returncode == 0, saying(done)
    assert (folder / "calls").read_text().split() == ["list", "create", "list", "edit"]
    assert run_gitlab("decide", project, cwd=folder, ACCEL_ISSUE_TOKEN="wrong", **said).returncode != 0

    block = re.search(r"```sh\n(.*?)```", left.text("proposal.md"), re.DOTALL)[1]
    program, *arguments = shlex.split(block.replace("\\\n", " "))
    assert program == "pytest"
    accepted = project.shell(sys.executable, "-m", "pytest", *arguments)
    assert accepted.returncode == 0, saying(accepted)
    (baseline,) = (project.root / ".accel-state" / "baselines").glob("cpu*/tiny.json")
    (entry,) = json.loads(baseline.read_text())["benchmarks"].values()
    assert entry["ledger"][-1]["action"] == "update"
    for run in entry["runs"]:
        assert run["rounds_s"][0] == pytest.approx(0.0005)  # of one step


# --- Kubernetes and Slurm ---------------------------------------------------------------------------


SWEEP = """

import pytest
from pytest_accel import gh200


@pytest.mark.sweep
@gh200
def test_sweep(accel, step):
    accel.measure(step, work=1, unit="calls")
"""


def add_sweep(project: Project) -> None:
    (project.root / "pytest.ini").write_text("[pytest]\nmarkers = sweep\n")
    suite = project.root / "test_tiny.py"
    suite.write_text(suite.read_text() + SWEEP)


def test_a_night_by_the_command_of_the_cronjob_records_all_but_sweeps(project, tmp_path):
    add_sweep(project)
    container = containers()["accel-gh200"]
    accel = tmp_path / "accel"
    shutil.copytree(project.root, accel, ignore=shutil.ignore_patterns("deploy"))
    places = {"/accel": str(accel), "/night": str(CI), "/tmp": str(tmp_path)}

    def placed(text: str) -> str:
        """A path of the container, where that volume is here."""
        return re.sub(r"(?<!\w)(/accel|/night|/tmp)(?=/|\s|$)", lambda found: places[found[1]], text)

    given = {each["name"]: placed(each["value"]) for each in container["env"]}
    here = ("ACCEL_PLATFORM", "ACCEL_SUITES", "ACCEL_PYTHON")
    variables = {**given, **{name: project.environment[name] for name in here}}
    done = project.shell(*map(placed, container["command"]), cwd=accel, **variables)
    assert done.returncode == 0, saying(done)
    (night,) = (accel / "state" / "nights").iterdir()
    assert Left(night).files == {*ALWAYS, "report.html", "proposal.md"}
    assert Left(night).result["status"] == "recorded"
    assert sessions(accel / "state" / "history.sqlite") == 1


@pytest.mark.rehearsal
def test_a_night_by_the_line_of_scrontab(project):
    if reason := missing():
        pytest.skip(reason)
    lines = (CI / "scrontab").read_text().splitlines()
    options = [line.removeprefix("#SCRON ") for line in lines if line.startswith("#SCRON ")]
    (entry,) = [line for line in lines if line and not line.startswith("#")]
    shell = " ".join(entry.split()[5:]).replace("$HOME/pytest-accel", str(project.root))
    shell = shell.replace("ACCEL_PLATFORM=gh200", "ACCEL_PLATFORM=cpu")
    with cluster(nodes=1) as slurm:
        environment = {**slurm.environment, **project.environment, "PATH": slurm.environment["PATH"]}
        environment["ACCEL_DOCTOR"] = "off"

        def submit(*arguments: str) -> subprocess.CompletedProcess[str]:
            return finished("sbatch", *arguments, cwd=project.root, env=environment)

        tried = submit("--test-only", "deploy/ci/night.sbatch")
        assert tried.returncode == 0, saying(tried)
        # As scrontab has it: the options, and the line as a script of sh. Not --wait: it looks every ten seconds.
        done = submit(*options, "--wrap", shell)
        slurm.await_that(lambda: not slurm.jobs(), "the end of the night")
    log = "".join(each.read_text() for each in project.root.glob("accel-night-*.log"))
    assert done.returncode == 0, saying(done) + log
    assert "this night records" in log
    (night,) = (project.root / ".accel" / "nights").iterdir()
    assert (Left(night).text("status"), Left(night).result["status"]) == ("0\n", "recorded")


# --- what else can happen ---------------------------------------------------------------------------


WAITS = """

@cpu
def test_then(accel, step):
    import pathlib, time

    if pathlib.Path("slow").exists():
        pathlib.Path("waits").touch()
        time.sleep(600)
    accel.measure(step, work=1, unit="calls")
"""


@contextmanager
def night_that_waits(project: Project, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """In its second benchmark, with the first one measured; another night may be tried beside it."""
    suite = project.root / "test_tiny.py"
    suite.write_text(suite.read_text() + WAITS)
    (project.root / "slow").touch()
    process = subprocess.Popen(
        ["bash", "deploy/ci/night.sh"],
        cwd=project.root,
        env={**project.environment, "ACCEL_DOCTOR": "off", "ACCEL_OUT": "out", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + LONG_S
        while not (project.root / "waits").exists():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process
    finally:
        (project.root / "slow").unlink()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def stop(process: subprocess.Popen[str]) -> str:
    """What it said."""
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=LONG_S)
    assert process.returncode == 2, said
    assert "night: stopped before its end; what was measured is kept." in said
    return said


def test_a_night_that_is_stopped_keeps_what_it_measured_and_another_beside_it_is_refused(project):
    with night_that_waits(project, ACCEL_RECORD="never") as process:
        second = project.night("--collect-only", ACCEL_DOCTOR="off", ACCEL_OUT="out")
        assert second.returncode == 2, saying(second)
        (line,) = second.stderr.splitlines()
        assert "another night of cpu is running" in line
        stop(process)
    left = Left(project.root / "out")
    results = json.loads(left.text("results.json"))["results"]
    measured = next(each for each in results if each["benchmark"] == "test_tiny.py::test_step")
    assert len(measured["runs"]) == 1
    assert left.text("status") == "2\n"


KILLED = """

@cpu
def test_then(accel):
    import os, pathlib
    supervisor = pathlib.Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(supervisor.rpartition(")")[2].split()[1]), 9)
"""


def test_a_night_whose_pytest_is_killed_has_what_was_measured_before(project):
    suite = project.root / "test_tiny.py"
    suite.write_text(suite.read_text() + KILLED)
    done = project.night(ACCEL_DOCTOR="off", ACCEL_OUT="out", ACCEL_RECORD="never")
    assert done.returncode == 137, saying(done)
    assert (
        "night: pytest did not finish (status 137): what it had measured is reported."
        in done.stdout + done.stderr
    )
    left = Left(project.root / "out")
    assert left.text("status") == "137\n"
    assert "test_step" in left.text("report.html")
    assert sessions(project.root / "out/history.sqlite") == 1


def test_a_night_that_is_stopped_while_it_compiles_has_measured_nothing(project):
    with night_that_waits(project, ACCEL_COMPILE="1") as process:
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=LONG_S)
    assert process.returncode == 2, said
    assert "night: stopped before anything was measured." in said
    assert Left(project.root / "out").files == {"status"}
    assert Left(project.root / "out").text("status") == "2\n"


@pytest.mark.rehearsal
def test_a_recording_that_was_interrupted_is_completed_the_next_night(project):
    def runs() -> dict[str, int]:
        (baseline,) = (project.root / ".accel" / "baselines").glob("cpu*/tiny.json")
        entries = json.loads(baseline.read_text())["benchmarks"]
        return {name.partition("::")[2]: len(entry["runs"]) for name, entry in entries.items()}

    with night_that_waits(project, ACCEL_RUNS="1") as process:
        assert "the next night goes on with it" in stop(process)
    assert runs() == {"test_step": 1}
    done = project.night(ACCEL_DOCTOR="off", ACCEL_RUNS="1", ACCEL_OUT="out")
    assert done.returncode == 0, saying(done)
    assert "this night completes it" in done.stdout
    assert runs() == {"test_step": 1, "test_then": 1}
    assert not (project.root / ".accel" / "recording-cpu").exists()  # the next one judges


@pytest.mark.parametrize(
    ("variables", "problem", "remedy"),
    [
        ({"ACCEL_PLATFORM": ""}, "ACCEL_PLATFORM is not set", "pytest-accel doctor"),
        ({"ACCEL_RECORD": "sometimes"}, "'sometimes' is not one of", "auto always never"),
        ({"ACCEL_COMPILE": "all"}, "'all' is not a number", "such as 8"),
        # An array's index is evaluated wherever bash computes, and commands in it run.
        ({"ACCEL_RUNS": "suites[$(touch executed)]"}, "is not a number of runs", "such as 5"),
        ({"ACCEL_PYTHON": "/nowhere/python"}, "cannot run pytest-accel", "ACCEL_PYTHON"),
        ({"ACCEL_STATE": "pytest.ini"}, "pytest.ini: no folder can be made there", "Name another"),
    ],
)
def test_a_wrong_variable_is_one_error_with_its_remedy(variables, problem, remedy, project):
    done = project.night(**variables)
    assert done.returncode == 2, saying(done)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("night: ")
    assert problem in last
    assert remedy in last
    assert not (project.root / ".accel").exists() or "ACCEL_STATE" not in variables
    assert not (project.root / "executed").exists()


@pytest.mark.parametrize(
    "variables",
    [
        {"ACCEL_STATE": "st", "ACCEL_OUT": ".", "ACCEL_BASELINES": "baselines"},
        {"ACCEL_STATE": "st", "ACCEL_OUT": "st/", "ACCEL_HISTORY": "st/history.sqlite"},
    ],
    ids=["the checkout", "the history"],
)
def test_what_lasts_is_never_where_a_night_clears_up(project, variables):
    kept = project.root / "baselines" / "kept.json"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("{}")
    done = project.night(**variables)
    assert done.returncode == 2
    assert "which lasts" in done.stderr
    assert kept.exists()


def test_a_folder_is_a_name_and_no_pattern(project):
    project.become_unfit()
    stored = project.root / "a[b]" / "st" / "baselines" / "gh200" / "suite.json"
    stored.parent.mkdir(parents=True)
    stored.write_text("{}")
    done = project.night(
        ACCEL_STATE="a[b]/st", ACCEL_PLATFORM="gh200", ACCEL_DOCTOR="require", CDPATH="/tmp:."
    )
    assert done.returncode == 1, saying(done)
    assert "nothing is recorded for" not in done.stdout
    assert [each.name.partition("-")[2] for each in (project.root / "a[b]/st/nights").iterdir()] == ["gh200"]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"ACCEL_DOCTOR": "require"}, "nothing was measured"),
        ({}, "nothing was recorded"),
        (
            {"ACCEL_RECORD": "never", "ACCEL_PYTEST_ARGS": "--accel-update --accel-reason=why"},
            "nothing was recorded",
        ),
    ],
)
def test_a_machine_that_is_not_fit_records_nothing(project, variables, said):
    project.become_unfit()
    done = project.night(ACCEL_OUT="out", **variables)
    assert done.returncode == 1, saying(done)
    assert said in done.stdout
    assert Left(project.root / "out").files == {"doctor.txt", "status"}
    assert not list((project.root / ".accel").glob("baselines/*/*.json"))
    assert not (project.root / ".accel" / "recording-cpu").exists()
    # Of the page only the problems, with what to do about them.
    for shown in ("550 W", "of 700 W", "-pl 700", "2 of 64 CPUs", "out/doctor.txt"):
        assert shown in done.stdout
    assert "clocks" not in done.stdout


FAKE_PYTHON = """#!/usr/bin/env bash
# An environment takes minutes: this one notes what was asked of it.
echo "$*" >>"$CALLS"
[ "$2" != venv ] || { mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; }
"""


@pytest.mark.parametrize("lasts", [True, False])
@pytest.mark.parametrize("system", ["github", "gitlab"])
def test_an_environment_is_made_once_where_a_folder_lasts_and_held_to_the_constraints(
    project, tmp_path, system, lasts
):
    steps = {
        "github": scripts()["github-night-Environment"],
        "gitlab": load("gitlab.yml")["night"]["before_script"][0],
    }
    calls, state = tmp_path / "calls", tmp_path / "state" if lasts else project.root / ".accel-state"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text(FAKE_PYTHON)
    (tmp_path / "bin" / "python3").chmod(0o755)
    (project.root / "constraints.txt").touch()
    for _ in range(2):
        shutil.rmtree(project.root / ".venv", ignore_errors=True)  # a checkout is clean
        (project.root / ".venv").unlink(missing_ok=True)
        done = project.shell(
            *("bash", "-e", "-c", steps[system]),
            PATH=f"{tmp_path / 'bin'}:{project.environment['PATH']}",
            CALLS=str(calls),
            ACCEL_PYTHON="",
            ACCEL_STATE=str(state),
            ACCEL_INSTALL=".[suites]",
            GITHUB_WORKSPACE=str(project.root),
            CI_PROJECT_DIR=str(project.root),
        )
        assert done.returncode == 0, saying(done)
        assert (project.root / ".venv" / "bin" / "python").exists()  # where night.sh looks
    asked = calls.read_text().splitlines()
    assert sum(each.startswith("-m venv") for each in asked) == (1 if lasts else 2)
    assert asked.count("-m pip install --quiet -c constraints.txt .[suites]") == 2


def test_a_job_of_slurm_that_finds_no_script_says_where_it_looked(project):
    done = project.shell("bash", "deploy/ci/night.sbatch", ACCEL_PROJECT="/nowhere")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "/nowhere/deploy/ci/night.sh" in line
    assert "ACCEL_NIGHT" in line


def test_missing_baseline_and_missing_hardware_fail_and_an_earlier_night_is_not_told_again(project):
    """With sweeps selected, and compiled before."""
    out = project.root / "out"
    out.mkdir()
    (out / "doctor.txt").write_text("of another night")
    add_sweep(project)
    done = project.night(
        ACCEL_RECORD="never",
        ACCEL_DOCTOR="off",
        ACCEL_OUT="out",
        ACCEL_COMPILE="08",
        ACCEL_SELECT="cpu or gh200",
    )
    assert done.returncode == 1, saying(done)
    assert "1 benchmark: 1 built, 0 failed; " in done.stderr
    left = Left(out)
    found = {each["benchmark"]: each["status"] for each in json.loads(left.text("results.json"))["results"]}
    assert found == {"test_tiny.py::test_step": "no-baseline", "test_tiny.py::test_sweep": "failed"}
    assert "--accel-record" in left.text("proposal.md")
    assert "doctor.txt" not in left.files
