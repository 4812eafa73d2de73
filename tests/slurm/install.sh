#!/usr/bin/env bash
# Slurm and munge for tests/slurm, where that is possible. Never an obstacle: without them those tests are
# skipped, which is said here as loudly as there.
set -uo pipefail

without() {
    printf '\n*** tests/slurm will be SKIPPED: %s ***\n\n' "$1" >&2
    exit 0
}

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
installed() {
    local program
    for program in sbatch srun slurmctld slurmd munged; do
        command -v "$program" >/dev/null || return 1
    done
}

installed && exit 0
[ "$(id -u)" -eq 0 ] || without "Slurm is not installed, and installing it needs root"
command -v apt-get >/dev/null || without "Slurm is not installed, and there is no apt-get here"

export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() { timeout 300 apt-get install -y -qq --no-install-recommends slurm-wlm munge >"$log" 2>&1; }
install || { timeout 300 apt-get update -qq >"$log" 2>&1 && install; } || {
    tail -n 5 "$log" >&2
    without "apt-get could not install slurm-wlm and munge"
}
