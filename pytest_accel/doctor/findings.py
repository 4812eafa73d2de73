"""Findings made short: a sheet knows its group, and the checks say only what differs."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_accel.doctor.finding import Finding, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """Where the findings of one group are written; `of` is the device or folder that they are about."""

    group: str
    of: str = ""

    def ok(self, subject: str, text: str) -> Finding:
        return Finding(group=self.group, of=self.of, subject=subject, text=text)

    def warning(self, subject: str, text: str, remedy: str) -> Finding:
        return Finding(
            group=self.group, of=self.of, subject=subject, text=text, level=Level.WARNING, remedy=remedy
        )

    def problem(self, subject: str, text: str, remedy: str) -> Finding:
        return Finding(
            group=self.group, of=self.of, subject=subject, text=text, level=Level.PROBLEM, remedy=remedy
        )

    def unknown(self, subject: str, why: str) -> Finding:
        """Nobody tells: not a warning, because there is nothing to do about it here."""
        return Finding(group=self.group, of=self.of, subject=subject, text=f"not told: {why}", known=False)

    def garbage(self, subject: str, where: str, said: str) -> Finding:
        """A sensor that speaks nonsense is not trusted in anything."""
        shown = said if len(said) <= 40 else f"{said[:39]}…"
        return Finding(
            group=self.group,
            of=self.of,
            subject=subject,
            text=f"{where} says {shown!r}, which makes no sense here",
            level=Level.WARNING,
            remedy="Not checked: look at it by hand.",
            known=False,
        )
