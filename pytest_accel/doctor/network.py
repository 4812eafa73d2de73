"""What NCCL will find between GPUs and nodes: adapters, plugins, and variables that slow it down."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import TYPE_CHECKING

from pytest_accel.doctor.findings import Sheet
from pytest_accel.stats.environment import safe_variables
from pytest_accel.stats.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_accel.doctor.finding import Finding
    from pytest_accel.platforms.host import Files

SHEET = Sheet(group="network")
_ADAPTERS = "sys/class/infiniband"
_SLINGSHOT = "sys/class/cxi"
_OFF = frozenset({"", "0", "n", "no", "false"})
_MOST_NAMES = 6  # of variables in one line
# Set for a search once and left behind; each takes a way between GPUs or nodes out of use.
_SLOWING = {
    "NCCL_P2P_DISABLE": "GPUs of a node copy through the host",
    "NCCL_SHM_DISABLE": "ranks of a node talk through the network",
    "NCCL_IB_DISABLE": "InfiniBand and RoCE stay unused",
}
_PLUGIN_FOLDERS = (
    "usr/lib",
    "usr/lib64",
    f"usr/lib/{platform.machine()}-linux-gnu",
    "usr/local/lib",
    "usr/local/nccl-plugin/lib",
    "opt/amazon/ofi-nccl/lib",
    "opt/aws-ofi-nccl/lib",
    "opt/hpcx/nccl_rdma_sharp_plugin/lib",
)


def examine(files: Files, environ: Mapping[str, str]) -> list[Finding]:
    plugins = _plugins(files, environ)
    return [_nccl(), _adapters(files), _plugin(files, environ, plugins), _variables(environ)]


def _nccl() -> Finding:
    """The wheel's; a container may bring its own, which only torch knows."""
    for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"):
        try:
            return SHEET.ok("NCCL", f"{metadata.version(name)} ({name})")
        except metadata.PackageNotFoundError:
            continue
    return SHEET.unknown("NCCL", "no wheel of it is installed; torch may bring its own")


def _adapters(files: Files) -> Finding:
    """InfiniBand, RoCE and Slingshot; without one, nodes talk over TCP."""
    ports = [
        (f"{name}/{port}", f"{_ADAPTERS}/{name}/ports/{port}")
        for name in files.names(_ADAPTERS)
        for port in files.names(f"{_ADAPTERS}/{name}/ports")
    ]
    active = [
        f"{name} {files.text(f'{path}/rate') or 'rate not told'}"
        for name, path in ports
        if files.text(f"{path}/state").endswith("ACTIVE")  # "4: ACTIVE"
    ]
    slingshot = files.names(_SLINGSHOT)
    if ports and not active and not slingshot:
        return SHEET.warning(
            "adapters",
            f"{counted(len(ports), 'InfiniBand port')}, and none is active",
            "Look at cables and the subnet manager (`ibstat`): NCCL falls back to TCP between nodes.",
        )
    told = active[:4] + (["…"] if len(active) > 4 else [])
    told += [f"Slingshot {', '.join(slingshot)}"] if slingshot else []
    return SHEET.ok("adapters", "; ".join(told) or "no InfiniBand or Slingshot: nodes would talk over TCP")


def _plugins(files: Files, environ: Mapping[str, str]) -> list[str]:
    folders = [folder.strip("/") for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    found = {
        f"/{folder}/{name}"
        for folder in dict.fromkeys([*folders, *_PLUGIN_FOLDERS])
        for name in files.names(folder)
        if name.startswith("libnccl-net") and ".so" in name
    }
    return sorted(found)


def _plugin(files: Files, environ: Mapping[str, str], found: list[str]) -> Finding:
    """NCCL knows InfiniBand by itself; Slingshot and EFA only through a plugin."""
    if found:
        return SHEET.ok("plugins", ", ".join(found[:3]) + (", …" if len(found) > 3 else ""))
    if files.names(_SLINGSHOT):
        return SHEET.warning(
            "plugins",
            "Slingshot is there, and no libnccl-net*.so is found: NCCL would use TCP over it",
            "Load the site's aws-ofi-nccl, and put its folder into LD_LIBRARY_PATH.",
        )
    if wanted := environ.get("NCCL_NET_PLUGIN", ""):
        return SHEET.warning(
            "plugins",
            f"NCCL_NET_PLUGIN={wanted}, and no libnccl-net*.so is found",
            "Put its folder into LD_LIBRARY_PATH, or unset NCCL_NET_PLUGIN.",
        )
    return SHEET.ok("plugins", "none found (no libnccl-net*.so)")


def _variables(environ: Mapping[str, str]) -> Finding:
    told = {name: value for name, value in safe_variables(environ).items() if name.startswith("NCCL_")}
    slowing = [name for name in _SLOWING if told.get(name, "").lower() not in _OFF]
    if slowing:
        words = "; ".join(f"{name}={told[name]}: {_SLOWING[name]}" for name in slowing)
        return SHEET.warning("variables", words, f"unset {' '.join(slowing)}")
    if told.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE"):
        return SHEET.warning(
            "variables", f"NCCL_DEBUG={told['NCCL_DEBUG']}: it writes while it measures", "unset NCCL_DEBUG"
        )
    shown = [f"{name}={value}" for name, value in sorted(told.items())]
    more = [f"and {len(shown) - _MOST_NAMES} more"] if len(shown) > _MOST_NAMES else []
    return SHEET.ok("variables", ", ".join(shown[:_MOST_NAMES] + more) or "no NCCL_* is set")
