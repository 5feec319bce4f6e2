"""`muster runs`: list the runs that this machine took part in, or forget one."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from coordinator.run.manifest import Manifest
from dht.errors import LocalError, UsageError
from peer.cli.common import AsJson, Data, tell
from peer.machine import paths


@dataclass(frozen=True, slots=True)
class KeptRun:
    """The data of one run that this machine keeps."""

    run_id: str
    name: str
    bytes: int
    folder: str


def runs(
    data: Data = None,
    forget: Annotated[str | None, typer.Option(help="Delete all that is kept of the run whose id begins so.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the runs that this machine took part in, or forget one."""
    from peer.storage.run_directory import known_manifests

    directory = paths.data_directory(data)
    known = list(known_manifests(directory))
    if forget is not None:
        gone = _chosen(known, forget)
        _forget(directory, gone)
        words = f"forgot {gone.config.name}; this machine's key stays"
        tell(words, {"forgotten": gone.run_id.hex()}, as_json)
        return
    rows = [_row(directory, manifest) for manifest in known]
    nothing = f"no run is kept in {directory}; take part in one with: muster join INVITE"
    tell("\n".join(map(_line, rows)) or nothing, rows, as_json)


def _row(directory: Path, manifest: Manifest) -> KeptRun:
    from peer.machine.sensors import folder_bytes

    path = paths.run_path(directory, manifest.run_id)
    return KeptRun(manifest.run_id.hex(), manifest.config.name, folder_bytes(path), str(path))


def _line(run: KeptRun) -> str:
    from coordinator.views import quantity
    from peer.machine.text import printable

    return printable(f"{run.run_id[:12]}  {quantity.size(run.bytes):>9}  {run.name}")


def _chosen(known: list[Manifest], start: str) -> Manifest:
    found = [manifest for manifest in known if manifest.run_id.hex().startswith(start.lower())]
    if not start or not found:
        raise UsageError(f"no run here has an id that begins with {start!r}; list them with: muster runs")
    if len(found) > 1:
        raise UsageError(f"the ids of {len(found)} runs begin with {start!r}; give more of it")
    return found[0]


def _forget(directory: Path, manifest: Manifest) -> None:
    from coordinator.views.control import PeerNotRunningError, UnreadyError, snapshot

    try:
        if snapshot(directory).run_id == manifest.run_id.hex():
            raise UsageError("the peer here takes part in that run now; end it first with: muster stop")
    except UnreadyError:
        raise  # the peer that starts or ends may be about to read or write this folder
    except PeerNotRunningError:
        pass
    path = paths.run_path(directory, manifest.run_id)
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise LocalError(f"{path} cannot be deleted: {error.strerror}") from None
