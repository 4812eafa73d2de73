"""A folder in which somebody compares two environments, with stand-ins for both."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from unittest import mock

from pytest_accel.cli import main
from pytest_accel.stats.results import Result
from pytest_accel.storage.results import write_results
from tests.support.results import make_session

ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class Site:
    root: Path
    environ: dict[str, str]

    @classmethod
    def at(cls, root: Path, files: Mapping[str, str]) -> Self:
        root.mkdir()
        for name, text in {"pytest.ini": "[pytest]\n", **files}.items():
            (root / name).write_text(text)
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTEST_", "GITHUB_", "CI_", "SLURM_"))
        }
        environ = {
            **inherited,
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # other plugins of this environment cost a second in every process
            "PYTEST_ADDOPTS": "-p benchmark -p accel -p no:cacheprovider",
        }
        return cls(root, environ)

    def run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """A command of pytest-accel, in this process."""
        out, err = io.StringIO(), io.StringIO()
        with (
            redirect_stdout(out),
            redirect_stderr(err),
            chdir(self.root),
            mock.patch.dict(os.environ, self.environ, clear=True),
        ):
            status = main(arguments)
        return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())

    def stand_in(self, side: str) -> str:
        """What leads into an environment that is none."""
        return shlex.join([sys.executable, "stand_in.py", side])

    def left(self, name: str, results: Iterable[Result], **more: object) -> None:
        """What a stand-in is to leave."""
        write_results(self.root / f"made-{name}.json", make_session(results, **more))

    def calls(self) -> list[tuple[Any, ...]]:
        """Of stand-ins, in order, as each noted its own."""
        path = self.root / "called"
        return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []

    def kept(self, name: str) -> dict[str, Any]:
        return json.loads((self.root / name).read_text())
