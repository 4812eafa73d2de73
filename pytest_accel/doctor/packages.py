"""What must be installed for benchmarks to run, and what does not work without the rest."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from pytest_accel.doctor.finding import Finding
from pytest_accel.doctor.findings import Sheet
from pytest_accel.doctor.imports import Imports
from pytest_accel.stats.quantities import counted

NEEDED = Sheet(group="needed")
EXTRAS_SHEET = Sheet(group="for the suites")
OLDEST_PYTHON = (3, 11)
OURS = "pytest-accel"
_PACKAGE = Path(__file__).parents[1]
_ANEW = f"Install it anew: pip install --force-reinstall --no-deps {OURS}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """A package that only some benchmarks need."""

    name: str
    module: str
    without: str  # what then does not work
    of: str = "suites"  # the extra of pytest-accel that brings it


EXTRAS = (
    Extra(
        name="torch",
        module="torch",
        without="train, infer, converge and the suites do not work; accel.measure with steps of your own does",
    ),
    Extra(
        name="torchvision",
        module="torchvision",
        without="models by a plain name ('resnet50') and JPEGs do not work; timm/..., zoo/... and your own do",
    ),
    Extra(name="timm", module="timm", without="models named timm/... and DINO on Swin-L do not work"),
    Extra(
        name="segmentation-models-pytorch",
        module="segmentation_models_pytorch",
        without="the segmentation suite does not work",
    ),
    Extra(name="transformers", module="transformers", without="the bert suite does not work"),
    Extra(name="scipy", module="scipy", without="DINO cannot be trained: its boxes are matched by it"),
    Extra(
        name="nvidia-ml-py",
        module="pynvml",
        without="no NVIDIA GPU is found, so that its benchmarks are skipped, and no energy is read",
    ),
    Extra(name="scikit-learn", module="sklearn", without="the data set 'digits' cannot be read"),
    Extra(name="plotly", module="plotly", without="--accel-report does not work", of="report"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """What is installed: versions by name, what pytest-accel demands of them, and what it brought."""

    versions: Mapping[str, str] = field(default_factory=dict)
    demanded: Mapping[str, str] = field(default_factory=dict)  # torch: ">=2.6"
    is_registered: bool = True  # pytest will find the plugin by itself
    suites: int = 0
    studies: int = 0
    python: tuple[int, int] = OLDEST_PYTHON


def installed(package: Path = _PACKAGE) -> Packages:
    """Of this Python; a checkout has its suites and studies beside the package."""
    demanded = _demanded()
    names = {OURS, *demanded, *(each.name for each in EXTRAS)}
    return Packages(
        versions={name: version for name in names if (version := _version(name))},
        demanded=demanded,
        is_registered=any(
            point.name == "accel" and point.value == "pytest_accel.plugin"
            for point in metadata.entry_points(group="pytest11")
        ),
        suites=_count([package / "suites", package.parent / "bench_suites"], "test_*.py"),
        studies=_count([package / "published", package.parent / "baselines/published"], "*.json"),
        python=sys.version_info[:2],
    )


def _version(name: str) -> str:
    try:
        return metadata.version(name) or "version not told"
    except metadata.PackageNotFoundError:
        return ""


def _demanded() -> dict[str, str]:
    """Of everything that pytest-accel names, with and without an extra; its own metadata is the one place for it."""
    try:
        from packaging.requirements import Requirement  # pytest brings it

        lines = metadata.requires(OURS) or []
    except (ImportError, metadata.PackageNotFoundError):
        return {}
    found = (Requirement(line) for line in lines)
    return {each.name: str(each.specifier) for each in found if str(each.specifier)}


def _count(folders: Iterable[Path], pattern: str) -> int:
    return next((number for folder in folders if (number := len(list(folder.glob(pattern))))), 0)


def needed(found: Packages, environ: Mapping[str, str]) -> list[Finding]:
    """Without these nothing runs."""
    return [
        _python(found.python),
        *(_demand(found, name) for name in ("pytest", "pytest-benchmark")),
        _plugin(found, environ),
        _brought(found),
    ]


def _python(version: tuple[int, int]) -> Finding:
    if version < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        return NEEDED.problem(
            "Python",
            f"{'.'.join(map(str, version))}, and {oldest} is needed",
            f"Use a base with Python {oldest}.",
        )
    return NEEDED.ok("Python", f"{platform.python_version()}, {sys.executable}")


def _demand(found: Packages, name: str) -> Finding:
    version, wanted = found.versions.get(name, ""), found.demanded.get(name, "")
    if not version:
        return NEEDED.problem(name, "not installed", f"pip install {OURS}")
    if not is_within(version, wanted):
        return NEEDED.problem(name, f"{version}, and {wanted} is needed", f"pip install '{name}{wanted}'")
    return NEEDED.ok(name, version)


def is_within(version: str, wanted: str) -> bool:
    """NVIDIA's containers have builds of days before a release (2.6.0a0+ecf3bae40a.nv25.01): those count as it."""
    if not wanted:
        return True
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(wanted).contains(Version(version).base_version)
    except InvalidVersion:
        return True  # of a build by hand; importing it says more


def _plugin(found: Packages, environ: Mapping[str, str]) -> Finding:
    if OURS not in found.versions or not found.is_registered:
        return NEEDED.problem("plugin", "pytest does not find it: the package has no entry point here", _ANEW)
    if environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        return NEEDED.warning(
            "plugin",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD is set: pytest loads it only where it is named",
            "Unset it, or run pytest with -p benchmark -p accel.",
        )
    return NEEDED.ok("plugin", f"{OURS} {found.versions[OURS]}, found by pytest")


def _brought(found: Packages) -> Finding:
    missing = [
        what
        for what, number in (("suites", found.suites), ("published figures", found.studies))
        if not number
    ]
    if missing:
        return NEEDED.problem("contents", f"this {OURS} came without its {' and '.join(missing)}", _ANEW)
    return NEEDED.ok(
        "contents", f"{counted(found.suites, 'suite')}, published figures of {found.studies} studies"
    )


def extras(found: Packages, tried: Imports, *, is_cuda: bool) -> list[Finding]:
    """Each with what does not work without it."""
    return [_extra(each, found, tried, is_cuda=is_cuda) for each in EXTRAS]


def _remedy(each: Extra, found: Packages) -> str:
    """An image's own torch stays: an extra that demands a release would replace a build from before it."""
    if "torch" not in found.versions:
        return f"pip install '{OURS}[{each.of}]'"
    if each.name in ("torchvision", "timm"):  # they need torch, and would bring another
        return f"pip install {each.name} 'torch=={found.versions['torch']}'"
    return f"pip install {each.name}"


def _extra(each: Extra, found: Packages, tried: Imports, *, is_cuda: bool) -> Finding:
    sheet, version = EXTRAS_SHEET, found.versions.get(each.name, "")
    wanted = found.demanded.get(each.name, "")
    if not version:
        # A torch for CUDA that finds no GPU measures nothing, and says nothing of it but "skipped".
        told = sheet.problem if each.name == "nvidia-ml-py" and is_cuda else sheet.warning
        return told(each.name, f"missing: {each.without}", _remedy(each, found))
    error = tried.errors.get(each.module, "")
    if error:
        return sheet.problem(
            each.name,
            f"{version} cannot be imported: {error}",
            f"Repair it: {each.without}. A library of the base image may be missing, or be of another version.",
        )
    if not is_within(version, wanted):
        return sheet.warning(
            each.name,
            f"{version} is older than {wanted}, with which it was tested",
            f"pip install '{each.name}{wanted}'",
        )
    if each.module not in tried.errors:
        return sheet.warning(each.name, f"{version} was not tried", "Repair the one above first.")
    return sheet.ok(each.name, version)
