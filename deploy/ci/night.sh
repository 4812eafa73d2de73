#!/usr/bin/env bash
# One night of benchmarks on one machine: the same under GitHub Actions, GitLab, Slurm, Kubernetes and cron.
#
#   ACCEL_PLATFORM=gh200 ACCEL_STATE=/srv/accel bash night.sh [more arguments of pytest]
#
# It looks at the machine (pytest-accel doctor), measures, judges against the baseline, keeps the history, and writes
# what people read in the morning. Where nothing is recorded for the platform yet, the night records a baseline instead;
# the next one is judged against it. It leaves with pytest's exit status: 0 all well, 1 something regressed or failed,
# 4 wrong use. 2 with a line on stderr: a variable below is wrong.
#
#   ACCEL_PLATFORM      required: gh200, a100x4, ... (pytest-accel platform says what this machine is)
#   ACCEL_SUITES        files and folders of benchmarks, separated by blanks            (bench_suites)
#   ACCEL_SELECT        pytest's -m, where it is more than the platform: gh200 and not sweep
#   ACCEL_STATE         a folder that lasts from night to night                         (.accel)
#   ACCEL_BASELINES     the baselines; name the project's own folder to commit them     ($ACCEL_STATE/baselines)
#   ACCEL_HISTORY       the history of all nights                                       ($ACCEL_STATE/history.sqlite)
#   ACCEL_OUT           what tonight leaves; see below                                  ($ACCEL_STATE/nights/TIME)
#   ACCEL_RECORD        auto: record where nothing is recorded; always: record tonight, beside what there is;
#                       never: a missing baseline fails                                 (auto)
#   ACCEL_RUNS          runs of a recording, in fresh processes                         (5)
#   ACCEL_DOCTOR        show: a problem is shown; require: it ends the night; off       (show)
#   ACCEL_DATA          the root of real data sets; without it data is synthetic
#   ACCEL_PYTHON        the Python that has pytest-accel                  (.venv/bin/python if it is there, else python3)
#   ACCEL_LAUNCHER      words before it, for platforms of several nodes: srun --kill-on-bad-exit=0 --wait=300
#   ACCEL_PYTEST_ARGS   more arguments of pytest, separated by blanks; what has blanks itself is given to night.sh
#
# In ACCEL_OUT: doctor.txt, results.json, junit.xml, summary.md, metrics.txt, report.html (where plotly is installed),
# changes.txt (what the history says), status, and proposal.md where a baseline should move or somebody must decide.
# Where ACCEL_OUT is set, copies of history.sqlite and baselines/ too: they are for artifacts.
set -euo pipefail

say() { printf 'night: %s\n' "$*"; }
refuse() {
    printf 'night: %s\n' "$*" >&2
    exit 2
}
one_of() { # one_of NAME VALUE VALID...
    local name=$1 value=$2 valid
    shift 2
    for valid in "$@"; do [[ $value == "$valid" ]] && return; done
    refuse "$name: '$value' is not one of: $*."
}
folder() { # the absolute name of a folder, which is made
    if ! { mkdir -p -- "$1" && cd -- "$1" && pwd; }; then
        refuse "$1: no folder can be made there. Name another."
    fi
}

platform=${ACCEL_PLATFORM:-}
[[ -n $platform ]] || refuse "ACCEL_PLATFORM is not set. Name the platform, such as gh200: pytest-accel platform says what this machine is."
record=${ACCEL_RECORD:-auto} doctor=${ACCEL_DOCTOR:-show}
one_of ACCEL_RECORD "$record" auto always never
one_of ACCEL_DOCTOR "$doctor" show require off
# Lines are blanks too: `read` has then met no end of its own, and says so.
read -r -d '' -a suites <<<"${ACCEL_SUITES:-bench_suites}" || true
read -r -d '' -a launcher <<<"${ACCEL_LAUNCHER:-}" || true
read -r -d '' -a more <<<"${ACCEL_PYTEST_ARGS:-}" || true

python=${ACCEL_PYTHON:-}
if [[ -z $python ]]; then
    python=python3
    [[ -x .venv/bin/python ]] && python=$PWD/.venv/bin/python
fi
accel=("$python" -m pytest_accel.cli)
machine=$("${accel[@]}" platform --json) ||
    refuse "'$python' cannot run pytest-accel. Install it there (pip install pytest-accel), or name another with ACCEL_PYTHON."
# Baselines are kept by variant (a100-pcie, a CPU's model): the folder is asked for, not guessed. Platforms of several
# nodes are satisfied by no single one, and have no variants in their name.
{ read -r variant && read -r has_plotly; } < <("$python" -c '
import importlib.util, json, sys
print(json.load(sys.stdin)["satisfied"].get(sys.argv[1], sys.argv[1]))
print("" if importlib.util.find_spec("plotly") is None else "yes")' "$platform" <<<"$machine")

state=$(folder "${ACCEL_STATE:-.accel}")
baselines=$(folder "${ACCEL_BASELINES:-$state/baselines}")
history=${ACCEL_HISTORY:-$state/history.sqlite}
[[ $history == /* ]] || history=$PWD/$history
out=$(folder "${ACCEL_OUT:-$state/nights/$(date -u +%Y%m%dT%H%M%SZ)}")
# A folder that is used again must not tell of another night.
rm -rf -- "$out"/{doctor.txt,results.json,junit.xml,summary.md,metrics.txt,report.html,changes.txt,history.sqlite,baselines,proposal.md,status}

# --- the machine ------------------------------------------------------------------------------------------

if [[ $doctor != off ]]; then
    look=(doctor "--baselines=$baselines" ${ACCEL_DATA:+"--data=$ACCEL_DATA"})
    if ! "${accel[@]}" "${look[@]}" >"$out/doctor.txt" 2>&1; then
        cat -- "$out/doctor.txt"
        if [[ $doctor == require ]]; then
            echo 1 >"$out/status"
            say "nothing was measured: doctor found a problem, and ACCEL_DOCTOR=require. $out/doctor.txt"
            exit 1
        fi
        say "doctor found a problem; measured all the same."
    fi
fi

# --- what to ask of pytest --------------------------------------------------------------------------------

arguments=(
    "${suites[@]}" -m "${ACCEL_SELECT:-$platform}" --accel-require
    "--accel-baselines=$baselines" "--accel-history=$history"
    "--accel-json=$out/results.json" "--accel-summary=$out/summary.md" "--accel-metrics=$out/metrics.txt"
    "--junitxml=$out/junit.xml" ${ACCEL_DATA:+"--accel-data=$ACCEL_DATA"}
)
if [[ -n $has_plotly ]]; then
    arguments+=("--accel-report=$out/report.html")
else
    say "no report.html: plotly is not installed (pip install 'pytest-accel[report]')."
fi
if [[ $record == auto ]] && ! compgen -G "$baselines/$variant/*.json" >/dev/null; then
    say "nothing is recorded for $variant in $baselines: this night records, the next one judges."
    record=always
fi
case $record in
    always) arguments+=("--accel-record=${ACCEL_RUNS:-5}") ;;
    never) arguments+=(--accel-missing-baseline=fail) ;;
    *) ;; # auto, and there is one
esac

# --- measure ----------------------------------------------------------------------------------------------

# In the background, so that a time limit's or a deadline's SIGTERM reaches pytest at once: it then keeps and reports
# what it has measured, and so do the lines after it.
stopped='' status=0
"${launcher[@]}" "$python" -m pytest "${arguments[@]}" "${more[@]}" "$@" </dev/null &
child=$!
trap 'stopped=1; kill -TERM "$child" 2>/dev/null || true' TERM INT HUP
wait "$child" || status=$?
while kill -0 "$child" 2>/dev/null; do # a trap ends `wait`, not what it waits for
    status=0
    wait "$child" || status=$?
done
[[ -z $stopped ]] || say "stopped before its end; what was measured is kept."

# --- what people read in the morning ----------------------------------------------------------------------

# None of it changes the verdict, and none of it may be in the way of the rest.
if [[ -s $out/results.json ]]; then
    "${accel[@]}" propose --max-characters 60000 "$out/results.json" >"$out/proposal.md" ||
        say "no proposal could be written."
fi
[[ -s $out/proposal.md ]] || rm -f -- "$out/proposal.md"
if [[ -s $history ]]; then
    "${accel[@]}" history changes --history "$history" >"$out/changes.txt" 2>&1 || true
fi
if [[ -n ${ACCEL_OUT:-} && -s $history ]]; then
    # Through SQLite, which waits for another session that writes; a plain copy would not.
    "$python" -c '
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as kept, sqlite3.connect(sys.argv[2]) as copy:
    kept.backup(copy)' "$history" "$out/history.sqlite" || say "the history could not be copied to $out."
fi
if [[ -n ${ACCEL_OUT:-} && -d $baselines/$variant ]]; then
    { mkdir -p -- "$out/baselines" && cp -R -- "$baselines/$variant" "$out/baselines/"; } ||
        say "the baselines could not be copied to $out."
fi
echo "$status" >"$out/status"
[[ ! -e $out/proposal.md ]] || say "somebody should decide: $out/proposal.md"
say "exit status $status; all of it is in $out"
exit "$status"
