"""Writing new heads to the record store, which holds nothing else of the chains (design §10)."""

from __future__ import annotations

import structlog

from coordinator.actions import Publish
from dht.errors import NetworkError
from dht.records import heads_key
from dht.store import RecordStore

log = structlog.get_logger(__name__)

HEADS_LIFETIME_SECONDS = 600.0


async def publish_head(store: RecordStore, run_id: bytes, action: Publish) -> None:
    """Version and digest of a new certificate; a network that does not take it is no reason to stop."""
    certificate = action.certificate
    payload = certificate.version.to_bytes(8, "big") + certificate.digest
    try:
        await store.put(heads_key(run_id, certificate.fragment), payload, HEADS_LIFETIME_SECONDS)
    except NetworkError as error:
        log.info("head_not_published", reason=str(error))
