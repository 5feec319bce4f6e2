"""`muster runs`: the runs that this machine took part in, and forgetting one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from coordinator.run.manifest import Manifest
from dht.errors import LocalError, UsageError
from peer.cli.common import Data
from peer.machine import paths


def runs(
    data: Data = None,
    forget: Annotated[str | None, typer.Option(help="Delete all that is kept of the run whose id begins so.")] = None,
) -> None:
    """List the runs that this machine took part in, or forget one."""
    from peer.storage.run_directory import known_manifests

    directory = paths.data_directory(data)
    known = list(known_manifests(directory))
    if forget is not None:
        _forget(directory, _chosen(known, forget))
        return
    for manifest in known:
        typer.echo(_line(directory, manifest))
    if not known:
        typer.echo(f"no run is kept in {directory}; take part in one with: muster join INVITE")


def _line(directory: Path, manifest: Manifest) -> str:
    from coordinator.views import quantity
    from peer.machine.sensors import folder_bytes
    from peer.machine.text import printable
    from peer.storage.run_directory import run_path

    size = quantity.size(folder_bytes(run_path(directory, manifest.run_id)))
    return printable(f"{manifest.run_id.hex()[:12]}  {size:>9}  {manifest.config.name}")


def _chosen(known: list[Manifest], start: str) -> Manifest:
    found = [manifest for manifest in known if manifest.run_id.hex().startswith(start.lower())]
    if not start or not found:
        raise UsageError(f"no run here has an id that begins with {start!r}; list them with: muster runs")
    if len(found) > 1:
        raise UsageError(f"the ids of {len(found)} runs begin with {start!r}; give more of it")
    return found[0]


def _forget(directory: Path, manifest: Manifest) -> None:
    from coordinator.views.control import NobodyRunsError, snapshot
    from peer.storage.run_directory import run_path

    try:
        if snapshot(directory).run_id == manifest.run_id.hex():
            raise UsageError("the peer here takes part in that run now; end it first with: muster stop")
    except NobodyRunsError:
        pass
    path = run_path(directory, manifest.run_id)
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise LocalError(f"{path} cannot be deleted: {error.strerror}") from None
    typer.echo(f"forgot {manifest.config.name}; this machine's key stays")
