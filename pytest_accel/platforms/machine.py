"""What this machine is, as plain values, and which platforms it can therefore be."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_accel.platforms.catalogue import Catalogue, Variant, load_catalogue
from pytest_accel.platforms.names import PlatformName
from pytest_accel.stats.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator that this process may use; what its driver says, and what the catalogue makes of it."""

    index: int  # as the framework counts it: cuda:0 is the first visible one
    name: str
    vendor: str = "nvidia"
    uuid: str = ""
    memory_bytes: int | None = None
    mig: str | None = None  # profile of a MIG slice, such as 1g.10gb
    key: str | None = None  # of the catalogue; mig-<profile> for a slice; None for an unknown device
    variant: Variant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The processor: which model, and how many of its cores this process may run on."""

    name: str
    model: str  # what tells models of one name apart: family-model on x86, implementer-part on Arm
    slug: str  # for a directory's name
    cores: int
    stepping: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Everything detected; `problems` are why something may have gone unseen."""

    cpu: Cpu
    devices: tuple[Device, ...] = ()
    nodes: int = 1
    problems: tuple[str, ...] = ()

    def devices_for(self, platform: PlatformName) -> tuple[Device, ...]:
        """The devices of this node that the platform uses, the first ones; none for `cpu`."""
        fitting = [device for device in self.devices if device.key == platform.device]
        return tuple(fitting[: platform.per_node])

    def satisfies(self, platform: PlatformName) -> bool:
        return self.nodes >= platform.nodes and self._available(platform.device) >= platform.per_node

    def satisfied(self, catalogue: Catalogue) -> list[str]:
        """The markers that this machine can run."""
        return [name for name in catalogue.names() if self.satisfies(catalogue.parse(name))]

    def missing(
        self, wanted: PlatformName | Iterable[PlatformName], catalogue: Catalogue | None = None
    ) -> str:
        """Why none of the wanted platforms is satisfied, as the reason of a skip; empty if one is."""
        platforms = [wanted] if isinstance(wanted, PlatformName) else list(wanted)
        if not platforms or any(self.satisfies(platform) for platform in platforms):
            return ""
        catalogue = catalogue or load_catalogue()
        needs = " or ".join(dict.fromkeys(_need(platform, catalogue) for platform in platforms))
        # Nodes are what is missing only where the devices of one node are there.
        short_of_nodes = any(self._available(each.device) >= each.per_node for each in platforms)
        if short_of_nodes:
            has = f"this process sees {counted(self.nodes, 'node')}"
            has += f" with {self.summary()}" if len(platforms) > 1 else ""
            has += ": start it with torchrun, srun or pytest-accel launch"
        elif all(platform.device == "cpu" for platform in platforms):
            has = f"this process may use {counted(self.cpu.cores, 'core')} of {self.cpu.name}"
        else:
            has = f"this machine has {self.summary()}"
        return f"needs {needs}; {has}"

    def summary(self) -> str:
        """The devices in words: `4 x NVIDIA A100-SXM4-40GB`, or that there is none and why."""
        if self.devices:
            counts = Counter(device.name for device in self.devices)
            return ", ".join(f"{count} x {name}" for name, count in counts.items())
        why = f" ({'; '.join(self.problems)})" if self.problems else ""
        return f"no accelerator{why}, only CPU {self.cpu.name}"

    def disk_name(self, platform: PlatformName) -> str:
        """The directory of the platform's baselines: the name, and which variant of the hardware it is."""
        if not self.satisfies(platform):
            raise ValueError(f"{platform} has no baselines here: {self.missing(platform)}")
        if platform.device == "cpu":
            return f"{platform}-{self.cpu.slug}"
        keys = {device.variant.key for device in self.devices_for(platform) if device.variant is not None}
        # Mixed variants on one node are a platform of their own: no single one's baseline fits them.
        return "-".join([str(platform), *filter(None, sorted(keys))])

    def _available(self, device: str) -> int:
        if device == "cpu":
            return self.cpu.cores
        return sum(1 for each in self.devices if each.key == device)


def _need(platform: PlatformName, catalogue: Catalogue) -> str:
    if platform.device == "cpu":
        each = counted(platform.per_node, "CPU core")
    else:
        kind = catalogue.devices.get(platform.device)
        each = f"{platform.per_node} x {kind.title if kind else platform.device}"
    return each if platform.nodes == 1 else f"{platform.nodes} nodes of {each}"
