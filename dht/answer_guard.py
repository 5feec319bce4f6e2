"""Checks of the answers to our own DHT calls; hivemind makes none.

An answer names its sender's node id, and the answer to a search also names neighbours. hivemind turns each neighbour's
peer id into base58 in quadratic time: an id of 60 kB blocks this process for seconds. A node id of the wrong length
ends the task that sent a ping. A peer that names another node id in every answer fills our routing table with entries
that lead to it. It is also handed our records for each of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2

from dht.errors import PeerError
from dht.guard import KEYS_PER_SEARCH_MAX, node_id_of, show_pass
from dht.hivemind_storage import entries_in
from dht.records import RECORD_BYTES_MAX
from dht.table import ENTRIES_PER_KEY_MAX

NEIGHBOURS_MAX = 20  # hivemind's bucket size; no honest peer names more
PEER_ID_BYTES_MAX = 64  # ours have 38
VALUE_BYTES_MAX = ENTRIES_PER_KEY_MAX * RECORD_BYTES_MAX * 5 // 4  # all records of a full place, and hivemind's packing


def guard_answers(protocol: Any, shown: bytes = b"") -> None:
    """Make the calls of hivemind's protocol fail on a wrong answer, which hivemind then treats as silence.

    Each call carries our pass, `shown`.
    """
    stub_of = protocol.get_stub
    protocol.get_stub = lambda peer: _CheckedStub(stub_of(peer), peer, shown)


class _CheckedStub:
    """Calls one peer and checks its answers, inside hivemind's own `try`."""

    def __init__(self, stub: Any, peer: Any, shown: bytes) -> None:
        self._stub = stub
        self._peer = peer
        self._shown = shown

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        call = getattr(self._stub, name)

        async def checked(request: Any, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - hivemind gives it
            show_pass(request, self._shown)
            answer = await call(request, timeout=timeout)
            check_answer(self._peer, answer)
            return answer

        return checked


def check_answer(peer: Any, answer: Any) -> None:
    """Raise PeerError for an answer that no honest peer gives."""
    claimed: bytes = answer.peer.node_id
    if claimed and claimed != node_id_of(peer.to_base58()).to_bytes():
        raise PeerError("a node id that does not follow from the key of who answers")
    if not isinstance(answer, dht_pb2.FindResponse):
        return
    if len(answer.results) > KEYS_PER_SEARCH_MAX:
        raise PeerError(f"an answer of {len(answer.results)} results")
    for result in answer.results:
        _check_neighbours(result.nearest_node_ids, result.nearest_peer_ids)
        _check_value(result)


def _check_neighbours(node_ids: Any, peer_ids: Any) -> None:
    if not len(node_ids) == len(peer_ids) <= NEIGHBOURS_MAX:
        raise PeerError(f"neighbours with {len(node_ids)} node ids and {len(peer_ids)} peer ids")
    for node_id, peer_id in zip(node_ids, peer_ids, strict=True):
        if len(peer_id) > PEER_ID_BYTES_MAX:  # before anything turns it into base58
            raise PeerError(f"a peer id of {len(peer_id)} bytes")
        if node_id != node_id_of(PeerID(peer_id).to_base58()).to_bytes():
            raise PeerError("a neighbour's node id that does not follow from its key")


def _check_value(result: Any) -> None:
    if len(result.value) > VALUE_BYTES_MAX:
        raise PeerError(f"a value of {len(result.value)} bytes is over the limit of {VALUE_BYTES_MAX}")
    if result.type == dht_pb2.FOUND_DICTIONARY and entries_in(result.value) > ENTRIES_PER_KEY_MAX:
        raise PeerError("more records than a place holds")
