"""Fuzzing of every reader: damaged inputs end in an error of ours, and what is accepted can be shown.

make fuzz                                # 60 s, seeds counted from the clock
make fuzz ARGS="--seconds 600 --seed 7"  # the inputs of seed 7, and those of the seeds after it
"""

import argparse
import copy
import json
import random
import socket
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pytest_accel.commands import results as commands
from pytest_accel.distributed.group import Order, PendingOrder
from pytest_accel.distributed.launcher import launcher_rank_from
from pytest_accel.distributed.messages import Connection, ConnectionLost
from pytest_accel.platforms.catalogue import load_catalogue, project_table
from pytest_accel.report.baselines import ShownBenchmark, shown, shown_json
from pytest_accel.report.comparison import render as render_comparison
from pytest_accel.report.history import overview, series_table, sessions_table
from pytest_accel.report.markdown import render_proposal, render_summary
from pytest_accel.report.page import render_page
from pytest_accel.session.worker_process import ItemResult
from pytest_accel.stats.baseline_quality import platform_prior
from pytest_accel.stats.causes import Cause
from pytest_accel.storage import baselines, results
from pytest_accel.storage.codec import FormatError, decode, encode
from pytest_accel.storage.comparison import compare, find_source
from pytest_accel.storage.files import StorageError
from pytest_accel.storage.history import History
from pytest_accel.storage.references import read_expectations, read_study
from tests.support.kernels import lost_attention
from tests.support.results import make_session

ROOT = Path(__file__).parents[1]
NASTY = [
    *(None, True, False, 0, -1, 1, 2, 1e300, 1e-300, -1e300, 1e10, 0.5, 10**18, -(10**400), 2**63),
    *("", "0", "nan", "x" * 5000, "\x00", "\ud800", "\u202e", "\x1b[31m"),
    *("../..", "9" * 5000, "2026-99-99", "a::b"),
    *([], [[]], {}, {"": {}}, [0] * 50, ["a", 1, None], float("nan"), float("inf"), {"schema_version": 1}),
]
LINES = [
    *("{", "[" * 3000, '"', "\\u12", "1e999", "9" * 400, "NaN", "\x00"),
    *("\ufeff", "[[a]]", "a.b.c = {}", "= 1", "'''"),
]


def mutated(source: random.Random, text: str) -> Any:
    """Return the JSON values of a text with some of their nodes replaced, removed, doubled or moved."""
    top = json.loads(text)
    for _ in range(source.choice((1, 1, 1, 2, 3))):
        holder, key = _place(source, top)
        if holder is None:
            return source.choice(NASTY)
        match source.randrange(6):
            case 0 | 1 | 2:
                holder[key] = copy.deepcopy(source.choice(NASTY))
            case 3:
                del holder[key]
            case 4:
                other, name = _place(source, top)
                holder[key] = copy.deepcopy(other[name])
            case 5 if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(holder[key]))
            case _:
                held = holder[key]
                is_number = type(held) in (int, float) and abs(held) < 1e250
                holder[key] = held * source.choice((-1, 1e30, 1e-30)) if is_number else [held]
    return top


def _place(source: random.Random, value: Any) -> tuple[Any, Any]:
    """Return a random node's holder and key: one step down from the top, or more."""
    holder, key = None, None
    while isinstance(value, dict | list) and value and (holder is None or source.random() < 0.85):
        holder, key = (
            value,
            source.choice(list(value)) if isinstance(value, dict) else source.randrange(len(value)),
        )
        value = holder[key]
    return holder, key


def damaged(source: random.Random, text: str) -> str:
    """Return a text with a part cut out, doubled or replaced."""
    first, last = sorted(source.randrange(len(text) + 1) for _ in range(2))
    last = min(last, first + source.choice((0, 1, 10, 1000)))
    put = source.choice(["", text[first:last] * 2, source.choice(LINES), chr(source.randrange(1, 0x3000))])
    return text[:first] + put + text[last:]


def json_text(source: random.Random, text: str) -> str:
    text = json.dumps(mutated(source, text))
    return damaged(source, text) if source.random() < 0.2 else text


# --- readers: each reads one damaged input and raises only what users are shown -----------------------


@cache
def sample(name: str) -> str:
    if name == "results":
        cause = Cause(kind="kernels", text="a", explained=0.1)
        lost = replace(lost_attention(), causes=(cause,))
        return results.render(make_session([lost, *make_session().results[::8]]))
    if name == "baselines":
        found = json.loads((ROOT / "baselines/h200/inference.json").read_text())
        found["benchmarks"] = dict(list(found["benchmarks"].items())[:2])
        for entry in found["benchmarks"].values():
            entry["runs"] = entry["runs"][:2]
        return json.dumps(found)
    if name == "published":
        return (ROOT / "baselines/published/caraml.json").read_text()
    assert name == "answer"
    run = {"session": "s", "rounds_s": [0.1] * 8, "steps_per_round": 3}
    measurement = {"run": run, "work_per_step": 4, "unit": "images"}
    return json.dumps(
        {"answer": {"outcome": "passed", "measurement": measurement}, "phase": "x", "remaining_s": 3.0}
    )


def read_results(source: random.Random, _folder: Path) -> None:
    session = results.parse(json_text(source, sample("results")), "results.json")
    render_summary(session)
    render_proposal(session)
    for result in session.results:
        commands.explained(result)
    results.parse(results.render(session), "again")
    if source.random() < 0.1:
        render_page(session, plotly_js=b"")


def read_baselines(source: random.Random, folder: Path) -> None:
    file = baselines.parse(json_text(source, sample("baselines")), "detection.json")
    prior = platform_prior([entry.runs for entry in file.benchmarks.values()])
    stored = [
        ShownBenchmark(file=file, key=key, entry=entry, prior=prior) for key, entry in file.benchmarks.items()
    ]
    if stored:
        shown(stored)
        json.dumps(shown_json(stored), allow_nan=False)
    baselines.parse(baselines.render(file), "again")
    if source.random() < 0.1:
        path = folder / "compared.json"
        path.write_text(baselines.render(file))
        sides = [*find_source(str(path), folder), *find_source(str(_other(folder)), folder)]
        for form in ("table", "markdown", "json"):
            render_comparison(compare(sides), form)


def _other(folder: Path) -> Path:
    path = folder / "other.json"
    if not path.exists():
        path.write_text(sample("baselines"))
    return path


def read_published(source: random.Random, folder: Path) -> None:
    path = folder / "study.json"
    path.write_text(json_text(source, sample("published")), errors="surrogatepass")
    read_study(path)


def read_project(source: random.Random, folder: Path) -> None:
    text = """
[tool.pytest-accel.platforms.my-gpu]
patterns = ["My GPU.*"]
memory_gb = 80
shapes = ["my-gpux4"]
peak_tflops = { bf16 = 100.0 }
[tool.pytest-accel.references."test_a.py::test_b*"]
gh200 = [4200, -0.05, 0.10, "images/s"]
"""
    path = folder / "pyproject.toml"
    for _ in range(source.randrange(1, 3)):
        text = damaged(source, text)
    path.write_text(text, errors="surrogatepass")
    if tables := project_table(path):
        load_catalogue(tables).names()
    read_expectations(path)


def read_launcher(source: random.Random, _folder: Path) -> None:
    torchrun = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    torchrun |= {"MASTER_ADDR": "a", "MASTER_PORT": "1234", "TORCHELASTIC_RUN_ID": "x"}
    slurm = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2", "SLURM_JOB_ID": "7"}
    slurm |= {"SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "gpu-a[01-02,07],login"}
    slurm |= {"SLURM_PROCID": "1", "SLURM_NODEID": "0"}
    environ = dict(source.choice((torchrun, slurm)))
    for name in source.sample(sorted(environ), 2):
        environ[name] = str(source.choice(NASTY)) if source.random() < 0.5 else damaged(source, environ[name])
    launcher_rank_from(environ)


def read_message(source: random.Random, _folder: Path) -> None:
    """Read what a rank sends: bytes, messages, answers; and the orders that it gets."""
    message: Any = mutated(source, sample("answer"))
    line = json.dumps(message) if source.random() < 0.8 else damaged(source, json.dumps(message))
    ours, theirs = socket.socketpair()
    with theirs, patch("pytest_accel.distributed.messages._enable_keepalive"):
        connection = Connection(ours)
        theirs.sendall(line.encode("utf-8", "surrogatepass") + b"\n")
        try:
            message = connection.receive()
        finally:
            connection.close()
    started = RanksThatEnded()
    pending = PendingOrder({0: connection}, started, timeout_s=0.0)
    pending._take(0, message, lambda *_: None)
    answer = pending.result({})
    with suppress(FormatError):
        decode(ItemResult, answer.ranks[0].payload)
    decode(Order, mutated(source, json.dumps(encode(Order(node_id="a", platform="h200", session="b")))))


class RanksThatEnded:
    def ended(self) -> dict[int, str]:
        return {}


def read_history(source: random.Random, folder: Path) -> None:
    history = History(folder / "history.sqlite")
    if not history.path.exists():
        session = results.parse(sample("results"), "r")
        history.append(session)
    with sqlite3.connect(history.path) as connection:
        kept = {
            table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in ("sessions", "points")
        }
        table = source.choice(("sessions", "points"))
        names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        name = source.choice(names)
        (held,) = connection.execute(f"SELECT {name} FROM {table}").fetchone()
        value = source.choice([each for each in NASTY if isinstance(each, str | float | bytes | None)])
        if isinstance(held, str) and source.random() < 0.7:
            value = damaged(source, held)
        with suppress(sqlite3.IntegrityError, UnicodeEncodeError, OverflowError):
            connection.execute(f"UPDATE {table} SET {name} = ?", (value,))
    try:
        sessions_table(history.sessions())
        for platform, key in history.benchmarks():
            points = history.series(key, platform)
            if points:
                overview("t", points)
                series_table(points)
        render_summary(history.latest())
    finally:
        with sqlite3.connect(history.path) as connection:
            for name_, rows in kept.items():
                connection.execute(f"DELETE FROM {name_}")
                connection.executemany(f"INSERT INTO {name_} VALUES ({','.join('?' * len(rows[0]))})", rows)


READERS: dict[str, tuple[Callable[[random.Random, Path], None], tuple[type[Exception], ...]]] = {
    "results": (read_results, (StorageError,)),
    "baselines": (read_baselines, (StorageError,)),
    "published": (read_published, (StorageError,)),
    "project": (read_project, (ValueError,)),
    "launcher": (read_launcher, (ValueError,)),
    "message": (read_message, (FormatError, ConnectionLost)),
    "history": (read_history, (StorageError,)),
}


def run(seed: int, name: str, folder: Path) -> BaseException | None:
    """Read the input of a seed; return an exception that is no error for users."""
    read, expected = READERS[name]
    try:
        read(random.Random(f"{name}{seed}"), folder)
    except expected as error:
        # One of Python's own has no remedy; ours are of our classes, or end with one.
        ours = type(error).__module__.startswith("pytest_accel") or str(error).endswith(".")
        return None if ours else error
    except Exception as error:  # noqa: BLE001 - what is looked for
        return error
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()) * 1000)
    parser.add_argument("--reader", choices=READERS, action="append")
    args = parser.parse_args()
    sys.stderr = sys.stdout
    names, counts, found = args.reader or list(READERS), Counter[str](), {}
    end, seed = time.monotonic() + args.seconds, args.seed
    # Contents that were changed by hand are refused before anything else; here they are to get further.
    unchecked = patch.object(baselines, "check_keys", lambda _: None)
    with tempfile.TemporaryDirectory() as folder, unchecked:
        while time.monotonic() < end:
            for name in names:
                turn = time.monotonic() + 0.2
                while time.monotonic() < turn:
                    error = run(seed, name, Path(folder))
                    counts[name] += 1
                    seed += 1
                    if error is not None:
                        last = traceback.extract_tb(error.__traceback__)[-1]
                        found.setdefault(
                            (name, type(error).__name__, last.filename, last.lineno), (seed - 1, error)
                        )
    for (name, *_), (at, error) in found.items():
        print(f"FAULT  make fuzz ARGS='--seconds 0.001 --reader {name} --seed {at}'")
        traceback.print_exception(error, file=sys.stdout)
    print(f"{sum(counts.values())} inputs from seed {args.seed}: {dict(counts)}; {len(found)} faults")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
