"""Limits on what one peer may ask of our part of the DHT, and under which node id; hivemind has none.

One unary call carries up to 4 MiB: a search for 190,000 keys, or any number of records. Either would block this peer
for many seconds. A short search is answered with all records of its keys, and hivemind keeps every answer in memory
until it is sent. A peer that names another node id in every call counts as that many new neighbours, and is sent the
records for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from google.protobuf.message import DecodeError
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2

from dht.admission import PASS_BYTES_MAX
from dht.allowance import Allowances, Answers, CallerLimits
from dht.door import Door
from dht.errors import PeerError
from dht.hivemind_storage import HANDOVER_RECORDS_MAX, entries_in
from dht.table import ENTRIES_PER_KEY_MAX

STORE_BYTES_MAX = 2 << 20  # a handover (`dht.hivemind_storage.HANDOVER_BYTES_MAX`) and hivemind's packing
CALL_BYTES_MAX = 512 + PASS_BYTES_MAX  # a ping, or a search
KEYS_PER_SEARCH_MAX = 1  # `dht.hivemind_store` searches for one at a time, and so does hivemind itself
CALLS_AT_ONCE = 512
CALLS_PER_SECOND = 32.0  # an honest peer makes a few, and a few dozen while it joins
BYTES_AT_ONCE = 4 << 20
BYTES_PER_SECOND = float(64 << 10)
ANSWER_BYTES_AT_ONCE = 16 << 20  # a peer that joins a full swarm reads 230 kB of presence from us, four times a second
ANSWER_BYTES_PER_SECOND = float(256 << 10)
CALLERS_KEPT = 1024
NEW_CALLS_PER_SECOND = 4.0  # of a peer that has shown no pass yet; an honest one shows it with its first call
ALL_NEW_CALLS_PER_SECOND = 256.0

PING = "DHTProtocol.rpc_ping"
STORE = "DHTProtocol.rpc_store"
FIND = "DHTProtocol.rpc_find"

REQUESTS: Mapping[str, tuple[Any, int]] = MappingProxyType(
    {
        PING: (dht_pb2.PingRequest, CALL_BYTES_MAX),
        STORE: (dht_pb2.StoreRequest, STORE_BYTES_MAX),
        FIND: (dht_pb2.FindRequest, CALL_BYTES_MAX),
    }
)
"""hivemind's handlers: the type of each one's requests, and the bytes of the longest that an honest peer sends."""


@lru_cache(maxsize=CALLERS_KEPT)
def node_id_of(peer: str) -> Any:
    """Return a peer's node id in the DHT; it follows from the peer's key, so that no peer can choose it."""
    return DHTID.generate(source=peer)


def show_pass(request: Any, shown: bytes) -> None:
    """Put a pass into one of hivemind's calls, in a field for tokens that is otherwise unused here."""
    if shown:
        request.auth.client_access_token.signature = shown


def pass_in(request: Any) -> bytes:
    """Return the pass in one of hivemind's calls; empty if there is none."""
    shown: bytes = request.auth.client_access_token.signature
    return shown


class Calls(dict[Any, "asyncio.Task[Any]"]):
    """The calls that are being answered, by id; replaces hivemind's own table.

    hivemind forgets a call only once it has answered it. A call whose caller gave up or vanished meanwhile would stay
    in memory for ever.
    """

    def __setitem__(self, call_id: Any, answering: asyncio.Task[Any]) -> None:
        super().__setitem__(call_id, answering)
        answering.add_done_callback(lambda _: self.pop(call_id, None))


class Questions(dict[Any, "asyncio.Future[Any]"]):
    """Our own calls that wait for answers, by id; replaces hivemind's own table.

    An answer may arrive at the very moment its call is cancelled. With hivemind's table, its only reader task then
    ended: no later answer and no call of another peer came through, while the daemon lived on.
    """

    def __contains__(self, call_id: object) -> bool:
        waiting = self.get(call_id)
        return waiting is not None and not waiting.done()


class CallGuard:
    """Decides which calls are answered. When it knows too many peers, it forgets the one that was silent longest."""

    def __init__(self, door: Door | None = None, answers: Answers | None = None) -> None:
        self._door = door or Door()
        self._given = answers or Answers()
        self._calls = Allowances(CALLS_PER_SECOND, CALLS_AT_ONCE, CALLERS_KEPT)
        self._volumes = Allowances(BYTES_PER_SECOND, BYTES_AT_ONCE, CALLERS_KEPT)
        self._answers = Allowances(ANSWER_BYTES_PER_SECOND, ANSWER_BYTES_AT_ONCE, CALLERS_KEPT)
        self._newcomers = CallerLimits(NEW_CALLS_PER_SECOND, CALLS_AT_ONCE, ALL_NEW_CALLS_PER_SECOND, CALLERS_KEPT)

    def check(self, caller: Any, handler: str, request: bytes, now: float) -> None:
        """Raise PeerError for a call that costs too much, comes without a pass, or has another key's node id."""
        model, bytes_max = REQUESTS[handler]
        if len(request) > bytes_max:
            raise PeerError(f"a call of {len(request)} bytes is over the limit of {bytes_max}")
        name = caller.to_bytes()
        if handler != PING and self._given.strangers.is_shut_out(caller.to_base58()):
            raise PeerError("a peer that was removed is not answered")
        if not self._door.knows(caller.to_base58()) and not self._newcomers.take(name, now):
            raise PeerError("too many calls of strangers")
        calls, volume = self._calls.of(name), self._volumes.of(name)
        if calls.wait_seconds(now) or volume.wait_seconds(now):
            raise PeerError("too many calls")
        calls.take(1.0, now)
        volume.take(len(request), now)
        if handler == FIND and (
            self._answers.of(name).wait_seconds(now) or not self._given.strangers.admits(caller.to_base58(), now)
        ):
            raise PeerError("too many answers")
        self._check_content(caller, handler, request, model)

    def _check_content(self, caller: Any, handler: str, request: bytes, model: Any) -> None:
        try:
            asked = model.FromString(request)
        except DecodeError:
            raise PeerError("a call that cannot be read") from None
        refused = self._door.refusal(caller.to_base58(), pass_in(asked))
        if refused is not None:
            raise PeerError(f"not let in: {refused}")
        claimed: bytes = asked.peer.node_id
        if claimed and claimed != node_id_of(caller.to_base58()).to_bytes():
            raise PeerError("a node id that does not follow from the caller's key")
        if handler == FIND and len(asked.keys) > KEYS_PER_SEARCH_MAX:
            raise PeerError(f"a search for {len(asked.keys)} keys at once")
        if handler == STORE:
            _check_handover(asked)

    def answered(self, caller: Any, size_bytes: int, now: float) -> None:
        """Count the bytes of an answer to this caller."""
        self._answers.of(caller.to_bytes()).take(size_bytes, now)
        self._given.gave(caller.to_base58(), size_bytes, now)


def _check_handover(asked: Any) -> None:
    """Raise PeerError for more records than an honest peer hands over: hivemind checks all of them in one go."""
    left = HANDOVER_RECORDS_MAX
    for subkey, value in zip(asked.subkeys, asked.values, strict=False):  # hivemind takes the shorter one, too
        entries = entries_in(value) if subkey == DHTProtocol.IS_DICTIONARY else 1
        left -= entries
        if entries > ENTRIES_PER_KEY_MAX or left < 0:
            raise PeerError("too many records at once")


def guard_handlers(handlers: dict[str, Any], guard: CallGuard, clock: Any) -> None:
    """Put the guard in front of the DHT's handlers among hivemind's unary handlers."""
    for name in REQUESTS.keys() & handlers.keys():
        handlers[name] = _guarded(name, handlers[name], guard, clock)


def _guarded(name: str, handle: Any, guard: CallGuard, clock: Any) -> Any:
    async def guarded(request: bytes, caller: PeerID) -> bytes:
        guard.check(caller, name, request, clock())
        answer: bytes = await handle(request, caller)
        guard.answered(caller, len(answer), clock())
        return answer

    return guarded
