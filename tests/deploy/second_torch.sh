#!/usr/bin/env bash
# A second torch for tests/deploy/test_upgrade.py, in a folder that the next run finds again; prints the folder.
# Without its CUDA packages: those of the repository's own environment do. About 900 MB to fetch on x86_64, and
# 50 s, for which CI has no time: `make rehearse` plays it.
set -euo pipefail
version=2.9.1
python=${1:-python3}

without() {
    printf '*** the rehearsal with two torch versions will be SKIPPED: %s ***\n' "$1" >&2
    exit 1
}

name=$("$python" -c 'import platform, sys
print(f"torch-{sys.argv[1]}-py{sys.version_info[0]}.{sys.version_info[1]}-{platform.machine()}")' "$version")
root=${XDG_CACHE_HOME:-$HOME/.cache}/pytest-accel-tests
place=$root/$name
mkdir -p "$root"
exec 9>"$root/$name.lock"
flock -w 300 9 || without "another process has been fetching torch $version for five minutes"
if [ ! -d "$place" ]; then
    free_kb=$(df --output=avail "$root" | tail -n 1)
    [ "$free_kb" -gt 4000000 ] || without "$root has less than 4 GB left for torch $version"
    part=$(mktemp -d "$root/$name.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    timeout 300 "$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --no-cache-dir \
        --target "$part" "torch==$version" >&2 || without "pip could not fetch torch $version"
    mv "$part" "$place"
    trap - EXIT
fi
printf '%s\n' "$place"
