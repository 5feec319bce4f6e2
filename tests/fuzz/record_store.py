"""Calls to our part of the DHT and answers from others': hivemind's handlers, with our guard, validator and storage.

What hivemind itself cannot read it answers with an error; what breaks in our own code is a bug.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer

import dht
from dht.answer_guard import guard_answers
from dht.errors import MusterError, PeerError
from dht.guard import REQUESTS, CallGuard, node_id_of
from dht.hivemind_storage import SignedRecordValidator, TableStorage
from dht.hivemind_store import _records_in
from dht.identity import Identity, KeyVerifier
from dht.records import RecordBody, make_record, presence_key
from dht.table import ENTRIES_MAX, ENTRIES_PER_KEY_MAX
from dht.validation import RecordRules
from tests.fuzz.strangers import loop
from tests.fuzz.target import Target

NOW = 4_000_000_000.0  # hivemind drops what has expired by the real clock
RUN_ID = bytes(range(32))
US, CALLER = Identity(bytes([1]) * 32), Identity(bytes([2]) * 32)
KEY = presence_key(RUN_ID)
PLACE = DHTID.generate(source=KEY.text)
BODY = RecordBody(payload=b"here", issued_unix_milliseconds=int(NOW * 1000), lifetime_milliseconds=60_000)
RECORD = make_record(CALLER, KEY, BODY)
EXPIRES = RECORD.expires_unix_seconds
INFO = dht_pb2.NodeInfo(node_id=node_id_of(CALLER.peer_id).to_bytes())
OURS = str(Path(dht.__file__).parent)


class Place:
    """One peer's part of the DHT, without a network: whom it calls does not answer."""

    def __init__(self) -> None:
        self.guard, self.storage, self.calls = CallGuard(), TableStorage(lambda: NOW), 0
        self.caller = PeerID.from_base58(CALLER.peer_id)
        self.protocol: Any = loop().run_until_complete(
            DHTProtocol.create(
                None,
                node_id_of(US.peer_id),
                bucket_size=20,
                depth_modulo=5,
                num_replicas=5,
                wait_timeout=1.0,
                client_mode=True,
                record_validator=SignedRecordValidator(RecordRules(RUN_ID, KeyVerifier())),
            )
        )
        self.protocol.storage = self.protocol.cache = self.storage
        self.handlers = {name: getattr(self.protocol, name.partition(".")[2]) for name in REQUESTS}

    def call(self, name: str, data: bytes) -> object:
        """What a call is answered with; raises PeerError for one that is refused."""
        self.calls += 1
        self.guard.check(self.caller, name, data, float(self.calls))
        request = REQUESTS[name][0].FromString(data)
        context = SimpleNamespace(remote_id=self.caller)
        answer = loop().run_until_complete(_alone(self.handlers[name](request, context)))
        table = self.storage.table
        assert len(table) <= ENTRIES_MAX
        assert len(table._places.get(PLACE.to_bytes(), ())) <= ENTRIES_PER_KEY_MAX
        return answer


async def _alone(call: Awaitable[object]) -> object:
    """Await a handler and all that it has left running; raises PeerError for what hivemind refuses."""
    found = await asyncio.gather(call, return_exceptions=True)
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        found += await asyncio.gather(*tasks, return_exceptions=True)
    for error in found:
        if isinstance(error, Exception):
            raise error if _is_ours(error) else PeerError(f"hivemind refuses: {type(error).__name__}") from error
    return found[0]


def _is_ours(error: Exception) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, MusterError) or any(frame.filename.startswith(OURS) for frame in frames)


@cache
def _place() -> Place:
    return Place()


def handle(name: str, data: bytes) -> object:
    """One of hivemind's handlers, behind our guard."""
    return _place().call(name, data)


def dictionary(data: bytes) -> bytes:
    """A dictionary as hivemind packs it, from msgpack triples of subkey, value and expiry; raises PeerError."""
    try:
        items = msgpack.unpackb(data, raw=False, strict_map_key=False)
        return bytes(MSGPackSerializer.dumps(msgpack.ExtType(0x50, msgpack.packb([None, EXPIRES, items]))))
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise PeerError("no dictionary") from error


def store_dictionary(data: bytes) -> object:
    """Somebody hands over a dictionary with such items."""
    return handle("DHTProtocol.rpc_store", _store(DHTProtocol.IS_DICTIONARY, dictionary(data)))


def hear(data: bytes) -> object:
    """A replica answers a search; raises PeerError if there is no record in it."""

    async def rpc_find(_: object, **_options: object) -> Any:
        return dht_pb2.FindResponse.FromString(data)

    protocol = _place().protocol
    protocol.get_stub = lambda _: SimpleNamespace(rpc_find=rpc_find)
    guard_answers(protocol)
    try:
        answer = loop().run_until_complete(_alone(protocol.call_find(_place().caller, [PLACE])))
    finally:
        del protocol.get_stub
    records = _records_in([answer], PLACE)
    if not records:
        raise PeerError("no records")
    return records


def hear_dictionary(data: bytes) -> object:
    """A replica answers a search with a dictionary of such items."""
    return hear(_found(dictionary(data)))


def _store(tag: bytes, value: bytes) -> bytes:
    request = dht_pb2.StoreRequest(
        keys=[PLACE.to_bytes()],
        subkeys=[tag],
        values=[value],
        expiration_time=[EXPIRES],
        in_cache=[False],
        peer=INFO,
    )
    return bytes(request.SerializeToString())


def _found(value: bytes) -> bytes:
    result = dht_pb2.FindResult(
        type=dht_pb2.FOUND_DICTIONARY,
        value=value,
        expiration_time=EXPIRES,
        nearest_node_ids=[node_id_of(CALLER.peer_id).to_bytes()],
        nearest_peer_ids=[PeerID.from_base58(CALLER.peer_id).to_bytes()],
    )
    return bytes(dht_pb2.FindResponse(results=[result], peer=INFO).SerializeToString())


ITEMS = bytes(msgpack.packb([[RECORD.sender, RECORD.value, EXPIRES]]))
CALLS: dict[str, tuple[bytes, ...]] = {
    "DHTProtocol.rpc_ping": (
        dht_pb2.PingRequest(peer=INFO).SerializeToString(),
        dht_pb2.PingRequest(peer=INFO, validate=True).SerializeToString(),
    ),
    "DHTProtocol.rpc_store": (_store(MSGPackSerializer.dumps(RECORD.sender), RECORD.value),),
    "DHTProtocol.rpc_find": (dht_pb2.FindRequest(keys=[PLACE.to_bytes()], peer=INFO).SerializeToString(),),
}
"""Good calls of each of hivemind's handlers."""

STORE_TARGETS: dict[str, Target] = {
    **{f"dht_{name.partition('.rpc_')[2]}": Target(partial(handle, name), seeds) for name, seeds in CALLS.items()},
    "dht_dictionary": Target(store_dictionary, (ITEMS,)),
    "dht_answer": Target(hear, (_found(dictionary(ITEMS)),)),
    "dht_answer_dictionary": Target(hear_dictionary, (ITEMS,)),
}
