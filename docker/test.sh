#!/bin/bash
# Run tests/compose. As root, start a container engine if none runs. If no image registry can be reached, make the base
# image from Debian packages, and build the wheels with this machine's pip.
# Usage: docker/test.sh [ARGUMENTS OF PYTEST]; BASE_IMAGE names another base image to use unchanged.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=.venv/bin/python
LOCAL_BASE=muster-base
PULL_SECONDS_MAX=300
START_SECONDS_MAX=60

engine_answers() { docker version >/dev/null 2>&1; }

start_engine() {
    echo "starting dockerd"
    log=$(mktemp)
    dockerd >"$log" 2>&1 &
    engine=$!
    trap 'kill "$engine" && wait "$engine"; rm -f "$log"' EXIT
    for ((second = 0; second < START_SECONDS_MAX; second++)); do
        if engine_answers; then return; fi
        sleep 1
    done
    tail "$log" >&2
    exit 1
}

make_local_base() {
    local python release wheels=build/wheels
    python=$($PYTHON -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    case $python in
    3.11) release=bookworm ;;
    3.13) release=trixie ;;
    *)
        echo "no image registry can be reached, and no Debian release has Python $python: make .venv with 3.11 or 3.13" >&2
        exit 1
        ;;
    esac
    docker image inspect "$LOCAL_BASE" >/dev/null 2>&1 || docker/base_image.sh "$LOCAL_BASE" "$release"
    if [[ ! constraints.txt -ot $wheels || ! pyproject.toml -ot $wheels ]]; then
        echo "collecting wheels in $wheels"
        rm -rf "$wheels"
        $PYTHON -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' |
            $PYTHON -m pip wheel --quiet --wheel-dir "$wheels.new" -c constraints.txt -r /dev/stdin hatchling
        mv "$wheels.new" "$wheels"
    fi
}

engine_answers || [[ $EUID != 0 ]] || ! command -v dockerd >/dev/null || start_engine
if [[ -z ${BASE_IMAGE:-} ]] && engine_answers; then
    public=$(sed -n 's/^ARG BASE_IMAGE=//p' Dockerfile)
    if ! docker image inspect "$public" >/dev/null 2>&1 && ! timeout "$PULL_SECONDS_MAX" docker pull --quiet "$public"; then
        make_local_base
        export BASE_IMAGE=$LOCAL_BASE
    fi
fi
$PYTHON -m pytest -m docker tests/compose "$@"
