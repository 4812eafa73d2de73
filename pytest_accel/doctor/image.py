"""Whether an image holds what benchmarks need: looked at where it is built, so that no GPU need be there."""

from __future__ import annotations

import os
import platform
import pwd
import shutil
import sysconfig
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pytest_accel.doctor import disk, nvidia, packages, software
from pytest_accel.doctor.deadline import begin
from pytest_accel.doctor.finding import Finding
from pytest_accel.doctor.findings import Sheet
from pytest_accel.doctor.imports import Imports, try_imports
from pytest_accel.doctor.packages import Packages, installed
from pytest_accel.platforms.environment import IMAGE_PATH, container
from pytest_accel.platforms.host import Files
from pytest_accel.platforms.numa import allowed_cpus
from pytest_accel.storage.files import is_writable_folder, nearest_folder

IMAGE = Sheet(group="image")
USER = Sheet(group="user")
BUILDING = Sheet(group="building")
DRIVER_LIMIT_S = 30.0
_COMPILERS = ("gcc", "cc", "clang")


def examine(
    environ: Mapping[str, str] = os.environ,
    *,
    root: Path = Path("/"),
    found: Packages | None = None,
    imports: Callable[[list[str]], Imports] = try_imports,
) -> tuple[Finding, ...]:
    """All findings, in the order of the screen; what is installed is imported once, in another process."""
    found = found or installed()
    files = Files(root=root)
    tried = imports([each.module for each in packages.EXTRAS if each.name in found.versions])
    torch = software.installed_torch() if "torch" in found.versions else None
    # A driver that hangs here hangs nobody: whether it is well is asked where the image runs.
    driver = begin(partial(nvidia.examine, files, environ, allowed_cpus())).wait(DRIVER_LIMIT_S)
    devices = driver or nvidia.Devices()
    built = software.examine(files, environ, nvidia=devices.gpus, amd=0, cuda=devices.cuda, torch=torch)
    return (
        *_named(files, environ),
        *packages.needed(found, environ),
        *packages.extras(found, tried, is_cuda=bool(torch and torch.kind == "cuda")),
        *(each for each in built if each.subject == "variables" or (torch and each.subject == "torch")),
        *_building(environ, tried, torch),
        *_user(environ),
        *_shared_memory(root),
    )


def _named(files: Files, environ: Mapping[str, str]) -> list[Finding]:
    told = container(files, environ)
    name = told.get("image_name", "")
    system = IMAGE.ok("system", f"{platform.machine()}, {_system()}")
    if name:
        more = [f"revision {told['image_revision']}"] if "image_revision" in told else []
        more += [f"on {told['image_base']}"] if "image_base" in told else []
        return [IMAGE.ok("name", ", ".join([name, *more])), system]
    why = (
        f"/{IMAGE_PATH} is there and has no name"
        if files.exists(IMAGE_PATH)
        else f"there is no /{IMAGE_PATH}"
    )
    other = told.get("container_image") or told.get("nvidia_container")
    if other and not files.exists(IMAGE_PATH):
        return [IMAGE.ok("name", f"{other} ({why})"), system]
    return [
        IMAGE.warning(
            "name",
            f"not told: {why}, and results cannot say in which image they were measured",
            'Write {"name": "...", "revision": "...", "base": "..."} there, as deploy/containers does.',
        ),
        system,
    ]


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:  # an image from scratch has no such file
        return platform.system()


def _building(environ: Mapping[str, str], tried: Imports, torch: software.Torch | None) -> list[Finding]:
    """What torch.compile and several GPUs need beside torch itself."""
    if torch is None or tried.errors.get("torch"):
        return []
    return [_compiler(environ), *([_nccl(tried)] if torch.kind == "cuda" else [])]


def _compiler(environ: Mapping[str, str]) -> Finding:
    """Triton compiles the C that launches its kernels, against Python's own headers, when a model is first compiled."""
    named = environ.get("CC", "")
    path = environ.get("PATH")
    found = next(
        (at for each in ((named,) if named else _COMPILERS) if (at := shutil.which(each, path=path))), ""
    )
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    missing = (
        [] if found else [f"CC={named}, which is not there" if named else "no C compiler (gcc, cc, clang)"]
    )
    missing += [] if headers.exists() else [f"no {headers}"]
    if missing:
        return BUILDING.warning(
            "compiler",
            f"{', '.join(missing)}: torch.compile cannot build its kernels",
            "Install gcc, libc6-dev and Python's headers (python3-dev), or run with --accel-compile=off.",
        )
    return BUILDING.ok("compiler", f"{found}, {headers}")


def _nccl(tried: Imports) -> Finding:
    if tried.nccl:
        return BUILDING.ok("collectives", f"NCCL {tried.nccl}")
    return BUILDING.warning(
        "collectives",
        "this torch has no NCCL: benchmarks of several GPUs cannot run",
        "Install a build of torch with NCCL (PyPI's and NVIDIA's have it).",
    )


def _user(environ: Mapping[str, str]) -> list[Finding]:
    return [
        _who(environ),
        _written("home", environ.get("HOME", ""), "Set HOME to a folder that this user may write to."),
        _written(
            "cache",
            environ.get("TRITON_CACHE_DIR") or f"{environ.get('HOME', '')}/.triton",
            "Set TRITON_CACHE_DIR: compiled kernels go there.",
        ),
        _written(
            "scratch",
            environ.get("TMPDIR") or "/tmp",  # noqa: S108 -- where Python's and torch's temporary files go
            "Mount a writable /tmp, or set TMPDIR.",
        ),
    ]


def _who(environ: Mapping[str, str]) -> Finding:
    number = os.geteuid()
    if number == 0:
        return USER.warning(
            "user",
            "root: files on mounted volumes will be root's, and nothing here needs it",
            "End the Containerfile with USER, or start with --user; Apptainer runs as whoever called it.",
        )
    try:
        return USER.ok("user", f"{pwd.getpwuid(number).pw_name} ({number})")
    except KeyError:
        if environ.get("USER") or environ.get("LOGNAME"):
            return USER.ok(
                "user", f"{number}, by the name of {environ.get('LOGNAME') or environ.get('USER')}"
            )
        return USER.warning(
            "user",
            f"{number} has no name here, and torch asks for one when it compiles",
            "Set USER=bench, or TORCHINDUCTOR_CACHE_DIR and HOME.",
        )


def _written(subject: str, folder: str, remedy: str) -> Finding:
    """By the mode and the mount; a folder that is not there yet is made below the nearest that is."""
    if not folder.strip("/"):
        return USER.warning(subject, f"{folder or 'no folder'} is no folder for files", remedy)
    path = Path(folder)
    there = nearest_folder(path)
    text = str(path) if there == path else f"{path} (not there yet)"
    if not is_writable_folder(there):
        return USER.problem(subject, f"{text} cannot be written to", remedy)
    return USER.ok(subject, text)


def _shared_memory(root: Path) -> list[Finding]:
    folder = root / "dev/shm"
    return disk.examine(disk.shared_memory(folder)) if folder.is_dir() else []
