#!/usr/bin/env bash
# What a GPU that is lent for minutes is asked, a stage at a time:
#
#   bash tests/device/hour.sh RESULTS STAGE [STAGE ...]      tests compile suites eager compiled streams studies
#
# Every stage leaves its figures in the folder RESULTS and prints the end of what it said. One that takes too long is ended
# as by Ctrl-C, and keeps what it has. What was compiled is taken from RESULTS/caches.tar.xz where that is there, and
# is left there in the end: the next machine need not compile again.
#
#   PLATFORM=h200  LIMIT_S=570 of all stages together  JOBS=10 that compile side by side  BUDGET=3s a row  ONLY='-k' of the suites
set -uo pipefail

results=$(mkdir -p "$1" && cd "$1" && pwd)
shift
platform=${PLATFORM:-h200} limit_s=${LIMIT_S:-570} jobs=${JOBS:-10} budget=${BUDGET:-3s} only=${ONLY:-}
end=$((SECONDS + limit_s))
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-/tmp/inductor} PYTHONUNBUFFERED=1
export TRITON_CACHE_DIR=$TORCHINDUCTOR_CACHE_DIR/triton
caches=$results/caches.tar.xz
pytest=(-p no:cacheprovider -W ignore --tb=short -m "$platform and not sweep")
[ -n "$only" ] && pytest+=(-k "$only")

# run NAME SECONDS COMMAND...: its output in NAME.txt, for so long at the most.
run() {
    local name=$1 most=$2 left=$((end - SECONDS)) status
    shift 2
    [ "$left" -lt 10 ] && echo "$(date +%T) $name: no time is left" && return
    timeout -s INT -k 15 "$((left < most ? left : most))" "$@" >"$results/$name.txt" 2>&1
    status=$?
    echo "$(date +%T) $name: exit $status"
    tail -n 12 "$results/$name.txt" | cut -c1-200
}

# In sessions of their own: a device that one of them leaves in disorder costs that one.
suite() {
    local name=$1
    shift
    run "suite-$name" 900 python -m pytest "$@" "${pytest[@]}" -v --accel-budget="$budget" --accel-history=off \
        --accel-baselines=/tmp/no-baselines --accel-json="$results/suite-$name.json" \
        --accel-columns=data,throughput,noise,step,first-step,warm-up,memory,mfu,energy,loading
}

peers() {
    local name=$1
    shift
    run "peers-$name" 900 python -m benchmarks.peers "$@" --groups 3 --json "$results/peers-$name.json"
}

stream() {
    local name=$1
    shift
    run "stream-$name" 900 python -m benchmarks.noise gather --resume --name "$name" --out "$results/$name.jsonl" "$@"
}

stage() {
    local b=bench_suites
    case $1 in
    tests) run tests 900 python -m pytest tests/device tests/unit/workloads/test_steps_cuda.py -m "not rehearsal" -p no:cacheprovider -q ;;
    compile) # those that take longest first
        TORCHINDUCTOR_COMPILE_THREADS=2 run compile 900 python -m pytest_accel.cli compile --jobs "$jobs" -- \
            $b/test_cnn.py $b/test_detection.py $b/test_segmentation.py $b/test_classification.py $b/test_inference.py $b/test_gpt.py \
            $b/test_bert.py $b/test_wide_resnet.py $b/test_autoencoder.py $b/test_resnet50_energy.py $b/test_gangs.py "${pytest[@]}"
        ;;
    suites)
        suite language $b/test_gpt.py $b/test_bert.py
        suite scenes $b/test_detection.py $b/test_segmentation.py
        suite networks $b/test_cnn.py $b/test_inference.py $b/test_resnet50_energy.py $b/test_wide_resnet.py
        suite images $b/test_autoencoder.py $b/test_classification.py
        suite gangs $b/test_gangs.py
        ;;
    eager) peers eager 'bert-*' 'segformer-*' 'deeplab-*' fasterrcnn 'dino-*' gpt-117m gpt-800m wide_resnet resnet50-torchvision ;;
    compiled) peers compiled resnet50 resnet50-infer 'resnet50*-unasked' 'gpt-*-nanogpt' swin_t swin_t-infer resnet50-288 ;;
    streams)
        stream "$platform-launch" --runs 30 --slowdowns 0.1 --slow-runs 5 --ahead 13 -- "$b/test_inference.py::test_latency[resnet50]" -m "$platform" \
            --accel-compile=off --accel-budget=1s
        stream "$platform-compute" --runs 30 --slowdowns 0.1 --slow-runs 5 --ahead 13 -- "$b/test_gpt.py::test_gpt_training[117m]" -m "$platform" --accel-budget=1s
        python -m tests.studies.photographs /tmp/made-up --images 2000
        PYTEST_ACCEL_DATA=/tmp/made-up stream "$platform-loader" --runs 30 --slowdowns 0.1 --slow-runs 5 --ahead 4 -- \
            "$b/test_cnn.py::test_loading[host]" -m "$platform" --accel-budget=2s
        ;;
    studies)
        run fused_inference 200 python -m tests.studies.fused_inference --device cuda
        run residual 200 python -m tests.studies.residual --device cuda
        run regions 300 python -m tests.studies.regions --device cuda
        run anatomy 200 python -m tests.studies.anatomy zoo/gpt-800m --device cuda
        ;;
    *) echo "$1 is no stage: tests compile suites eager compiled streams studies" && exit 2 ;;
    esac
}

[ -e "$caches" ] && mkdir -p "$TORCHINDUCTOR_CACHE_DIR" && tar -xJf "$caches" -C "$TORCHINDUCTOR_CACHE_DIR"
for each in "$@"; do
    stage "$each"
done
# Kernels and graphs; what triton keeps beside them of each step of compiling is the larger part, and nobody reads it again.
if [ -d "$TORCHINDUCTOR_CACHE_DIR" ]; then
    XZ_OPT='-3 -T0' tar -cJf "$caches" --exclude='*.ttir' --exclude='*.ttgir' --exclude='*.llir' --exclude='*.ptx' --exclude='*.source' \
        -C "$TORCHINDUCTOR_CACHE_DIR" .
    du -h "$caches"
fi
