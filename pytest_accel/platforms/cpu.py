"""The processor of this machine: its model, and the cores that this process may use."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_accel.platforms.machine import Cpu

if TYPE_CHECKING:
    from collections.abc import Mapping

CPUINFO = Path("/proc/cpuinfo")
SOC_ID = Path("/sys/devices/soc0/soc_id")

# Arm processors report numbers, not names: implementer, part (Arm's MIDR_EL1, as in util-linux's lscpu).
ARM_PARTS = {
    ("0x41", "0xd0c"): "Arm Neoverse-N1",
    ("0x41", "0xd40"): "Arm Neoverse-V1",
    ("0x41", "0xd49"): "Arm Neoverse-N2",
    ("0x41", "0xd4f"): "Arm Neoverse-V2",
    ("0x41", "0xd84"): "Arm Neoverse-V3",
    ("0x41", "0xd8e"): "Arm Neoverse-N3",
    ("0x46", "0x001"): "Fujitsu A64FX",
    ("0x48", "0xd01"): "HiSilicon Kunpeng-920",
    ("0xc0", "0xac3"): "Ampere-1",
    ("0xc0", "0xac4"): "Ampere-1a",
}
# Grace has the cores of Graviton4 and Axion; the manufacturer's id of the chip tells (as DCGM looks for it).
SOC_NAMES = {"jep106:036b:0241": "NVIDIA Grace"}


def find(*, cpuinfo: Path = CPUINFO, soc_id: Path = SOC_ID) -> Cpu:
    """The processor that this process runs on."""
    return describe(_read(cpuinfo), available_cores(), _read(soc_id))


def available_cores() -> int:
    """Cores that the scheduler may put this process on; a job's cpuset is part of it."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def describe(cpuinfo: str, cores: int, soc_id: str = "") -> Cpu:
    """A processor from the text of /proc/cpuinfo, on x86 and on Arm."""
    fields = _first_processor(cpuinfo)
    if "CPU part" in fields:
        implementer, part = fields.get("CPU implementer", "?"), fields["CPU part"]
        name = (
            SOC_NAMES.get(soc_id.strip()) or ARM_PARTS.get((implementer, part)) or f"Arm {implementer} {part}"
        )
        model = f"{implementer.removeprefix('0x')}-{part.removeprefix('0x')}"
        stepping = f"r{_number(fields.get('CPU variant'))}p{_number(fields.get('CPU revision'))}"
    elif "cpu family" in fields:
        name = tidy(fields.get("model name", fields.get("vendor_id", "")))
        model = f"{fields['cpu family']}-{fields.get('model', '?')}"
        stepping = fields.get("stepping", "")
    else:
        name, model, stepping = _fallback_name(fields), "", ""
    return Cpu(name=name, model=model, slug=slug(name, model), cores=cores, stepping=stepping)


def tidy(model_name: str) -> str:
    """A model's name without trademarks, clock and core count, which virtual machines make up."""
    name = re.sub(r"\((R|TM|C)\)", "", model_name, flags=re.IGNORECASE)
    name = re.sub(r"\s@.*|\b\d+-Core\b|\bCPU\b", "", name)
    return re.sub(r"\s+", " ", name).strip()


def slug(name: str, model: str) -> str:
    """Part of a directory's name: `intel-xeon-processor-6-207`. Stepping is left out: it changes no class of speed."""
    return re.sub(r"[^a-z0-9]+", "-", f"{name} {model}".lower()).strip("-")


def _first_processor(cpuinfo: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in cpuinfo.split("\n\n", 1)[0].splitlines())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def _number(text: str | None) -> int:
    try:
        return int(text or "0", 0)
    except ValueError:
        return 0


def _fallback_name(fields: Mapping[str, str]) -> str:
    import platform  # rare: neither x86 nor Arm, or no /proc

    return tidy(fields.get("model name") or fields.get("cpu") or platform.processor() or platform.machine())


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
