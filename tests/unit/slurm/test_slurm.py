"""The batch script as text, what Slurm answers, and how `launch` leaves; tests/slurm has the real Slurm."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_accel import cli
from pytest_accel.cli import main
from pytest_accel.slurm.job import Job, JobState, Phase, ending, parse_squeue, parse_submission, refusal
from pytest_accel.slurm.launch import prepare
from pytest_accel.slurm.script import (
    Container,
    Request,
    directive_quoted,
    quoted,
    results,
    sbatch_environment,
    script,
    task_command,
)

ASKED = Request(
    nodes=2,
    gpus_per_node="4",
    python="/env/bin/python",
    arguments=("bench_suites", "-m", "gh200x4n2"),
    directory=Path("/project"),
    folder=Path("/project/accel-slurm/run"),
)


def asked(**changes) -> Request:
    return dataclasses.replace(ASKED, **changes)


def directives_of(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]


def bash(program: str) -> bytes:
    return subprocess.run(["bash", "-c", program], check=True, capture_output=True, timeout=60).stdout


# --- the script -------------------------------------------------------------------------------------------


def test_the_script_asks_for_one_task_a_gpu():
    assert directives_of(script(ASKED)) == [
        "--job-name=pytest-accel-run",
        "--nodes=2",
        "--ntasks-per-node=4",
        "--gpus-per-node=4",
        "--output=accel-slurm/run/log.txt",
        "--no-requeue",
    ]


def test_the_script_says_all_that_was_asked():
    full = asked(
        gpus_per_node="a100:4", tasks_per_node=8, cpus_per_task=6, partition="gpu", account="proj-7",
        time="1-12:00", sbatch=("--exclusive", "--constraint=a b", "-Lnet"), folder=Path("/scratch/50 %/run"),
    )  # fmt: skip
    text = script(full)
    assert directives_of(text)[2:] == [
        "--ntasks-per-node=8",
        "--gpus-per-node=a100:4",
        "--cpus-per-task=6",
        "--partition=gpu",
        "--account=proj-7",
        "--time=1-12:00",
        '--output="/scratch/50 %%/run/log.txt"',
        "--no-requeue",
        "--exclusive",
        '--constraint="a b"',
        "-Lnet",
    ]
    assert "--cpus-per-task=6 \\\n" in text


def test_directives_stand_before_the_first_command():
    lines = script(ASKED).splitlines()
    first = next(index for index, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first:])


@settings(max_examples=30)
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=5))
@example(["a b", "it's", '"', "$(false)", "`false`", "\\", "x\r\n#SBATCH --nodes=9\n", "", "!!", "*", "é"])
def test_bash_reads_the_arguments_back(arguments):
    text = script(asked(arguments=tuple(arguments)))
    assert "\r" not in text
    stand_in = 'srun() { while [ "$1" != -m ]; do shift; done; printf "%s\\0" "${@:3}"; }\n'
    out = bash(stand_in + text.replace("folder=/project/accel-slurm/run", "folder=/nowhere") + "\n")
    got = out.split(b"\n", 1)[1].decode().split("\0")[: len(arguments)]  # the first line names the job
    assert got == arguments


def test_bytes_that_are_no_text_survive():
    assert bash(f"printf %s {quoted(os.fsdecode(b'a' + bytes([255]) + b'b'))}") == b"a\xffb"


def test_the_script_ends_as_srun_did(tmp_path):
    text = script(asked(folder=tmp_path))
    done = subprocess.run(
        ["bash", "-c", "srun() { return 3; }\n" + text], check=False, capture_output=True, timeout=60
    )
    assert done.returncode == 3
    assert (tmp_path / "status").read_text() == "3\n"
    assert [path.name for path in tmp_path.iterdir()] == ["status"]


@pytest.mark.parametrize(
    "changes",
    [{}, {"container": Container(image="i.sif")}, {"cpus_per_task": 3}, {"folder": Path("/a b/it's $x")}],
)
def test_the_script_is_valid_bash(changes):
    subprocess.run(["bash", "-n"], input=script(asked(**changes)), text=True, check=True, timeout=60)


@pytest.mark.parametrize("text", ["a\nb", "é"])
def test_a_directive_that_slurm_would_misread_is_refused(text):
    with pytest.raises(ValueError, match="only printable ASCII"):
        directive_quoted(f"--output={text}")


def test_accents_of_the_submit_directory_do_not_reach_the_directives():
    text = script(asked(directory=Path("/proyé"), folder=Path("/proyé/run")))
    assert all(line.isascii() for line in directives_of(text))


# --- what comes back --------------------------------------------------------------------------------------


def test_reports_go_into_the_run_folder():
    assert task_command(ASKED)[-2:] == [
        "--junitxml=/project/accel-slurm/run/junit.xml",
        "--benchmark-json=/project/accel-slurm/run/benchmark.json",
    ]


@pytest.mark.parametrize("given", [("--junitxml=r.xml",), ("--junit-xml", "r.xml"), ("--junitxml", "r.xml")])
def test_reports_stay_where_the_user_wants_them(given):
    for request in (asked(arguments=("suite", *given)), asked(added=given)):
        assert results(request)["JUnit"] == Path("/project/r.xml")
        assert results(request)["JSON"] == Path("/project/accel-slurm/run/benchmark.json")
        assert not any("junit.xml" in word for word in task_command(request))


def test_a_container_has_its_own_python_and_sees_the_run_folder():
    request = asked(folder=Path("/scratch/run"), container=Container(image="i.sif"))
    command = task_command(request)
    assert command[: command.index("-m")] == [
        *("apptainer", "exec", "--nv", "--bind=/project", "--bind=/scratch/run", "--pwd=/project"),
        *("i.sif", "python3"),
    ]


@pytest.mark.parametrize(("gpus", "options"), [("", ()), ("4", ("--rocm",))])
def test_nv_only_where_it_may_be_right(gpus, options):
    request = asked(gpus_per_node=gpus, tasks_per_node=1, container=Container(image="i.sif", options=options))
    assert "--nv" not in task_command(request)


def test_a_folder_that_cannot_be_bound_is_refused():
    with pytest.raises(ValueError, match="cannot be bound"):
        script(asked(directory=Path("/a:b"), container=Container(image="i.sif")))


# --- wrong requests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus_per_node": ""}, "--tasks-per-node N where there are no GPUs"),
        ({"gpus_per_node": "four"}, "--gpus-per-node 'four'"),
        ({"partition": "a b"}, "`sinfo` lists them"),
        ({"account": "$(id)"}, "--account"),
        ({"time": "soon"}, "2:00:00"),
        ({"sbatch": ("exclusive",)}, "--sbatch=--option=value"),
        ({"sbatch": ("--comment=a\nb",)}, "is not one option"),
        ({"sbatch": ("--output=x",)}, "use --output-dir"),
        ({"sbatch": ("--outp=x",)}, "use --output-dir"),
        ({"sbatch": ("-N4",)}, "use --nodes"),
    ],
)
def test_a_wrong_request_says_what_is_valid(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        script(asked(**changes))


def test_an_unknown_runtime_is_refused():
    with pytest.raises(ValueError, match="not one of apptainer, singularity"):
        Container(image="i.sif", runtime="docker")


def test_an_earlier_run_is_not_overwritten(tmp_path):
    request = asked(folder=tmp_path / "run")
    assert prepare(request).read_text() == script(request)
    with pytest.raises(ValueError, match="holds an earlier run"):
        prepare(request)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be written"):
        prepare(asked(folder=tmp_path / "file" / "run"))


# --- the environment of sbatch ----------------------------------------------------------------------------


def test_variables_that_would_override_the_script_are_left_out():
    environ = {"SBATCH_PARTITION": "x", "SBATCH_ACCOUNT": "mine", "SBATCH_OUTPUT": "o", "HOME": "/h"}
    assert sbatch_environment(environ, asked(partition="gpu")) == {"SBATCH_ACCOUNT": "mine", "HOME": "/h"}


def test_a_job_around_launch_does_not_leak_into_the_new_one():
    environ = {
        "SLURM_NTASKS": "1",
        "SLURM_CONF": "/c",
        "RANK": "0",
        "TORCHELASTIC_RUN_ID": "r",
        "MASTER_ADDR": "m",
    }
    assert sbatch_environment(environ, ASKED) == {"SLURM_CONF": "/c", "MASTER_ADDR": "m"}


# --- Slurm's answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("12\n", Job(number="12")),
        ("12;west\n", Job(number="12", cluster="west")),
        ("Welcome\n7\n", Job(number="7")),
    ],
)
def test_the_job_number(text, job):
    assert parse_submission(text) == job


def test_no_job_number_is_an_error():
    with pytest.raises(ValueError, match="no job number"):
        parse_submission("queued\n")


def test_a_job_of_another_cluster_is_named_with_it():
    job = Job(number="12", cluster="west")
    assert job.selector == ["--jobs=12", "--clusters=west"]
    assert job.cancel == ["scancel", "--clusters=west", "12"]


def test_what_sbatch_said_is_one_line():
    said = "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: y\n"
    assert refusal(said) == "invalid partition specified: x; Batch job submission failed: y"
    assert refusal("") == "it did not say why"


def test_a_pending_job_says_why_and_until_when():
    state = parse_squeue("PENDING|0:00|2026-01-01T10:00:00|Nodes required | are down\n")
    assert state.phase is Phase.PENDING
    assert state.words() == "pending (Nodes required | are down), expected to start 2026-01-01T10:00:00"
    assert parse_squeue("PENDING|0:00|N/A|None\n").words() == "pending"


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ("RUNNING", Phase.RUNNING),
        ("COMPLETING", Phase.RUNNING),
        ("FAILED", Phase.ENDED),
        ("NEW_WORD", Phase.ENDED),
    ],
)
def test_how_far_a_job_is(state, phase):
    assert JobState(state=state).phase is phase


def test_a_forgotten_job():
    assert parse_squeue("") is None


@pytest.mark.parametrize(
    ("state", "left", "status", "words"),
    [
        ("COMPLETED", 0, 0, ""),
        ("FAILED", 1, 1, ""),
        ("", 5, 5, ""),
        ("TIMEOUT", 2, 124, "time limit"),
        ("CANCELLED", None, 125, "was cancelled"),
        ("PREEMPTED", 143, 125, "was preempted"),
        ("NODE_FAIL", None, 125, "lost a node"),
        ("OUT_OF_MEMORY", 1, 1, "out of memory on the way"),
        ("OUT_OF_MEMORY", None, 125, "--sbatch=--mem=0"),
        ("COMPLETED", None, 125, "Can compute nodes write there?"),
        ("", None, 125, "Slurm has forgotten"),
    ],
)
def test_how_launch_leaves(state, left, status, words):
    how = ending(Job(number="7"), state, left, Path("/run"))
    assert how.status == status
    assert words in how.line
    assert bool(how.line) is bool(words)


# --- the command ------------------------------------------------------------------------------------------


def test_a_dry_run_prints_the_script_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = [
        "--nodes",
        "2",
        "--gpus-per-node",
        "4",
        "--sbatch",
        "--exclusive",
        "--sbatch=--mem=0",
        "--dry-run",
    ]
    assert cli.main(["launch", "--slurm", *options, "--", "suite", "--", "-m", "x y"]) == 0
    text = capsys.readouterr().out
    assert "#SBATCH --exclusive\n#SBATCH --mem=0\n" in text
    assert "    -m pytest suite\n    --\n    -m 'x y'\n" in text
    assert sys.executable in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--slurm"], "how many tasks a node?"),
        (["--slurm", "--tasks-per-node=1", "--container-option=--rocm"], "needs --container IMAGE"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(arguments, message, capsys):
    assert cli.main(["launch", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["launch"],
        ["launch", "--slurm", "--nodes=0"],
        ["launch", "--slurm", "--timeout=soon"],
        ["platform", "--", "x"],
    ],
)
def test_wrong_options_are_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 2
    assert "pytest-accel" in capsys.readouterr().err


def test_a_dry_run_imports_no_torch():
    program = (
        "import sys; from pytest_accel import cli\n"
        "cli.main(['launch', '--slurm', '--tasks-per-node=1', '--dry-run'])\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


class TestSize:
    """What the queue would find out after hours is said at once."""

    @staticmethod
    def launch(*arguments):
        return main(["launch", "--slurm", "--dry-run", *arguments])

    @pytest.mark.parametrize(
        "arguments",
        [
            ("--nodes", "2", "--gpus-per-node", "4", "--", "bench", "-m", "gh200x4n2"),
            ("--nodes", "2", "--gpus-per-node", "4", "--", "bench", "-m", "gh200x4 or gh200x4n2"),
            ("--nodes", "2", "--tasks-per-node", "1", "--", "-mcpun2"),
            ("--gpus-per-node", "1", "--", "-m", "gh200"),
            ("--gpus-per-node", "4", "--", "bench"),
        ],
    )
    def test_fits(self, arguments, capsys):
        assert self.launch(*arguments) == 0

    def test_another_size_is_refused_with_the_remedy(self, capsys):
        arguments = ("--nodes", "2", "--gpus-per-node", "4", "--", "bench", "-m", "gh200x4n4")
        assert self.launch(*arguments) == 2
        assert "Ask for --nodes 4 --gpus-per-node 4." in capsys.readouterr().err

    def test_arguments_of_pytest_without_dashes(self, capsys):
        with pytest.raises(SystemExit):
            self.launch("--gpus-per-node", "4", "bench")
        assert "goes after --" in capsys.readouterr().err
