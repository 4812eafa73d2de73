"""Which of two machines is faster, and is that more than noise? From two files of --accel-json, and nothing else.

python faster.py A.json B.json
"""

import json
import sys
from pathlib import Path
from statistics import median


def main(first, second):
    a, b = read(first), read(second)
    print("what differs:", ", ".join(differences(a, b)) or "nothing recorded")
    print(f"{'benchmark':28}{'A':>9}{'B':>9}  {'unit':10}{'B over A':>9}  of any two runs")
    others = {result["benchmark"]: result for result in b["results"]}
    for result in a["results"]:
        other = others.get(result["benchmark"], {})
        if not rates(result) or not rates(other):
            print(f"{name_of(result):28} only one machine has measured it")
        elif result.get("configuration") != other.get("configuration"):
            print(f"{name_of(result):28} another configuration: not the same work")
        else:
            print(f"{name_of(result):28}{row(rates(result), rates(other), result['unit'])}")


def read(path):
    session = json.loads(Path(path).read_text(encoding="utf-8"))
    if session.get("kind") != "pytest-accel results" or session.get("schema_version") != 2:
        sys.exit(f"{path}: not what `pytest --accel-json` writes, in version 2 of its schema.")
    return session


def name_of(result):
    return result["benchmark"].partition("::")[2]


def rates(result):
    """Work a second, of every run: a run is one process, and so one observation, however many rounds it timed."""
    return [result["work_per_step"] / median(run["rounds_s"]) for run in result.get("runs", [])]


def row(a, b, unit):
    least, most = min(b) / max(a), max(b) / min(a)
    answer = "faster" if least > 1 else "slower" if most < 1 else "unresolved"
    ratio = f"{median(b) / median(a):9.2f}  {least:.2f} to {most:.2f}: {answer}"
    return f"{median(a):9.4g}{median(b):9.4g}  {unit + '/s':10}{ratio}"


def differences(a, b):
    """Facts of the environments that are not the same: the machine's identity first, then what may explain the rest."""
    for kind in ("identity", "context"):
        here, there = facts(a, kind), facts(b, kind)
        for fact in sorted(here.keys() | there.keys()):
            if here.get(fact) != there.get(fact):
                yield f"{fact} {here.get(fact, 'none')} -> {there.get(fact, 'none')}"


def facts(session, kind):
    return {name: value for each in session["environments"].values() for name, value in each[kind].items()}


if __name__ == "__main__":
    main(*sys.argv[1:3])
