#!/usr/bin/env bash
# One session of pytest on every node of a partition, each by itself:  bash every-node.sh PARTITION [PYTEST'S ARGUMENTS]
# A busy node is waited for. One that cannot run anything, or does not answer, is named and left out.
# Leaves with 1 if a node fails, with 2 if nothing could be started.
set -euo pipefail

if [ $# -eq 0 ]; then
    echo "usage: bash every-node.sh PARTITION [PYTEST'S ARGUMENTS], for instance: bash every-node.sh gpu -m a40" >&2
    exit 2
fi
partition=$1
shift
mkdir -p results
sessions=()
while read -r node state; do
    # What sinfo appends: + jobs are ending, - planned for another job, ~ powered down, # powering up. Slurm waits for
    # those, or wakes the node. All others (* does not respond, $ maintenance, @ ^ reboot, ! % powering down) are left out.
    case ${state%[-+~#]} in
        idle | mix | alloc | comp | plnd) ;;
        *) echo "left out: $node ($state)" >&2; continue ;;
    esac
    srun --quiet --partition="$partition" --nodelist="$node" --nodes=1 --ntasks=1 --exclusive --job-name=every-node \
        --output="results/$node.txt" python -m pytest "$@" --accel-json="results/$node.json" < /dev/null &
    sessions+=($!)
done < <(sinfo --noheader --Node --partition="$partition" --format='%N %t' | sort -u)

[ ${#sessions[@]} -gt 0 ] || { echo "no node of $partition can run anything" >&2; exit 2; }
failed=0
for session in "${sessions[@]}"; do
    wait "$session" || failed=1
done
exit $failed
