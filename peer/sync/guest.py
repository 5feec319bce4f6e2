"""A guest's visit to a run, with a temporary key, so that it reveals only an address."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from coordinator.run.manifest import Manifest
from dht.daemon.config import DaemonConfig
from dht.door import Door
from dht.identity import Identity
from dht.invite import Invite
from peer.machine.paths import IDENTITY_NAME, runtime_directory
from peer.net.network import Network
from peer.sync.bootstrap import fetch_manifest


@asynccontextmanager
async def as_guest(invite: Invite, own_key: Path, listen: str | None = None) -> AsyncIterator[tuple[Network, Manifest]]:
    """Call the peers that the invite names, and fetch the run's manifest; without `listen`, a guest cannot be called.

    If the invite names one peer, `own_key` is shown, because only that peer is admitted. Raises as `Network.open` and
    `fetch_manifest` do.
    """
    with tempfile.TemporaryDirectory(prefix="muster-visit-") as folder:
        key = Path(folder) / IDENTITY_NAME if invite.named is None else own_key
        identity = Identity.load_or_create(key)
        config = DaemonConfig(
            key,
            initial_peers=invite.addresses,
            client_only=listen is None,
            runtime_parent=runtime_directory(),
            door=Door(invite.pass_for),
            fresh_key=identity.is_new,
        )
        if listen is not None:
            config = replace(config, listen=(listen,))
        network = await Network.open(config, invite.run_id, lambda _: [])
        try:
            yield network, await fetch_manifest(network, invite.run_id, invite.peers)
        finally:
            await network.close()
