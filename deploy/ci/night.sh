#!/usr/bin/env bash
# One night of benchmarks on one machine: the same under GitHub Actions, GitLab, Slurm, Kubernetes and cron.
#
#   ACCEL_PLATFORM=gh200 ACCEL_STATE=/srv/accel bash night.sh [more arguments of pytest]
#
# It looks at the machine (pytest-accel doctor), measures, judges against the baseline, keeps the history, and writes
# what people read in the morning. Where nothing is recorded for the platform yet, the night records a baseline instead;
# the next one is judged against it. A recording that was interrupted is completed by the next night.
#
# It leaves with pytest's exit status: 0 all well; 1 something regressed or failed, or doctor found a problem and nothing
# was measured; 2 interrupted; 3 an error inside pytest; 4 wrong use of pytest; 5 nothing was selected. 2 with a line on
# stderr is also: a variable below is wrong, or another night of the platform is still running.
#
#   ACCEL_PLATFORM      required: gh200, a100x4, ... (pytest-accel doctor says what this machine is)
#   ACCEL_SUITES        files and folders of benchmarks, separated by blanks            (bench_suites)
#   ACCEL_SELECT        pytest's -m. The platform alone selects every sweep too: hundreds of benchmarks
#                                                                                       ($ACCEL_PLATFORM and not sweep)
#   ACCEL_STATE         a folder that lasts from night to night                         (.accel)
#   ACCEL_BASELINES     the baselines; name the project's own folder to commit them     ($ACCEL_STATE/baselines)
#   ACCEL_HISTORY       the history of all nights                                       ($ACCEL_STATE/history.sqlite)
#   ACCEL_OUT           what tonight leaves; see below                                  ($ACCEL_STATE/nights/TIME-PLATFORM)
#   ACCEL_RECORD        auto: record where nothing is recorded; always: record tonight, beside what there is;
#                       never: a missing baseline fails                                 (auto)
#   ACCEL_RUNS          runs of a recording, in fresh processes                         (5)
#   ACCEL_DOCTOR        show: a problem is shown, and ends a night that would record; require: it ends every night;
#                       off: no check                                                   (show)
#   ACCEL_COMPILE       so many benchmarks are compiled side by side before anything is measured, which a first night and
#                       one after an upgrade gain from: each needs memory of the device      (0: each as it is measured)
#   ACCEL_DATA          the root of real data sets; without it data is synthetic
#   ACCEL_PYTHON        the Python that has pytest-accel                  (.venv/bin/python if it is there, else python3)
#   ACCEL_LAUNCHER      words before it, for platforms of several nodes: srun --kill-on-bad-exit=0 --wait=300
#   ACCEL_PYTEST_ARGS   more arguments of pytest, separated by blanks; what has blanks itself is given to night.sh
#
# In ACCEL_OUT: doctor.txt, results.json, junit.xml, summary.md, report.html (where plotly and jinja2 are),
# changes.txt (what the history says), status, and proposal.md where somebody must decide about a baseline or mend it.
# Where ACCEL_OUT is set, copies of history.sqlite and baselines/ too: they are for artifacts.
# In ACCEL_STATE, beside the above: lock-PLATFORM, held while a night runs; recording-PLATFORM, there until a first
# recording has come to its end; compiled, what torch compiled (TORCHINDUCTOR_CACHE_DIR names another folder for it).
set -euo pipefail
unset CDPATH # with it, `cd` would look elsewhere, and say so

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
    if ! { mkdir -p -- "$1" && cd -- "$1" && pwd -P; }; then
        refuse "$1: no folder can be made there. Name another."
    fi
}

platform=${ACCEL_PLATFORM:-}
[[ -n $platform ]] || refuse "ACCEL_PLATFORM is not set. Name the platform, such as gh200: pytest-accel doctor says what this machine is."
record=${ACCEL_RECORD:-auto} doctor=${ACCEL_DOCTOR:-show}
one_of ACCEL_RECORD "$record" auto always never
one_of ACCEL_DOCTOR "$doctor" show require off
compile=${ACCEL_COMPILE:-0} runs=${ACCEL_RUNS:-5} # bash computes with them: what is no number might run a command
[[ $compile =~ ^[0-9]{1,3}$ ]] || refuse "ACCEL_COMPILE: '$compile' is not a number. Write how many benchmarks to compile side by side, such as 8."
[[ $runs =~ ^([1-9]|10)$ ]] || refuse "ACCEL_RUNS: '$runs' is not a number of runs. Write one from 1 to 10, such as 5."
# Lines are blanks too: `read` has then met no end of its own, and says so.
read -r -d '' -a suites <<<"${ACCEL_SUITES:-bench_suites}" || true
read -r -d '' -a launcher <<<"${ACCEL_LAUNCHER:-}" || true
read -r -d '' -a more <<<"${ACCEL_PYTEST_ARGS:-}" || true

python=${ACCEL_PYTHON:-}
if [[ -z $python ]]; then
    python=python3
    [[ -x .venv/bin/python ]] && python=$PWD/.venv/bin/python
fi
accel=("$python" -m pytest_accel)
machine=$("${accel[@]}" doctor --json) || true # 1 where it found a problem
[[ $machine == '{'* ]] ||
    refuse "'$python' cannot run pytest-accel. Install it there (pip install CHECKOUT), or name another with ACCEL_PYTHON."
# Baselines are kept by variant (a100-pcie, a CPU's model): the folder is asked for, not guessed. Platforms of several
# nodes are satisfied by no single one, and have no variants in their name.
{ read -r variant && read -r unreported; } < <("$python" -c '
import importlib.util, json, sys
print(json.load(sys.stdin)["platforms"].get(sys.argv[1], sys.argv[1]))
print(*(name for name in ("plotly", "jinja2") if importlib.util.find_spec(name) is None))' "$platform" <<<"$machine")

state=$(folder "${ACCEL_STATE:-.accel}")
# Two nights at a time would measure each other. The lock is this shell's, and ends with it; Python takes it because not
# every machine has flock(1). A file system that knows no locks is no reason to measure nothing.
exec 9>>"$state/lock-$platform" || refuse "$state: nothing can be written there. Name another folder with ACCEL_STATE."
locked=0
"$python" -c '
import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(75)
except OSError as error:
    print(f"night: the state folder cannot be locked ({error.strerror}); see that no two nights run at a time.")' || locked=$?
((locked != 75)) ||
    refuse "another night of $platform is running with $state. Wait for its end, or give this one an ACCEL_STATE of its own."

# Compiling takes longer than measuring: it must outlast the night, and a container's /tmp does not. Where the state is
# what a CI system packs up each night, there is no room for it.
case $state in
    "${GITHUB_WORKSPACE:-/nowhere}"/* | "${CI_PROJECT_DIR:-/nowhere}"/*) ;;
    *) export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$state/compiled} ;;
esac
baselines=$(folder "${ACCEL_BASELINES:-$state/baselines}")
history=${ACCEL_HISTORY:-$state/history.sqlite}
[[ $history == /* ]] || history=$PWD/$history
out=$(folder "${ACCEL_OUT:-$state/nights/$(date -u +%Y%m%dT%H%M%SZ)-$platform}")
for lasts in "$state" "$baselines" "$(folder "$(dirname -- "$history")")"; do
    [[ $lasts/ != "$out"/* ]] ||
        refuse "ACCEL_OUT: $out holds $lasts, which lasts, and what an earlier night left in ACCEL_OUT is removed. Name a folder for tonight alone."
done
# A folder that is used again must not tell of another night.
rm -rf -- "$out"/{doctor.txt,results.json,junit.xml,summary.md,report.html,changes.txt,history.sqlite,baselines,proposal.md,status}

# --- judge or record --------------------------------------------------------------------------------------

marker=$state/recording-$platform nothing_recorded='' completing=''
recorded=("$baselines/$variant"/*.json) # the pattern itself, where there is none
if [[ ! -e ${recorded[0]} ]]; then
    nothing_recorded=1
    if [[ $record == auto ]]; then
        say "nothing is recorded for $variant in $baselines: this night records, the next one judges."
        record=always
    fi
elif [[ $record == auto && -e $marker ]]; then
    say "the recording of $variant was interrupted: this night completes it."
    record=always completing=1
fi
recording=''
[[ $record != always ]] || recording=1
for word in "${more[@]}" "$@"; do
    case $word in --accel-record | --accel-record=* | --accel-update) recording=1 ;; esac
done

# --- the machine ------------------------------------------------------------------------------------------

problems() { # of the doctor's page, the problems with their remedies
    local line shown=''
    while IFS= read -r line; do
        case $line in
            '  PROBLEM '*) shown=1 ;;
            '           '*) ;; # belongs to the line before it
            *) shown='' ;;
        esac
        [[ -z $shown ]] || printf '%s\n' "$line"
    done <"$1"
}
unmeasured() { # unmeasured WHY: the night ends here
    echo 1 >"$out/status"
    say "$1"
    exit 1
}

if [[ $doctor != off ]]; then
    look=(doctor "--baselines=$baselines" ${ACCEL_DATA:+"--data=$ACCEL_DATA"})
    if ! "${accel[@]}" "${look[@]}" >"$out/doctor.txt" 2>&1; then
        found=$(problems "$out/doctor.txt")
        printf '%s\n' "${found:-$(<"$out/doctor.txt")}" # without a problem in it, it says why doctor could not look
        say "doctor found a problem: $out/doctor.txt"
        [[ $doctor != require ]] || unmeasured "nothing was measured, because ACCEL_DOCTOR=require."
        [[ -z $recording ]] ||
            unmeasured "nothing was recorded: later nights would be judged by a machine that was not fit. Put it right; ACCEL_DOCTOR=off records all the same."
        say "measured all the same."
    fi
fi

# --- what to ask of pytest --------------------------------------------------------------------------------

arguments=(
    "${suites[@]}" -m "${ACCEL_SELECT:-$platform and not sweep}" --accel-require
    "--accel-baselines=$baselines" "--accel-history=$history"
    "--accel-json=$out/results.json" "--accel-report=$out/summary.md"
    "--junitxml=$out/junit.xml" ${ACCEL_DATA:+"--accel-data=$ACCEL_DATA"}
)
if [[ -z $unreported ]]; then
    arguments+=("--accel-report=$out/report.html")
else
    say "no report.html: missing $unreported (pip install $unreported)."
fi
if [[ -n $completing ]]; then
    # Five at most, so that they fit beside what the interrupted night left; what has as many needs none.
    ((runs <= 5)) || runs=5
    while IFS= read -r name; do arguments+=("--deselect=$name"); done < <(
        "${accel[@]}" baseline show "$variant" --baselines "$baselines" --json | "$python" -c '
import json, sys
has = {}
for each in json.load(sys.stdin):
    name = each["benchmark"].removesuffix(" (data)")
    has[name] = max(each["runs"], has.get(name, 0))
enough, few = ([name for name in has if (has[name] >= int(sys.argv[1])) is full] for full in (True, False))
for name in enough:
    if not any(other.startswith(name) for other in few):  # pytest deselects all that begins so
        print(name)' "$runs"
    )
fi
case $record in
    always) arguments+=("--accel-record=$runs") ;;
    never) arguments+=(--accel-missing-baseline=fail) ;;
    *) ;; # auto, and there is one
esac

# --- measure ----------------------------------------------------------------------------------------------

# In the background, so that a time limit's or a deadline's SIGTERM reaches pytest at once: it then keeps and reports
# what it has measured, and so do the lines after it.
stopped='' status=0
attended() { # attended COMMAND...: its status in `status`; `stopped` where the night was ended
    status=0
    "$@" </dev/null 9>&- &
    child=$!
    trap 'stopped=1; kill -TERM "$child" 2>/dev/null || true' TERM INT HUP
    [[ -z $stopped ]] || kill -TERM "$child" 2>/dev/null || true # ended before there was a child
    wait "$child" || status=$?
    while kill -0 "$child" 2>/dev/null; do # a trap ends `wait`, not what it waits for
        status=0
        wait "$child" || status=$?
    done
}
if ((10#$compile)); then
    attended "${accel[@]}" compile --jobs "$((10#$compile))" -- "${arguments[@]}" "${more[@]}" "$@"
    if [[ -n $stopped ]]; then
        echo 2 >"$out/status"
        say "stopped before anything was measured."
        exit 2
    fi
    ((status == 0)) || say "not all of it is compiled; the rest is compiled as it is measured."
fi
[[ -z $nothing_recorded || -z $recording ]] || : >"$marker"
attended "${launcher[@]}" "$python" -m pytest "${arguments[@]}" "${more[@]}" "$@"
[[ -z $stopped ]] || say "stopped before its end; what was measured is kept."
if [[ -n $recording && -z $stopped ]]; then
    case $status in 0 | 1 | 5) rm -f -- "$marker" ;; esac # 5: all of it was there already
fi
[[ -z $recording || ! -e $marker ]] || say "the recording is not complete; the next night goes on with it."

# --- what people read in the morning ----------------------------------------------------------------------

# None of it changes the verdict, and none of it may be in the way of the rest.
if [[ -s $out/results.json && ! -e $out/summary.md ]]; then
    say "pytest did not finish (status $status): what it had measured is reported."
    "${accel[@]}" history --history "$history" --import "$out/results.json" || say "it could not be added to the history."
    [[ -n $unreported ]] ||
        "${accel[@]}" report --history "$history" -o "$out/report.html" "$out/results.json" ||
        say "no page could be made of it."
fi
if [[ -s $out/results.json ]]; then
    "${accel[@]}" baseline accept --markdown "$out/results.json" >"$out/proposal.md" ||
        say "no proposal could be written."
fi
[[ -s $out/proposal.md ]] || rm -f -- "$out/proposal.md"
if [[ -s $history ]]; then
    "${accel[@]}" history --changes --history "$history" >"$out/changes.txt" 2>&1 || true
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
[[ ! -e $out/proposal.md ]] || say "there is something to decide or to mend: $out/proposal.md"
say "exit status $status; all of it is in $out"
exit "$status"
