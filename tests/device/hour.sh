#!/usr/bin/env bash
# What a GPU that is lent for minutes is asked, a stage at a time:
#
#   bash tests/device/hour.sh RESULTS STAGE [STAGE ...]
#
# A stage leaves its figures in the folder RESULTS, in files that no later call overwrites, and prints the end of what it said. One
# that takes too long is ended as by Ctrl-C, and keeps what it has. On a machine that has compiled nothing yet, what was compiled is
# taken from RESULTS/caches.tar.xz, and packed into it in the end: the next machine need not compile again. Suites leave out the
# rows that an earlier call has measured into RESULTS. It leaves with 1 where a stage failed or did not come to its turn, and with
# 2, having done nothing, where it was called wrongly.
#
#   LIMIT_S=570 of all stages together, the packing included   JOBS=10 that compile side by side   BUDGET=3s of a row
#   ONLY=EXPRESSION, of the rows (-k)   PLATFORM=h200   PYTHON=python   PACK=no, where the next call is of the same machine
#   LOOKS=5 of `whole` at a row: where baselines have one run each, half of the rows are looked at again, in fresh processes
# and, unless they are set, without: COMPILE_S, a limit of `compile` alone; WITHIN, that of `whole` (--accel-within); CONTESTS="NAME ...",
# which `contests` compiles and `compiled` plays instead of its own; TIMM_SOURCE=DIR, a checkout whose benchmark.py `timm` runs
set -uo pipefail

suites=(language scenes networks images gangs)
stages=(tests groups compile contests whole loading suites "${suites[@]}" eager compiled timm streams studies)
compiled=(resnet50 resnet50-infer resnet50-unasked resnet50-infer-unasked gpt-117m-nanogpt gpt-800m-nanogpt swin_t swin_t-infer resnet50-288)
twins="food101 or gpt_texts or first_epoch or weak or energy" # rows that find compiled what others have
complain() {
    echo "$1" >&2
    exit 2
}
[ $# -ge 2 ] || complain "hour.sh RESULTS STAGE [STAGE ...], of: ${stages[*]}"
mkdir -p "$1" || complain "$1 is no folder to write into"
results=$(cd "$1" && pwd)
shift
for each in "$@"; do
    [[ " ${stages[*]} " == *" $each "* ]] || complain "$each is no stage. Valid: ${stages[*]}"
    [ "$each" = timm ] || continue
    for needed in benchmark.py timm/version.py; do
        [ -f "${TIMM_SOURCE:-}/$needed" ] || complain "TIMM_SOURCE=${TIMM_SOURCE:-} is no checkout of pytorch-image-models: it has no $needed"
    done
done
command -v xz >/dev/null || complain "xz is missing: what is compiled could not be kept"

pack=${PACK:-yes} packing_s=45
[ "$pack" = no ] && packing_s=0
python=${PYTHON:-python} platform=${PLATFORM:-h200} jobs=${JOBS:-10} budget=${BUDGET:-3s} only=${ONLY:-} looks=${LOOKS:-5}
within=${WITHIN:-} compile_s=${COMPILE_S:-86400}
for each in LIMIT_S COMPILE_S JOBS LOOKS; do
    [[ ${!each:-1} =~ ^[0-9]+$ ]] || complain "$each=${!each}: a whole number is wanted"
done
device=cuda
[ "$platform" = cpu ] && device=cpu
if [ -n "${CONTESTS:-}" ]; then
    mapfile -t compiled < <(tr -s '[:space:]' '\n' <<<"$CONTESTS" | sed '/^$/d')
    known=$("$python" -m benchmarks.peers --list | awk 'NR > 1 { print $1 }')
    [ ${#compiled[@]} -gt 0 ] || complain "CONTESTS names none. Valid: ${known//$'\n'/ }"
    for each in "${compiled[@]}"; do
        grep -qxF -e "$each" <<<"$known" || complain "CONTESTS: $each is no contest. Valid: ${known//$'\n'/ }"
    done
fi
end=$((SECONDS + ${LIMIT_S:-570} - packing_s))
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-/tmp/inductor} PYTHONUNBUFFERED=1
# Kernels in the form in which they run: what they were on the way there is two thirds of a cache, and nobody reads it again.
export TRITON_CACHE_DIR=$TORCHINDUCTOR_CACHE_DIR/triton TRITON_STORE_BINARY_ONLY=1
caches=$results/caches.tar.xz
photographs=${TMPDIR:-/tmp}/photographs
b=bench_suites
rows=(-p no:cacheprovider -W ignore --tb=short -m "$platform and not sweep")
[ -n "$only" ] && rows+=(-k "$only")
telling=(-v --accel-history=off)
called=$(date +%m%d-%H%M%S) # in the names of files
status=0
ended=0 # of what ran last
all_had=0 # an end of a suite that is no failure

# run NAME COMMAND...: its output in a file of that name, for as long as there is time.
run() {
    local name=$1 left=$((end - SECONDS))
    ended=1
    shift
    if [ "$left" -lt 10 ]; then
        echo "$(date +%T) $name: no time is left"
        status=1
        return
    fi
    timeout -s INT -k 15 "$left" "$@" >"$results/$name-$called.txt" 2>&1
    ended=$?
    [ "$ended" -eq 0 ] || [ "$ended" -eq "$all_had" ] || status=1
    echo "$(date +%T) $name: exit $ended"
    tail -n 12 "$results/$name-$called.txt" | cut -c1-200
}

side_by_side() { # run, for what compiles
    TORCHINDUCTOR_COMPILE_THREADS=2 run "$@"
}

measured() { # rows that earlier calls have, as options
    "$python" - "$results"/*.json <<'END'
import json, sys
for name in sys.argv[1:]:
    try:
        told = json.load(open(name)).get("results", [])
    except (OSError, ValueError):
        continue
    for row in told:
        if row.get("runs"):
            print("--deselect=" + row["benchmark"])
END
}

suite() { # in a session of its own: a device that one leaves in disorder costs that one
    local name=$1 had
    shift
    mapfile -t had < <(measured)
    [ ${#had[@]} -gt 0 ] && [ -z "$only" ] && all_had=5 # no row is left
    run "$name" "$python" -m pytest "$@" "${rows[@]}" "${had[@]}" "${telling[@]}" --accel-budget="$budget" \
        --accel-baselines="$results/no-baselines" --accel-json="$results/$name-$called.json"
    all_had=0
}

peers() {
    local name=$1
    shift
    run "$name" "$python" -m benchmarks.peers "$@" --device "$device" --groups 3 --json "$results/$name-$called.json"
}

stream() { # goes on where an earlier call was cut off
    local name=$platform-$1
    shift
    run "$name" "$python" -m benchmarks.noise gather --resume --name "$name" --out "$results/$name.jsonl" \
        --runs 30 "$@"
}

photographs() { # made-up ones, of ImageNet's size, once; a folder that was cut off is made again
    [ -d "$photographs" ] && return
    rm -rf "$photographs.new"
    run photographs "$python" -m tests.studies.photographs "$photographs.new" --images 2000
    [ "$ended" -eq 0 ] && mv "$photographs.new" "$photographs"
}

fed_by_photographs() {
    local rows=("${rows[@]}" -k "${only:+($only) and }test_loading")
    local -x PYTEST_ACCEL_DATA=$photographs
    side_by_side compile-loading "$python" -m pytest_accel.cli compile --jobs 2 -- $b/test_cnn.py "${rows[@]}"
    suite loading $b/test_cnn.py
}

study() {
    run "$1" "$python" -m "tests.studies.$1" "${@:2}" --device "$device"
}

stage() {
    case $1 in
    tests) run tests "$python" -m pytest tests/device tests/unit/workloads/test_steps_cuda.py -m "not rehearsal" -p no:cacheprovider -q ;;
    groups) # tests of gangs, groups and launches; they need a device of their own
        run groups "$python" -m pytest tests/device/test_gpu.py tests/device/test_gang_gpu.py -m "not rehearsal" -p no:cacheprovider -q \
            -k "gang or group or rank or ddp or barrier or small_kernels" --durations=5
        ;;
    compile) # what takes longest comes first; gangs, which go one after the other, beside all others
        local end=$((end < SECONDS + compile_s ? end : SECONDS + compile_s)) also=("$b/test_gangs.py") beside=
        local gangs=("$python" -m pytest_accel.cli compile --jobs 1 -- "${also[@]}" "${rows[@]}")
        if [ -z "$only" ]; then
            (side_by_side compile-gangs "${gangs[@]}" && exit "$status") &
            beside=$! also=()
        fi
        side_by_side compile "$python" -m pytest_accel.cli compile --jobs "$jobs" -- \
            $b/test_cnn.py $b/test_detection.py $b/test_segmentation.py $b/test_classification.py $b/test_inference.py $b/test_gpt.py \
            $b/test_bert.py $b/test_wide_resnet.py $b/test_autoencoder.py $b/test_resnet50_energy.py "${also[@]}" "${rows[@]}" \
            -k "${only:+($only) and }not ($twins)"
        [ -z "$beside" ] || wait "$beside" || side_by_side compile-gangs-alone "${gangs[@]}" # they had no room, it may be
        ;;
    contests)
        touch "$results/begun"
        # shellcheck disable=SC2016 # it is the inner shell that expands it
        side_by_side contests bash -c \
            'python=$1 jobs=$2 device=$3; shift 3
            printf "%s\n" "$@" | xargs -P "$jobs" -I{} "$python" -m benchmarks.peers {} --compile-only --device "$device"' \
            contests "$python" "$jobs" "$device" "${compiled[@]}"
        # What is tuned beside others is chosen by chance: whoever measures chooses again.
        [ ! -d "$TORCHINDUCTOR_CACHE_DIR" ] || find "$TORCHINDUCTOR_CACHE_DIR" -name '*.best_config' -newer "$results/begun" -delete
        ;;
    whole) # as a night is: one session, judged, at the default budget. It takes longer than a call may: begin it in the background (setsid)
        run whole "$python" -m pytest $b "${rows[@]}" "${telling[@]}" --accel-repeats="$looks" ${within:+"--accel-within=$within"} --accel-json="$results/whole-$called.json"
        ;;
    loading) # rows that are fed with photographs: with them other rows would be, too, and nobody has recorded those
        photographs && fed_by_photographs
        ;;
    suites) for each in "${suites[@]}"; do stage "$each"; done ;;
    language) suite language $b/test_gpt.py $b/test_bert.py ;;
    scenes) suite scenes $b/test_detection.py $b/test_segmentation.py ;;
    networks) suite networks $b/test_cnn.py $b/test_inference.py $b/test_resnet50_energy.py $b/test_wide_resnet.py ;;
    images) suite images $b/test_autoencoder.py $b/test_classification.py ;;
    gangs) suite gangs $b/test_gangs.py ;;
    eager) peers eager 'bert-*' 'segformer-*' 'deeplab-*' fasterrcnn 'dino-*' gpt-117m gpt-800m wide_resnet resnet50-torchvision ;;
    compiled) peers compiled "${compiled[@]}" ;;
    timm) peers timm resnet50 resnet50-infer --timm-source "$TIMM_SOURCE" ;; # fresh processes on both sides, and minutes a contest
    streams)
        local slower=(--slowdowns 0.025 0.05 0.075 0.1 --slow-runs 5)
        stream launch "${slower[@]}" --ahead 13 -- "$b/test_inference.py::test_latency[resnet50]" -m "$platform" --accel-compile=off --accel-budget=1s
        stream compute "${slower[@]}" --ahead 13 -- "$b/test_gpt.py::test_gpt_training[117m]" -m "$platform" --accel-budget=1s
        photographs && PYTEST_ACCEL_DATA=$photographs stream loader --ahead 13 -- benchmarks/noise/test_starved.py -m "$platform" --accel-budget=2s
        ;;
    studies)
        study rectifying
        study gpt
        study products
        [ "$device" = cpu ] || study searching --ways search search keeping seeded seeded estimate
        [ "$device" = cpu ] || study replay
        [ "$device" = cpu ] || study convolutions efficientnet_b0 zoo/segformer-b4
        study portions
        study regions
        study anatomy zoo/gpt-800m
        [ "$device" = cpu ] || study stems
        [ "$device" = cpu ] || study endings # they tune anew on every machine
        ;;
    esac
}

[ -e "$caches" ] && [ ! -d "$TORCHINDUCTOR_CACHE_DIR" ] && mkdir -p "$TORCHINDUCTOR_CACHE_DIR" && tar -xJf "$caches" -C "$TORCHINDUCTOR_CACHE_DIR"
for each in "$@"; do
    stage "$each"
done

# Torch's graphs have their kernels with them; what triton keeps apart is the same again. A call that is ended meanwhile leaves the
# archive that there was.
if [ "$pack" != no ] && [ -d "$TORCHINDUCTOR_CACHE_DIR" ]; then
    if XZ_OPT='-T0 --lzma2=preset=3,dict=64MiB' tar -cJf "$caches.new" --exclude=./triton \
        -C "$TORCHINDUCTOR_CACHE_DIR" .; then
        mv "$caches.new" "$caches"
        du -h "$caches"
    else
        echo "what was compiled could not be packed" >&2
        status=1
    fi
fi
exit $status
