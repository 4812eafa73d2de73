"""The shell in deployments: taken out of the YAML as it stands there, and run as its CI system runs it."""

import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.project import CI, Project

EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
FORMAT = re.compile(r"format\('([^']*)',\s*([\w.]+)\)")


def load(name: str) -> Any:
    return yaml.safe_load((CI / name).read_text())


def load_all(name: str) -> list[Any]:
    return list(yaml.safe_load_all((CI / name).read_text()))


# --- GitHub -----------------------------------------------------------------------------------------


def evaluated(text: str, context: Mapping[str, str]) -> str:
    """With its expressions: names, literals, format() and ||; any other fails the test that meets it."""

    def operand(word: str) -> str:
        if word.startswith("'"):
            return word.strip("'")
        if found := FORMAT.fullmatch(word):
            return found[1].replace("{0}", operand(found[2]))
        return "" if word.startswith(("vars.", "inputs.")) and word not in context else context[word]

    def expression(found: re.Match[str]) -> str:
        values = [operand(word) for word in re.split(r"\s*\|\|\s*", found[1])]
        return next(filter(None, values), "")

    return EXPRESSION.sub(expression, text)


def run_github(
    job: str, project: Project, context: Mapping[str, str], cwd: Path | None = None, **variables: str
) -> list[subprocess.CompletedProcess[str]]:
    """The `run` steps of a job, until one fails; those that run always, always."""
    described = load("github.yml")["jobs"][job]
    around = {name: evaluated(value, context) for name, value in described.get("env", {}).items()}
    done: list[subprocess.CompletedProcess[str]] = []
    for step in described["steps"]:
        failed = any(each.returncode for each in done)
        if "run" not in step or (failed and step.get("if") != "always()"):
            continue
        own = {name: evaluated(value, context) for name, value in step.get("env", {}).items()}
        assert "${{" not in step["run"], "an expression in a script is code that others write"
        done.append(project.shell("bash", "-e", "-c", step["run"], cwd=cwd, **{**around, **own, **variables}))
    return done


# --- GitLab -----------------------------------------------------------------------------------------


def run_gitlab(
    job: str, project: Project, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """before_script and script in one shell; variables of the project go before those of the job."""
    described = load("gitlab.yml")[job]
    known = {**project.environment, **variables}
    own = {name: _expanded(value, known) for name, value in described.get("variables", {}).items()}
    script = "\n".join([*described.get("before_script", []), *described["script"]])
    return project.shell("bash", "-eo", "pipefail", "-c", script, cwd=cwd, **{**own, **variables})


def _expanded(value: str, known: Mapping[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda found: known[found[1]], value)


# --- all of it, for a linter ------------------------------------------------------------------------


def scripts() -> dict[str, str]:
    """Every piece of shell that stands in a YAML file, by a name for it."""
    found = {}
    for name, job in load("github.yml")["jobs"].items():
        found |= {f"github-{name}-{step['name']}": step["run"] for step in job["steps"] if "run" in step}
    for name, job in load("gitlab.yml").items():
        if isinstance(job, dict) and "script" in job:
            found[f"gitlab-{name}"] = "\n".join([*job.get("before_script", []), *job["script"]])
    for name, container in containers().items():
        found[f"kubernetes-{name}"] = shlex.join(container["command"])
    return found


def containers() -> dict[str, dict[str, Any]]:
    """The container of each CronJob."""
    jobs = [each for each in load_all("kubernetes.yaml") if each["kind"] == "CronJob"]
    pods = {
        each["metadata"]["name"]: each["spec"]["jobTemplate"]["spec"]["template"]["spec"] for each in jobs
    }
    return {name: pod["containers"][0] for name, pod in pods.items()}
