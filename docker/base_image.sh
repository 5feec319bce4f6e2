#!/bin/sh
# Make a base image from Debian packages, where no image registry can be reached. Needs root and debootstrap.
# Usage: docker/base_image.sh [NAME [RELEASE]]; bookworm has Python 3.11, trixie 3.13.
set -eu

name=${1:-muster-base}
release=${2:-bookworm}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip,python3-venv "$release" "$folder" >&2
rm -rf "$folder"/var/cache/apt/* "$folder"/var/lib/apt/lists/* "$folder"/usr/share/doc/* \
    "$folder"/usr/share/info/* "$folder"/usr/share/locale/* "$folder"/usr/share/man/*
tar -C "$folder" -c . | docker import --change 'CMD ["bash"]' - "$name"
