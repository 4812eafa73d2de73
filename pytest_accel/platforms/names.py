"""Platform names: a device, its number on a node, the number of nodes.

    platform = device [ "x" per-node ] [ "n" nodes ]

`gh200`, `a100x4`, `gh200x4n2`, `gh200n2` (one on each of two nodes). Counts start at 2, so that every
platform has exactly one name.

Device names contain x and n too (`rtx6000`, `mi300x`). The list of known devices makes a name unambiguous:
the longest known device that starts it is the device, and the rest must be counts. `mi300xx8` is eight
`mi300x`. The catalogue refuses a device whose name is another device with counts (`clashes`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

_DEVICE = re.compile(r"[a-z][a-z0-9_]*")
# Four digits after an x are a model number (rtx6000). The second order is a mistake with a remedy.
_COUNTS = re.compile(r"(?:x(\d{1,3}))?(?:n(\d{1,9}))?|n(?P<nodes>\d{1,9})x(?P<per_node>\d{1,3})")
_UNLISTED = r"(?P<device>[a-z][a-z0-9_]*?)(?P<counts>(?:x\d{1,3})?(?:n\d{1,9})?|n\d{1,9}x\d{1,3})"


class PlatformNameError(ValueError):
    """The text is not the name of a platform; the message says what to write instead."""


class UnknownDeviceError(PlatformNameError):
    """The name is well formed, but none of the known devices starts it."""

    def __init__(self, text: str, device: str, counts: str) -> None:
        super().__init__(f"platform {text!r}: there is no device {device!r}")
        self.device = device
        self.counts = counts  # as written, such as "x4n2": a suggestion keeps it


@dataclass(frozen=True, slots=True)
class PlatformName:
    """A hardware configuration by name; `str()` gives the one canonical spelling."""

    device: str
    per_node: int = 1
    nodes: int = 1

    def __str__(self) -> str:
        return self.device + self.counts

    @property
    def counts(self) -> str:
        per_node = f"x{self.per_node}" if self.per_node > 1 else ""
        return per_node + (f"n{self.nodes}" if self.nodes > 1 else "")

    @property
    def devices(self) -> int:
        """How many devices in all."""
        return self.per_node * self.nodes


def is_device_name(text: str) -> bool:
    """Whether the text can name a device: an identifier in lower case, so that it can be a marker."""
    return _DEVICE.fullmatch(text) is not None


def parse(text: str, devices: Collection[str] | None = None) -> PlatformName:
    """Parse a platform's name; `devices` are the known ones, which make the reading unambiguous.

    Raises `PlatformNameError`, or its `UnknownDeviceError` where `devices` has none that fits.
    """
    plain = re.sub(r"[\s-]+", "", text.lower())
    if not is_device_name(plain):
        raise PlatformNameError(
            f"platform {text!r}: a name starts with a letter, and has letters, digits and underscores, such as a100x4."
        )
    device, counts = _split(plain, devices)
    per_node, nodes = (int(digits or 1) or 1 for digits in _digits(counts))
    name = PlatformName(device, per_node, nodes)
    if str(name) != text:
        raise PlatformNameError(f"platform {text!r} is not spelled as the platform is. Write {name}.")
    return name


def _digits(text: str) -> tuple[str | None, str | None]:
    """Return the digits of `x4n2`: per node and nodes; None where one is left out."""
    match = _COUNTS.fullmatch(text)
    assert match is not None, text
    return match[1] or match["per_node"], match[2] or match["nodes"]


def clashes(devices: Iterable[str]) -> list[tuple[str, str]]:
    """Return pairs (device, other) where the device's own name reads as counts of the other."""
    names = sorted(set(devices))
    return [
        (name, other)
        for name in names
        for other in names
        if name != other and name.startswith(other) and _COUNTS.fullmatch(name, len(other))
    ]


def closest(name: str, candidates: Iterable[str], limit: int = 3) -> list[str]:
    """Return the candidates most similar to `name`, best first."""
    import difflib  # only an error needs it

    return difflib.get_close_matches(name.lower(), list(candidates), n=limit, cutoff=0.6)


def _split(text: str, devices: Collection[str] | None) -> tuple[str, str]:
    for length in range(len(text), 0, -1):
        if devices is not None and text[:length] in devices and _COUNTS.fullmatch(text, length):
            return text[:length], text[length:]
    unlisted = re.fullmatch(_UNLISTED, text)
    assert unlisted is not None, text  # its counts are optional
    if devices is not None:
        raise UnknownDeviceError(text, unlisted["device"], unlisted["counts"])
    return unlisted["device"], unlisted["counts"]
