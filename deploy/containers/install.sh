#!/bin/sh
# What Containerfile and pytest-accel.def both do inside the image, as root: the packages, the user, the image's name.
#   WHEELS   the folder of pytest-accel's wheel (/wheels)
#   EXTRAS   of pytest-accel: suites,report; empty where the base has its own torch
#   NAME, REVISION, BASE   what the image is, for /etc/pytest-accel-image.json
#   USER_ID  of the user that the image runs as
set -eu

wheel=$(echo "${WHEELS:-/wheels}"/pytest_accel-*.whl)
[ -f "$wheel" ] || { echo "install.sh: there is no one wheel of pytest-accel in ${WHEELS:-/wheels}." >&2; exit 1; }

# triton compiles what launches its kernels when a model is first compiled.
if [ -n "${EXTRAS:-}" ] && ! command -v gcc >/dev/null && command -v apt-get >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev >/dev/null
    rm -rf /var/lib/apt/lists/*
fi

# Everything that the base has stays as it is, but for pytest, where the base's is too old. NVIDIA's images have such a
# list of their own in PIP_CONSTRAINT, which names pytest as well: ours takes its place for this one command.
kept=$(mktemp)
python3 -m pip list --disable-pip-version-check --format=freeze |
    grep -viE '^(pytest|pytest-benchmark|pytest-accel|pluggy|iniconfig|py-cpuinfo)==' |
    grep -E '^[A-Za-z0-9._-]+==[^ ]+$' >"$kept" || true
PIP_CONSTRAINT=$kept PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore \
    python3 -m pip install --quiet --disable-pip-version-check --no-cache-dir "$wheel${EXTRAS:+[$EXTRAS]}"
rm "$kept"

# Folders that anybody may write to: whoever starts the image may choose another user.
if ! grep -q "^[^:]*:[^:]*:${USER_ID:-10001}:" /etc/passwd; then
    echo "bench:x:${USER_ID:-10001}:0:pytest-accel:/home/bench:/bin/sh" >>/etc/passwd
fi
mkdir -p /home/bench /accel/baselines /accel/data /accel/history
chmod 1777 /home/bench /accel /accel/baselines /accel/data /accel/history

NAME=${NAME:-} REVISION=${REVISION:-} BASE=${BASE:-} python3 - <<'PYTHON'
import json, os

given = {field: os.environ[field.upper()] for field in ("name", "revision", "base")}
with open("/etc/pytest-accel-image.json", "w", encoding="utf-8") as file:
    file.write(json.dumps({field: value for field, value in given.items() if value}, indent=2) + "\n")
PYTHON
chmod 644 /etc/pytest-accel-image.json
