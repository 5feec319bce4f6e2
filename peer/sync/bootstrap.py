"""The first questions of a newcomer: the manifest, and the chains that end at the heads of its invite.

Every answer is proven by the run id or the invite, so its sender does not matter. The transport delivers to this module
for a bounded time, and is then started again by its next user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from itertools import product

from coordinator.chain.chain import Chain
from coordinator.run.compatibility import read_manifest
from coordinator.run.manifest import Manifest, run_id_of
from coordinator.wire.messages import Message
from dht.errors import NetworkError, PeerError
from dht.identity import PeerId
from peer.machine.timed_wait import pause
from peer.net.frames import HeadsAnswer, ManifestAnswer, ManifestAsk, TailAnswer, Transfer, decode_header, encode_header
from peer.net.transport import Transport
from peer.sync.introduction import Introduction

MANIFEST_SECONDS_MAX = 10.0  # a person waits, perhaps with an invite of a run that is over
INQUIRY_SECONDS_MAX = 30.0
INQUIRY_RETRY_SECONDS = 0.5


async def fetch_manifest(transport: Transport, run_id: bytes, holders: Set[PeerId]) -> Manifest:
    """Return the run's manifest from any of `holders`; its hash is the run id.

    Raises NetworkError if no peer answers, UsageError if this version cannot take part in the run.
    """
    found: list[bytes] = []

    def hear(_: PeerId, message: Message | Transfer) -> bool:
        if isinstance(message, ManifestAnswer) and run_id_of(message.manifest) == run_id:
            found.append(message.manifest)
        return bool(found)

    await _inquire(transport, holders, lambda: [] if found else [ManifestAsk()], hear, MANIFEST_SECONDS_MAX)
    if not found:
        raise NetworkError("nobody named in the invite answers for this run; ask for a fresh invite")
    return read_manifest(found[0], run_id)


async def fetch_chains(transport: Transport, holders: Set[PeerId], introduction: Introduction) -> tuple[Chain, ...]:
    """Return the chains that end at the waypoint of an invite, from any of `holders`. Raises NetworkError."""

    def questions() -> Sequence[Transfer]:
        return [] if introduction.done or holders <= introduction.refused else introduction.questions()

    def hear(sender: PeerId, message: Message | Transfer) -> bool:
        if sender not in holders or not isinstance(message, HeadsAnswer | TailAnswer):
            return False
        return introduction.hear(sender, message)

    await _inquire(transport, holders, questions, hear)
    if not introduction.done:
        raise NetworkError("the run has gone on too far since this invite was made; ask for a fresh invite")
    return introduction.chains()


async def _inquire(
    transport: Transport,
    holders: Set[PeerId],
    questions: Callable[[], Sequence[Transfer]],
    hear: Callable[[PeerId, Message | Transfer], bool],
    seconds: float = INQUIRY_SECONDS_MAX,
) -> None:
    """Ask all of `holders` until there are no more questions or time is up; `hear` returns whether these changed."""
    news = asyncio.Event()

    def on_frame(sender: PeerId, header: bytes, _: bytes) -> None:
        with suppress(PeerError):  # of another version, or malformed
            if hear(sender, decode_header(header)):
                news.set()

    await transport.start(on_frame, lambda peer: None)
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while asked := questions():
                news.clear()
                for holder, question in product(sorted(holders - {transport.peer_id}), asked):
                    transport.post(holder, encode_header(question))
                await pause(INQUIRY_RETRY_SECONDS, news)
