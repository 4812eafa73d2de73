"""Damage at a place of a JSON document, written as error messages write places: `benchmarks["a"].runs[2].loss`."""

import copy
import json
import re
from typing import Any

ABSENT = object()
_STEP = re.compile(r'\[(\d+|"[^"]*")\]|\.?(\w+)')


def damaged(content: Any, place: str, value: object) -> Any:
    """Return a copy with another value at the place; `ABSENT` removes it."""
    copied = copy.deepcopy(content)
    *way, last = [json.loads(index) if index else name for index, name in _STEP.findall(place)]
    target = copied
    for step in way:
        target = target[step]
    if value is ABSENT:
        del target[last]
    else:
        target[last] = value
    return copied
