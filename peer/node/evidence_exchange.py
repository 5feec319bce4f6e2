"""Moves evidence between the protocol core, the disk and the record store (design §9, §10).

The record store holds heads of evidence: convicted keys and digests. A peer that finds one asks its writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from functools import partial
from random import SystemRandom

import structlog

from coordinator.chain.chain import active_sets
from coordinator.core.actions import KeepEvidence
from coordinator.core.events import Received
from coordinator.trust.bans import Ban
from coordinator.wire.messages import ConvictionsNote
from dht.errors import LocalError, NetworkError, PeerError
from dht.identity import PeerId
from dht.records import evidence_key
from dht.store import RecordStore, StoredRecord
from peer.machine.timed_wait import pause
from peer.rounds.driver import RoundDriver
from peer.storage.evidence_files import EvidenceFiles

log = structlog.get_logger(__name__)

HEADS_MAX = 4  # in one record, which has little space
HEADS_LIFETIME_SECONDS = 3600.0
REFRESH_SECONDS = 600.0
STRANGERS_READ_MAX = 16  # in one pass: a record costs its sender only a key, and may make us write to that sender


class EvidenceExchange:
    """Handles one peer's evidence. Restores earlier bans at once; `run` reads and refreshes heads until cancelled."""

    def __init__(self, driver: RoundDriver, shelf: EvidenceFiles, store: RecordStore) -> None:
        self._driver = driver
        self._shelf = shelf
        self._store = store
        self._key = evidence_key(driver.engine.core.rules.run_id)
        self._news = asyncio.Event()
        self._turn = 0  # selects heads where there are more than a record can hold
        driver.engine.enforcement.restore(shelf.read())
        driver.keep = self._keep

    def _keep(self, action: KeepEvidence) -> None:
        orders = tuple(self._driver.engine.core.bans.given.values()) if action.ban.guilt.issued is not None else ()
        self._driver.work.submit(partial(self._write, action, orders))
        self._turn = 0
        self._news.set()

    def _write(self, action: KeepEvidence, orders: tuple[Ban, ...]) -> None:
        try:
            self._shelf.keep(action.ban)
            if orders:
                self._shelf.forget_orders(but=orders)
        except LocalError as error:  # the ban holds while this process lives, and others have the evidence, too
            log.warning("evidence_not_kept", reason=str(error))

    async def run(self) -> None:
        """Publish our heads when they are new, and every ten minutes; then read those of others."""
        while True:
            self._news.clear()
            try:
                await self._publish()
                await self._read()
            except NetworkError as error:
                log.info("evidence_heads_failed", reason=str(error))
            await pause(REFRESH_SECONDS, self._news)

    async def _publish(self) -> None:
        held = self._driver.engine.core.bans.everything()
        if held:
            heads = ConvictionsNote(convictions=tuple(ban.conviction for ban in heads_at(held, self._turn)))
            self._turn += 1
            await self._store.put(self._key, heads.to_wire(), HEADS_LIFETIME_SECONDS)

    async def _read(self) -> None:
        engine = self._driver.engine
        known = active_sets(machine.chain for machine in engine.machines)
        records = [record for record in await self._store.get(self._key) if record.sender != engine.core.me]
        for record in drawn(records, known):
            try:
                heads = ConvictionsNote.from_wire(record.payload)
            except PeerError:
                continue
            if len(heads.convictions) <= HEADS_MAX:
                self._driver.feed(Received(record.sender, heads))


def heads_at(held: Sequence[Ban], turn: int) -> Sequence[Ban]:
    """Return the bans for the record at this turn: the newest first, then the others in turn."""
    newest_first = held[::-1]
    begin = HEADS_MAX * (turn % -(-len(held) // HEADS_MAX))
    return newest_first[begin : begin + HEADS_MAX]


def drawn(records: Sequence[StoredRecord], known: Set[PeerId]) -> list[StoredRecord]:
    """Return the records of peers that we know, and those of a few strangers drawn at random."""
    strangers = [record for record in records if record.sender not in known]
    few = SystemRandom().sample(strangers, min(len(strangers), STRANGERS_READ_MAX))
    return [record for record in records if record.sender in known] + few
