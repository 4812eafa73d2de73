#!/usr/bin/env bash
# One session of pytest on every node of a partition, each by itself:  bash every-node.sh PARTITION [PYTEST'S ARGUMENTS]
# A busy node is waited for. One that is down or drained is named and left out. Leaves with 1 if a node fails.
set -euo pipefail

partition=$1
shift
mkdir -p results
sessions=()
while read -r node state; do
    case $state in
        idle | mix | alloc | comp) ;;
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
