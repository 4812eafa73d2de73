#!/usr/bin/env bash
# Chromium for tests/browser, where that is possible. Never an obstacle: without it those tests are skipped, which is
# said here as loudly as there. Playwright drives it and comes from PyPI, without a browser of its own.
set -uo pipefail

without() {
    printf '\n*** tests/browser will be SKIPPED: %s ***\n\n' "$1" >&2
    exit 0
}

command -v chromium >/dev/null && exit 0
[ "$(id -u)" -eq 0 ] || without "chromium is not installed, and installing it needs root"
command -v apt-get >/dev/null || without "chromium is not installed, and there is no apt-get here"

export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() { timeout 300 apt-get install -y -qq --no-install-recommends chromium >"$log" 2>&1; }
install || { timeout 300 apt-get update -qq >"$log" 2>&1 && install; } || {
    tail -n 5 "$log" >&2
    without "apt-get could not install chromium"
}
