"""What pytest's own reports say, in a rank as in its session."""

from __future__ import annotations

import pytest


def is_strict_xpass(report: pytest.TestReport) -> bool:
    """Passed, and reported as failed because `xfail(strict=True)` expected otherwise."""
    return report.failed and str(report.longrepr or "").startswith("[XPASS(strict)]")


def without_traces(sections: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """What was captured, less torch's log of its own compiling: thousands of empty lines above the one that matters."""
    kept = [
        (title, "\n".join(line for line in text.splitlines() if " torch.__trace:" not in line))
        if title.startswith("Captured log")
        else (title, text)
        for title, text in sections
    ]
    return [(title, text) for title, text in kept if text]
