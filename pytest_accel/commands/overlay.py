"""Packages of an environment, listed and copied by its own Python for `upgrade --isolate`.

`python -m pytest_accel.commands.overlay ANSWER` writes their versions, `... ANSWER FOLDER NAME...` copies these into a folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

# What torch loads from wheels. Not all of nvidia/*/lib: libnvblas.so would take BLAS calls over.
_PRELOADED = re.compile(
    r"lib(nccl|cublas|cublasLt|cudnn|cudart|cufft|curand|cusolver|cusparse|cusparseLt|nvJitLink|nvrtc)\.so[.\d]*"
)
# CUDA's wheels share the package `nvidia`: the modules of the others must still be found.
_SHARED_PACKAGE = "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"


def installed() -> dict[str, str]:
    found: dict[str, str] = {}
    for each in metadata.distributions():  # in the order of sys.path: the first is the one that is imported
        if each.name:
            found.setdefault(normalized(each.name), each.version)
    return found


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def copy_package(name: str, folder: Path) -> None:
    """Copy one package as its RECORD lists it, by hard links where possible; ValueError says why it cannot be swapped."""
    package = metadata.distribution(name)
    root, copied = Path(str(package.locate_file(""))), False
    for file in package.files or ():
        source, target = root / file, folder / file
        if file.is_absolute() or ".." in file.parts or not source.is_file():  # scripts; compiled files of pip
            continue
        if len(file.parts) == 1 and file.suffix == ".pth":
            raise ValueError(f"{name} has {file}, as an editable install, which works in site-packages only")
        target.parent.mkdir(parents=True, exist_ok=True)
        if len(file.parts) == 2 and file.name == "__init__.py" and not source.stat().st_size:
            target.write_text(_SHARED_PACKAGE, encoding="utf-8")
        elif not target.exists():
            try:
                target.hardlink_to(source.resolve())
            except OSError:  # another file system, files of root
                shutil.copy2(source, target)
        copied = True
    if not copied:
        raise ValueError(f"{name} has no RECORD of its files")


def overlay_variables(folder: Path, inherited: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that put a folder of packages before those of an environment.

    torch 2.10 loads CUDA's libraries from sys.path. An older one may find them by its RPATH, which goes before
    LD_LIBRARY_PATH; before LD_PRELOAD nothing goes.
    """
    files = sorted(folder.glob("nvidia/*/lib/*"))
    libraries = [str(each) for each in files if _PRELOADED.fullmatch(each.name)]
    ours = {"PYTHONPATH": [str(folder)], "LD_PRELOAD": libraries}
    return tuple(
        f"{name}={':'.join([*first, *filter(None, [inherited[name]])])}"
        for name, first in ours.items()
        if first
    )


def _main(answer: str, folder: str = "", *names: str) -> None:
    problem = ""
    try:
        for name in names:
            copy_package(name, Path(folder))
    except ValueError as error:
        problem = str(error)
    facts = {
        "packages": {} if names else installed(),
        "variables": {name: os.environ.get(name, "") for name in ("PYTHONPATH", "LD_PRELOAD")},
        "problem": problem,
    }
    Path(answer).write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
