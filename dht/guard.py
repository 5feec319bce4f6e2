"""Bounds on what one peer may ask of our part of the DHT, and as whom; hivemind has none.

One unary call carries up to 4 MiB: a search for 190,000 keys at once, or as many records as one likes, which would keep
a peer from everything else for many seconds. A search of some bytes is answered with all records of its keys, and
hivemind keeps every answer in memory until it is sent. And a peer that names another node id in every call is taken for
as many new neighbours, each of which is sent all records that it should hold.
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
from dht.allowance import Allowances, Answers, Turns
from dht.door import Door
from dht.errors import PeerError
from dht.hivemind_storage import HANDOVER_RECORDS_MAX, entries_in
from dht.table import ENTRIES_PER_KEY_MAX

STORE_BYTES_MAX = 2 << 20  # a handover (`dht.hivemind_storage.HANDOVER_BYTES_MAX`) and what hivemind packs around it
CALL_BYTES_MAX = 512 + PASS_BYTES_MAX  # a ping, or a search
KEYS_PER_SEARCH_MAX = 1  # as many as `dht.hivemind_store` looks for at once, and so hivemind on its way to the nearest
CALLS_AT_ONCE = 512
CALLS_PER_SECOND = 32.0  # an honest peer makes a few, and some dozen while it joins
BYTES_AT_ONCE = 4 << 20
BYTES_PER_SECOND = float(64 << 10)
ANSWER_BYTES_AT_ONCE = 16 << 20  # who joins a full swarm reads 230 kB of presence from us, four times a second
ANSWER_BYTES_PER_SECOND = float(256 << 10)
CALLERS_KEPT = 1024
NEW_CALLS_PER_SECOND = 4.0  # of one who has shown no pass yet: it shows it with its first
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
"""hivemind's handlers: what they read, and the longest of it that an honest peer sends."""


@lru_cache(maxsize=CALLERS_KEPT)
def node_id_of(peer: str) -> Any:
    """Where a peer stands in the DHT: tied to its key, so that nobody can choose it."""
    return DHTID.generate(source=peer)


def show_pass(request: Any, shown: bytes) -> None:
    """Put a pass into one of hivemind's calls, in a field that it has for tokens and that nobody here uses."""
    if shown:
        request.auth.client_access_token.signature = shown


def pass_in(request: Any) -> bytes:
    """What its caller shows."""
    shown: bytes = request.auth.client_access_token.signature
    return shown


class Calls(dict[Any, "asyncio.Task[Any]"]):
    """Calls that are being answered, by id; stands in for hivemind's own table.

    hivemind forgets a call when it has answered it, and so never if its caller gave up or vanished while it waited:
    every such call would stay in memory.
    """

    def __setitem__(self, call_id: Any, answering: asyncio.Task[Any]) -> None:
        super().__setitem__(call_id, answering)
        answering.add_done_callback(lambda _: self.pop(call_id, None))


class Questions(dict[Any, "asyncio.Future[Any]"]):
    """Calls of ours that wait for their answers, by id; stands in for hivemind's own table.

    An answer may come in the very moment in which its call is given up. hivemind's only reader ended then, and with it
    every later answer and every call of others, while the daemon lived on.
    """

    def __contains__(self, call_id: object) -> bool:
        waiting = self.get(call_id)
        return waiting is not None and not waiting.done()


class CallGuard:
    """Says which calls are answered. Forgets the peer that was silent longest."""

    def __init__(self, door: Door | None = None, answers: Answers | None = None) -> None:
        self._door = door or Door()
        self._given = answers or Answers()
        self._calls = Allowances(CALLS_PER_SECOND, CALLS_AT_ONCE, CALLERS_KEPT)
        self._volumes = Allowances(BYTES_PER_SECOND, BYTES_AT_ONCE, CALLERS_KEPT)
        self._answers = Allowances(ANSWER_BYTES_PER_SECOND, ANSWER_BYTES_AT_ONCE, CALLERS_KEPT)
        self._newcomers = Turns(NEW_CALLS_PER_SECOND, CALLS_AT_ONCE, ALL_NEW_CALLS_PER_SECOND, CALLERS_KEPT)

    def check(self, caller: Any, handler: str, request: bytes, now: float) -> None:
        """Raises PeerError for a call that costs too much, of who has no pass, or under a node id of another key."""
        model, bytes_max = REQUESTS[handler]
        if len(request) > bytes_max:
            raise PeerError(f"a call of {len(request)} bytes is over the limit of {bytes_max}")
        name = caller.to_bytes()
        if handler != PING and self._given.strangers.is_shut_out(caller.to_base58()):
            raise PeerError("a peer that was shown out is not answered")
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
        """So much goes to this caller."""
        self._answers.of(caller.to_bytes()).take(size_bytes, now)
        self._given.gave(caller.to_base58(), size_bytes, now)


def _check_handover(asked: Any) -> None:
    """Raises PeerError for more records than an honest peer hands over: hivemind checks all of them in one go."""
    left = HANDOVER_RECORDS_MAX
    for subkey, value in zip(asked.subkeys, asked.values, strict=False):  # hivemind takes the shorter one, too
        entries = entries_in(value) if subkey == DHTProtocol.IS_DICTIONARY else 1
        left -= entries
        if entries > ENTRIES_PER_KEY_MAX or left < 0:
            raise PeerError("too many records at once")


def guard_handlers(handlers: dict[str, Any], guard: CallGuard, clock: Any) -> None:
    """Put the guard before those of hivemind's unary handlers that are the DHT's."""
    for name in REQUESTS.keys() & handlers.keys():
        handlers[name] = _guarded(name, handlers[name], guard, clock)


def _guarded(name: str, handle: Any, guard: CallGuard, clock: Any) -> Any:
    async def guarded(request: bytes, caller: PeerID) -> bytes:
        guard.check(caller, name, request, clock())
        answer: bytes = await handle(request, caller)
        guard.answered(caller, len(answer), clock())
        return answer

    return guarded
