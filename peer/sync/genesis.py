"""Version 0 of a run: seeded values that every machine draws, or the host's own, which newcomers download once.

Given values are in a file of the run's folder. They are proven against the digests in the manifest whenever they are
read. So any peer of the run can send them, and received parts can be kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import TypeVar

import structlog

from coordinator.run.manifest import Manifest
from dht.errors import NetworkError, PeerError
from dht.identity import PeerId
from peer.net.frames import StatePiece, decode_header, encode_header
from peer.net.transport import Transport
from peer.numerics.outer_optimizer import OuterState
from peer.storage.anchors import Anchors, layouts_of
from peer.storage.genesis_file import has_genesis, save_genesis
from peer.storage.genesis_parts import GenesisParts
from peer.sync.download import Wanted
from peer.sync.state_client import StateClient

log = structlog.get_logger(__name__)

TRIES_MAX = 5  # failures in a row; received parts are kept between them
RETRY_SECONDS = 2.0  # in which others may be found

Fetched = TypeVar("Fetched")
Holders = Callable[[], Awaitable[Collection[PeerId]]]
"""Returns the peers that may hold version 0, as far as known now."""


async def ensure_genesis(folder: Path, manifest: Manifest, holders: Holders, transport: Transport) -> None:
    """Download and keep version 0 unless it is here or can be drawn; raises NetworkError or LocalError."""
    if not has_genesis(folder, manifest):
        parts = GenesisParts(folder, manifest)
        save_genesis(folder, await fetch_genesis(manifest, holders, transport, parts))
        parts.remove()


async def fetch_genesis(
    manifest: Manifest, holders: Holders, transport: Transport, parts: GenesisParts | None = None
) -> list[OuterState]:
    """Download version 0 of every fragment, before other users of the transport; raises NetworkError."""
    transfer = await begin_client(Anchors(layouts_of(manifest.config), ()), transport)
    kept = GenesisParts(None, manifest) if parts is None else parts
    found = []
    for fragment, digest in enumerate(manifest.genesis):
        state = kept.load(fragment)
        if state is None:
            state = await _fetch(transfer, Wanted(fragment, 0, digest, digest), holders)
            kept.keep(fragment, state)
        found.append(state)
    return found


async def begin_client(anchors: Anchors, transport: Transport) -> StateClient:
    """Start the transport for a client that takes only state pieces, before other users of the transport."""
    client = StateClient(anchors, lambda peer, message, payload: transport.post(peer, encode_header(message), payload))

    def on_frame(sender: PeerId, header: bytes, payload: bytes) -> None:
        try:
            message = decode_header(header)
        except PeerError:
            return
        if isinstance(message, StatePiece):
            client.receive(sender, message, payload)

    await transport.start(on_frame, client.gone)
    return client


async def _fetch(transfer: StateClient, wanted: Wanted, holders: Holders) -> OuterState:
    def arrived_bytes() -> int:
        return transfer.progress([wanted.fragment], asyncio.get_running_loop().time())[0]

    return await patiently(lambda now: transfer.get(wanted, now), arrived_bytes, holders, "first version")


async def patiently(
    fetch: Callable[[list[PeerId]], Awaitable[Fetched]],
    arrived_bytes: Callable[[], int],
    holders: Holders,
    what: str,
) -> Fetched:
    """Fetch from all holders, including those found after others have gone; raises NetworkError."""
    in_vain, asked, before_bytes, why = 0, set[PeerId](), 0, ""
    while in_vain < TRIES_MAX:
        now = set(await holders())
        asked |= now
        try:
            return await fetch(sorted(now))
        except NetworkError as error:
            in_vain = 0 if arrived_bytes() > before_bytes else in_vain + 1
            before_bytes, why = arrived_bytes(), f" ({error})"
            log.info("not_whole_yet", what=what, holders=len(now), reason=str(error))
        await asyncio.sleep(RETRY_SECONDS)
    raise NetworkError(
        f"none of the {len(asked)} peers that were asked gives the run's {what}{why}; what has arrived is kept: "
        "try again, with a fresh invite if this one's peers have gone"
    )
