"""How a benchmark of a session is measured once more: the words for pytest, from those that the session was given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_accel.stats.run import WHEEL_SUITES, in_wheel

# Of a session's options, those that make another measurement of the same benchmark, or keep it elsewhere.
_KEPT_WITH_VALUE = (
    *(f"--accel-{name}" for name in ("baselines", "history", "data", "budget", "warmup")),
    *(f"--accel-{name}" for name in ("threads", "timeout", "rendezvous", "bind", "compile", "gate")),
    *("-c", "--config-file", "-o", "--override-ini", "-p", "--rootdir", "--import-mode"),
)
_KEPT_ALONE = ("--accel-require",)


def naming(ids: Sequence[str], command: Sequence[str]) -> list[str]:
    """Node ids; of suites that came with the wheel, the names by which pytest finds them there."""
    of_wheel = "--pyargs" in command and any(word.startswith(WHEEL_SUITES) for word in command)
    return ["--pyargs", *map(in_wheel, ids)] if of_wheel else list(ids)


def kept_options(command: Sequence[str]) -> list[str]:
    """The session's options that belong to the measurement, as `--name=value` where they have one."""
    kept: list[str] = []
    for name, value in with_values(command):
        if name in _KEPT_ALONE:
            kept.append(name)
        elif name in _KEPT_WITH_VALUE and value:
            kept += [f"{name}={value}"] if name.startswith("--") else [name, value]
    return kept


def with_values(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each option with what may be its value: joined by `=`, or the next word."""
    for index, word in enumerate(command):
        name, joined, value = word.partition("=")
        if word.startswith("-"):
            yield name, value if joined else "".join(command[index + 1 : index + 2])
