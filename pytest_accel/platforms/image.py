"""The name that an image was built with: neither Docker nor Kubernetes tells it to what runs inside."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

PATH = "etc/pytest-accel-image.json"  # below the root; deploy/containers writes it, anybody may
MOST_CHARACTERS = 10_000
FIELDS: Mapping[str, str] = {
    "name": "image_name",  # registry.example/bench/pytest-accel:0.1.0
    "revision": "image_revision",  # of what it was built from
    "base": "image_base",
}
# Commits and digests are told by their beginning, and a long word of hex would be taken for a credential.
_LONG_HEX = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,}\b")


def image_facts(text: str) -> dict[str, str]:
    """What the file says of its image; nothing where it is absent, and nothing of what is no text."""
    try:
        told = json.loads(text) if len(text) <= MOST_CHARACTERS else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(told, dict):
        return {}
    return {
        fact: _LONG_HEX.sub(r"\1", told[field].strip())
        for field, fact in FIELDS.items()
        if isinstance(told.get(field), str) and told[field].strip()
    }
