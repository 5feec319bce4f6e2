"""Downloads the base of an adapter run, if its organiser gives it: once, from any peers of the run that have it.

It is stored in the run's folder as `save_pretrained` writes it: the file that the manifest names, and the manifest's
config.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from coordinator.run.adapter_spec import BaseFile
from coordinator.run.manifest import Manifest, RunConfig
from dht.errors import LocalError, UsageError
from dht.files import publish
from peer.data.tally import Tell
from peer.model.base import BASE_FILE, base_folder
from peer.model.config_table import without_refused
from peer.model.located import located
from peer.net.transport import Transport
from peer.storage.anchors import Anchors
from peer.storage.base_place import BASE_FOLDER
from peer.sync.base_file import FileDownload, ServedFile
from peer.sync.genesis import Holders, begin_client, patiently
from peer.sync.state_server import StateServer

CONFIG = "config.json"


async def ensure_base(folder: Path, manifest: Manifest, holders: Holders, transport: Transport, tell: Tell) -> Path:
    """Return the base's folder inside the run's folder; downloads a missing base. Raises NetworkError or LocalError."""
    adapter, place = manifest.config.adapter, folder / BASE_FOLDER
    if adapter is None or adapter.base_file is None:
        raise ValueError("nobody gives the base of this run")
    if await asyncio.to_thread(ServedFile.read, place / BASE_FILE, adapter.base_file) is None:
        await _fetch(place, adapter.base_file, holders, transport, tell)
    _write_config(place, manifest)
    return place


async def hand_out_base(server: StateServer, config: RunConfig, base: str) -> None:
    """Serve the base to peers that ask, if this run's base is given and is here as one file, from whatever source."""
    if config.adapter is None or (file := config.adapter.base_file) is None:
        return

    def read() -> ServedFile | None:
        try:
            folder = base_folder(located(config, base).model.source)
        except UsageError:
            return None  # the trainer reports the error
        return ServedFile.read(folder / BASE_FILE, file)

    served = await asyncio.to_thread(read)
    if served is not None:
        server.hand_out(file.digest, served)


async def _fetch(place: Path, file: BaseFile, holders: Holders, transport: Transport, tell: Tell) -> None:
    whole = place / BASE_FILE
    part = whole.with_suffix(".part")

    def begin() -> FileDownload:
        try:
            place.mkdir(exist_ok=True)
            if whole.exists():
                whole.replace(part)  # damaged: its valid pieces are kept
        except OSError as error:
            raise LocalError(f"{place} cannot be written: {error.strerror}") from None
        return FileDownload(part, file, tell)

    download = await asyncio.to_thread(begin)
    client = await begin_client(Anchors((), ()), transport)
    try:
        await patiently(lambda now: client.get_file(download, now), lambda: download.bytes_done, holders, BASE_FOLDER)
    finally:
        client.close()
        download.close()
    publish(part, whole)


def _write_config(place: Path, manifest: Manifest) -> None:
    """Write the model's config, for `transformers` and for the owner, who may combine base and result."""
    model = manifest.config.model
    table = {"model_type": model.family, **without_refused(model.settings_table)}
    (place / CONFIG).write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
