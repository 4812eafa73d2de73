"""Whether packages can really be imported, tried in a process of its own: a broken torch ends that one, not ours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LIMIT_S = 300.0  # importing torch from a cold disk of a cluster takes a minute
_MARK = "pytest-accel-import "  # packages print at import; these lines are ours
# The name is told before the import, so that a package that ends the process is known.
_PROGRAM = f"""
import importlib, json, sys
def tell(**what): print("\\n" + {_MARK!r} + json.dumps(what), flush=True)
for name in sys.argv[1:]:
    tell(name=name, error="it ended the process that imported it")
    try:
        importlib.import_module(name)
        tell(name=name, error="")
    except BaseException as error:
        lines = str(error).strip().splitlines()
        tell(name=name, error=type(error).__name__ + (": " + lines[0] if lines else ""))
torch = sys.modules.get("torch")
try:
    available = torch is not None and torch.distributed.is_available() and torch.distributed.is_nccl_available()
    if available: tell(nccl=".".join(map(str, torch.cuda.nccl.version())))
except Exception as error:
    tell(nccl="")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """What became of each: empty for one that was imported, else the error in one line."""

    errors: Mapping[str, str] = field(default_factory=dict)
    nccl: str = ""  # the version that torch was built with; empty where it has none


def try_imports(names: Sequence[str], *, python: str = sys.executable, limit_s: float = LIMIT_S) -> Imports:
    """Import them one after the other; those that came after one which hangs or crashes are not told."""
    try:
        done = subprocess.run(  # noqa: S603 -- our own program, in our own Python
            [python, "-c", _PROGRAM, *names],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        )
        output, ending = done.stdout, ""
    except subprocess.TimeoutExpired as expired:
        output, ending = expired.stdout or b"", f"it did not end within {limit_s:g} s"
    return _read(output.decode("utf-8", "replace"), ending)


def _read(output: str, ending: str) -> Imports:
    errors: dict[str, str] = {}
    nccl, last = "", ""
    for line in output.splitlines():
        if not line.startswith(_MARK):
            continue
        told = json.loads(line.removeprefix(_MARK))
        nccl = told.get("nccl", nccl)
        if "name" in told:
            last = told["name"]
            errors[last] = told["error"]
    if ending and errors.get(last):
        errors[last] = ending
    return Imports(errors=errors, nccl=nccl)
