#!/usr/bin/env bash
# Build an image of pytest-accel over a base, for one or both architectures: docs/containers.md.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: deploy/containers/build.sh [options] [-- arguments of the tool]
  --base IMAGE     what to build on (docker.io/library/python:3.12-slim-bookworm)
  --extras LIST    of pytest-accel: suites,report for a plain Python; none for a base with a torch of its own (none)
  --tag NAME       the image's name, which results will tell (pytest-accel:VERSION); for apptainer the file is NAME.sif
  --arch ARCH      amd64, arm64 or both (that of this machine)
  --tool TOOL      podman, docker, buildah or apptainer (the first that is installed)
  --output FILE    of apptainer
  --dry-run        print the command, and run nothing
USAGE
}

fail() {
    printf 'build.sh: %s\n' "$*" >&2
    exit 2
}

base=docker.io/library/python:3.12-slim-bookworm extras='' tag='' arch='' tool='' output='' dry=''
while [ $# -gt 0 ]; do
    case $1 in
        --base | --extras | --tag | --arch | --tool | --output)
            [ $# -ge 2 ] || fail "$1 needs a value; --help lists what there is."
            printf -v "${1#--}" %s "$2"
            shift 2
            ;;
        --dry-run) dry=yes; shift ;;
        -h | --help) usage; exit 0 ;;
        --) shift; break ;;
        *) fail "$1 is not an option; --help lists what there is. What is the tool's own goes after --." ;;
    esac
done

cd "$(dirname "$0")/../.."
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' pytest_accel/__init__.py)
[ -n "$version" ] || fail "pytest_accel/__init__.py has no version: is this a whole checkout?"
revision=$(git rev-parse --short=12 HEAD 2>/dev/null) || revision=''
if [ -n "$revision" ] && [ -n "$(git status --porcelain --untracked-files=no 2>/dev/null)" ]; then
    revision=$revision.changed
fi
: "${tag:=pytest-accel:$version}"

case $(uname -m) in
    x86_64) here=amd64 ;;
    aarch64) here=arm64 ;;
    *) here=$(uname -m) ;;
esac
case ${arch:=$here} in
    amd64 | arm64) platforms=linux/$arch ;;
    both) platforms=linux/amd64,linux/arm64 ;;
    *) fail "--arch $arch: write amd64, arm64 or both." ;;
esac

if [ -z "$tool" ]; then
    for each in podman docker buildah apptainer; do
        command -v "$each" >/dev/null && { tool=$each; break; }
    done
    [ -n "$tool" ] || fail "there is no podman, docker, buildah or apptainer here: install one of them."
fi
case $tool in
    podman | docker | buildah | apptainer) ;;
    *) fail "--tool $tool: write podman, docker, buildah or apptainer." ;;
esac
[ -n "$dry" ] || command -v "$tool" >/dev/null || fail "--tool $tool is not installed here."

run() {
    printf '%q ' "$@"
    printf '\n'
    [ -n "$dry" ] || "$@"
}

arguments=(--build-arg "BASE=$base" --build-arg "EXTRAS=$extras" --build-arg "IMAGE=$tag")
arguments+=(--build-arg "VERSION=$version" --build-arg "REVISION=$revision")
file=deploy/containers/Containerfile
case $tool in
    podman | buildah)
        # Two architectures under one name are a manifest.
        if [ "$arch" = both ]; then named=(--manifest "$tag"); else named=(--tag "$tag"); fi
        run "$tool" build --file "$file" --platform "$platforms" "${arguments[@]}" "${named[@]}" "$@" .
        ;;
    docker)
        run docker buildx build --file "$file" --platform "$platforms" "${arguments[@]}" --tag "$tag" "$@" .
        ;;
    apptainer)
        [ "$arch" = "$here" ] || fail "--arch $arch: apptainer builds for the machine it runs on ($here)."
        wheels=$(mktemp -d)
        trap 'rm -r "$wheels"' EXIT
        run python3 -m pip wheel --quiet --no-deps --wheel-dir "$wheels" .
        wheel=$wheels/pytest_accel-$version-py3-none-any.whl
        : "${output:=$(printf %s "$tag" | tr '/:' '--').sif}"
        run apptainer build "${arguments[@]}" --build-arg "WHEEL=$wheel" "$@" "$output" deploy/containers/pytest-accel.def
        ;;
esac
