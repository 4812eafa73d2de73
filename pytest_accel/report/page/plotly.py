"""plotly.js for the page: taken from the installed package `plotly`, packed so that it costs little until it is used."""

from __future__ import annotations

import base64
import gzip
import hashlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

INSTALL = "Install it with: pip install 'pytest-accel[report]'"


class ReportError(ValueError):
    """A report that cannot be made: why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A script that the page unpacks itself."""

    base64: str  # of its gzip
    sha256: str  # of the script as it is run, as a content security policy names it


def read_plotly_js() -> bytes:
    """The library as its package ships it. The package itself is not imported: that takes a second."""
    spec = find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        raise ReportError(f"The report draws with plotly, which is not installed. {INSTALL}")
    path = Path(next(iter(spec.submodule_search_locations))) / "package_data" / "plotly.min.js"
    try:
        return path.read_bytes()
    except OSError as error:
        raise ReportError(
            f"{path}: the plotly that is installed has no script ({error.strerror}). {INSTALL}"
        ) from None


def packed(script: bytes) -> Packed:
    """The same bytes for the same script: a report can be compared with another."""
    text = script.decode("utf-8").replace("\r\n", "\n").encode("utf-8")  # as a browser hashes what it runs
    return Packed(
        base64=base64.b64encode(gzip.compress(text, compresslevel=9, mtime=0)).decode("ascii"),
        sha256=policy_hash(text),
    )


def policy_hash(script: bytes) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script).digest()).decode("ascii")
