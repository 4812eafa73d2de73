"""Checks of a container image where it is built: packages, imports, compiler, user; no GPU is needed."""

from __future__ import annotations

import json
import os
import platform
import pwd
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path

from pytest_accel.doctor import gpus, host, software
from pytest_accel.doctor.findings import Finding, Sheet, begin
from pytest_accel.platforms.environment import IMAGE_PATH, container
from pytest_accel.platforms.host import HostFiles
from pytest_accel.platforms.numa import allowed_cpus
from pytest_accel.storage.files import is_writable_folder, nearest_folder

IMAGE, NEEDED, EXTRAS = Sheet(group="image"), Sheet(group="needed"), Sheet(group="for the suites")
BUILDING, USER = Sheet(group="building"), Sheet(group="user")
OURS = "pytest-accel"
DRIVER_LIMIT_S = 30.0
IMPORT_LIMIT_S = 300.0  # importing torch from a cold disk of a cluster takes a minute
_COMPILERS = ("gcc", "cc", "clang")

# Packages that only some benchmarks need: distribution, module, and what does not work without it.
PACKAGES = {
    "torch": (
        "torch",
        "train, infer, converge and the suites do not work; accel.measure with steps of your own does",
    ),
    "torchvision": (
        "torchvision",
        "models by a plain name ('resnet50') and JPEGs do not work; timm/..., zoo/... and your own do",
    ),
    "timm": ("timm", "models named timm/... and DINO on Swin-L do not work"),
    "segmentation-models-pytorch": (
        "segmentation_models_pytorch",
        "the segmentation suite does not work",
    ),
    "transformers": ("transformers", "the bert suite does not work"),
    "scipy": ("scipy", "DINO cannot be trained: it matches boxes with it"),
    "nvidia-ml-py": (
        "pynvml",
        "no NVIDIA GPU is found, so that its benchmarks are skipped, and no energy is read",
    ),
    "scikit-learn": ("sklearn", "the data set 'digits' cannot be read"),
    "plotly": ("plotly", "--accel-report does not work"),
}

_MARK = "pytest-accel-import "  # packages print at import; these lines are ours
# The name is printed before the import, so that a package that ends the process is known.
_PROGRAM = f"""
import importlib, json, sys
def report(**what): print("\\n" + {_MARK!r} + json.dumps(what), flush=True)
for name in sys.argv[1:]:
    report(name=name, error="it ended the process that imported it")
    try:
        importlib.import_module(name)
        report(name=name, error="")
    except BaseException as error:
        lines = str(error).strip().splitlines()
        report(name=name, error=type(error).__name__ + (": " + lines[0] if lines else ""))
torch = sys.modules.get("torch")
try:
    available = torch is not None and torch.distributed.is_available() and torch.distributed.is_nccl_available()
    if available: report(nccl=".".join(map(str, torch.cuda.nccl.version())))
except Exception as error:
    report(nccl="")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """Result of each import: empty, or the error in one line; and the version of torch's NCCL."""

    errors: Mapping[str, str] = field(default_factory=dict)
    nccl: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """Installed versions, the versions that pytest-accel requires, and whether pytest finds the plugin."""

    versions: Mapping[str, str] = field(default_factory=dict)
    required: Mapping[str, str] = field(default_factory=dict)  # torch: ">=2.6"
    is_registered: bool = True


def examine(
    environ: Mapping[str, str] = os.environ,
    *,
    root: Path = Path("/"),
    found: Packages | None = None,
    imports: Callable[[list[str]], Imports] | None = None,
) -> tuple[Finding, ...]:
    """Return all findings in the order of the screen; packages are imported in one other process."""
    found = found or installed_packages()
    files = HostFiles(root=root)
    modules = [module for name, (module, _) in PACKAGES.items() if name in found.versions]
    tried = (imports or try_imports)(modules)
    torch = software.installed_torch() if "torch" in found.versions else None
    # A driver that hangs is ignored here: it is checked where the image runs.
    driver = begin(partial(gpus.examine, files, environ, allowed_cpus())).wait(DRIVER_LIMIT_S)
    devices = driver or gpus.NvidiaState()
    findings = [*_named(files, environ), *_needed(found, environ)]
    findings += [
        _package(name, found, tried, is_cuda=bool(torch and torch.kind == "cuda")) for name in PACKAGES
    ]
    if torch is not None:
        findings.append(software.judge_torch(torch, nvidia=devices.gpus, amd=0, cuda=devices.cuda))
    findings.append(software.slowing_variables(environ))
    if torch is not None and not tried.errors.get("torch"):
        findings.append(_compiler(environ))
        findings += [_nccl(tried)] if torch.kind == "cuda" else []
    findings += [_user(environ), *_written_folders(environ)]
    findings += [finding for each in host.shared_memory(root) for finding in host.examine_folder(each)]
    return tuple(findings)


def installed_packages() -> Packages:
    required = _required()
    names = {OURS, *required, *PACKAGES}
    points = metadata.entry_points(group="pytest11")
    return Packages(
        versions={name: version for name in names if (version := _version(name))},
        required=required,
        is_registered=any(each.name == "accel" and each.value == "pytest_accel.plugin" for each in points),
    )


def try_imports(
    names: Sequence[str], *, python: str = sys.executable, limit_s: float = IMPORT_LIMIT_S
) -> Imports:
    """Import modules one after the other; those after one that hangs or crashes have no result."""
    try:
        done = subprocess.run(  # noqa: S603 -- our own program, in our own Python
            [python, "-c", _PROGRAM, *names],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        )
        output, late = done.stdout, ""
    except subprocess.TimeoutExpired as expired:
        output, late = expired.stdout or b"", f"it did not end within {limit_s:g} s"
    errors: dict[str, str] = {}
    nccl, last = "", ""
    for line in output.decode("utf-8", "replace").splitlines():
        if line.startswith(_MARK):
            report = json.loads(line.removeprefix(_MARK))
            nccl = report.get("nccl", nccl)
            if "name" in report:
                last = report["name"]
                errors[last] = report["error"]
    if late and errors.get(last):
        errors[last] = late
    return Imports(errors=errors, nccl=nccl)


def is_within(version: str, required: str) -> bool:
    """Whether a version meets a requirement; NVIDIA's builds (2.6.0a0+ecf3bae40a.nv25.01) count as their release."""
    if not required:
        return True
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(required).contains(Version(version).base_version)
    except InvalidVersion:
        return True  # a local build; importing it says more


def _version(name: str) -> str:
    try:
        return metadata.version(name) or "version unknown"
    except metadata.PackageNotFoundError:
        return ""


def _required() -> dict[str, str]:
    """Return the requirements in pytest-accel's own metadata, those of extras included."""
    try:
        from packaging.requirements import Requirement  # pytest depends on it

        lines = metadata.requires(OURS) or []
    except (ImportError, metadata.PackageNotFoundError):
        return {}
    found = (Requirement(line) for line in lines)
    return {each.name: str(each.specifier) for each in found if str(each.specifier)}


# --- findings ---------------------------------------------------------------------------------------


def _named(files: HostFiles, environ: Mapping[str, str]) -> list[Finding]:
    facts = container(files, environ)
    try:
        system = platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:  # an image from scratch has no such file
        system = platform.system()
    found = IMAGE.ok("system", f"{platform.machine()}, {system}")
    if name := facts.get("image_name"):
        more = [f"revision {facts['image_revision']}"] if "image_revision" in facts else []
        more += [f"on {facts['image_base']}"] if "image_base" in facts else []
        return [IMAGE.ok("name", ", ".join([name, *more])), found]
    is_there = files.exists(IMAGE_PATH)
    why = f"/{IMAGE_PATH} has no name" if is_there else f"there is no /{IMAGE_PATH}"
    other = facts.get("container_image") or facts.get("nvidia_container")
    if other and not is_there:
        return [IMAGE.ok("name", f"{other} ({why})"), found]
    text = f"unknown: {why}, and results cannot say in which image they were measured"
    remedy = 'Write {"name": "...", "revision": "...", "base": "..."} there, as deploy/containers does.'
    return [IMAGE.warning("name", text, remedy), found]


def _needed(found: Packages, environ: Mapping[str, str]) -> list[Finding]:
    findings = []
    for name in ("pytest", "pytest-benchmark"):
        version, required = found.versions.get(name, ""), found.required.get(name, "")
        if not version:
            findings.append(NEEDED.problem(name, "not installed", f"pip install {name}"))
        elif not is_within(version, required):
            remedy = f"pip install '{name}{required}'"
            findings.append(NEEDED.problem(name, f"{version}, and {required} is needed", remedy))
        else:
            findings.append(NEEDED.ok(name, version))
    if OURS not in found.versions or not found.is_registered:
        text = "pytest does not find it: the package has no entry point here"
        findings.append(NEEDED.problem("plugin", text, f"Install {OURS} again, with pip."))
    elif environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        text = "PYTEST_DISABLE_PLUGIN_AUTOLOAD is set: pytest loads it only where it is named"
        findings.append(NEEDED.warning("plugin", text, "Unset it, or run pytest with -p benchmark -p accel."))
    else:
        findings.append(NEEDED.ok("plugin", f"{OURS} {found.versions[OURS]}, found by pytest"))
    return findings


def _package(name: str, found: Packages, tried: Imports, *, is_cuda: bool) -> Finding:
    module, without = PACKAGES[name]
    version, required = found.versions.get(name, ""), found.required.get(name, "")
    if not version:
        # A torch for CUDA that finds no GPU skips every benchmark.
        report = EXTRAS.problem if name == "nvidia-ml-py" and is_cuda else EXTRAS.warning
        torch = found.versions.get("torch")
        # torchvision and timm depend on torch: the image's own build must stay.
        pinned = f" 'torch=={torch}'" if torch and name in ("torchvision", "timm") else ""
        return report(name, f"missing: {without}", f"pip install {name}{pinned}")
    if error := tried.errors.get(module, ""):
        remedy = f"Repair it: {without}. A library of the base image may be missing, or of another version."
        return EXTRAS.problem(name, f"{version} cannot be imported: {error}", remedy)
    if not is_within(version, required):
        text = f"{version} is older than {required}, with which it was tested"
        return EXTRAS.warning(name, text, f"pip install '{name}{required}'")
    if module not in tried.errors:
        return EXTRAS.warning(name, f"{version} was not tried", "Repair the one above first.")
    return EXTRAS.ok(name, version)


def _compiler(environ: Mapping[str, str]) -> Finding:
    """Check for a C compiler and Python's headers: Triton compiles its launchers with them."""
    named = environ.get("CC", "")
    candidates = (named,) if named else _COMPILERS
    paths = (shutil.which(each, path=environ.get("PATH")) for each in candidates)
    found = next((path for path in paths if path), "")
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    missing = []
    if not found:
        missing.append(f"CC={named}, which does not exist" if named else "no C compiler (gcc, cc, clang)")
    if not headers.exists():
        missing.append(f"no {headers}")
    if missing:
        text = f"{', '.join(missing)}: torch.compile cannot build its kernels"
        remedy = "Install gcc, libc6-dev and Python's headers (python3-dev), or run with --accel-compile=off."
        return BUILDING.warning("compiler", text, remedy)
    return BUILDING.ok("compiler", f"{found}, {headers}")


def _nccl(tried: Imports) -> Finding:
    if tried.nccl:
        return BUILDING.ok("collectives", f"NCCL {tried.nccl}")
    text = "this torch has no NCCL: benchmarks of several GPUs cannot run"
    return BUILDING.warning(
        "collectives", text, "Install a build of torch with NCCL (PyPI's and NVIDIA's have it)."
    )


def _user(environ: Mapping[str, str]) -> Finding:
    number = os.geteuid()
    if number == 0:
        text = "root: files on mounted volumes will be root's, and nothing here needs it"
        remedy = "End the Containerfile with USER, or start with --user; Apptainer runs as its caller."
        return USER.warning("user", text, remedy)
    try:
        return USER.ok("user", f"{pwd.getpwuid(number).pw_name} ({number})")
    except KeyError:
        if name := environ.get("LOGNAME") or environ.get("USER"):
            return USER.ok("user", f"{number}, named {name} by the environment")
        text = f"{number} has no name here, and torch needs one when it compiles"
        return USER.warning("user", text, "Set USER=bench, or TORCHINDUCTOR_CACHE_DIR and HOME.")


def _written_folders(environ: Mapping[str, str]) -> list[Finding]:
    """Check the folders that torch and Python write to, by mode and mount."""
    home = environ.get("HOME", "")
    temporary = environ.get("TMPDIR") or "/tmp"  # noqa: S108 -- the default of Python and torch
    findings = []
    for subject, folder, remedy in (
        ("home", home, "Set HOME to a folder that this user may write to."),
        ("cache", environ.get("TRITON_CACHE_DIR") or f"{home}/.triton", "Set TRITON_CACHE_DIR."),
        ("scratch", temporary, "Mount a writable /tmp, or set TMPDIR."),
    ):
        if not folder.strip("/"):
            findings.append(USER.warning(subject, f"{folder or 'no folder'} is no folder for files", remedy))
        elif not is_writable_folder(nearest_folder(Path(folder))):
            findings.append(USER.problem(subject, f"{folder} cannot be written to", remedy))
        else:
            findings.append(USER.ok(subject, folder))
    return findings
