"""What one peer may ask of our part of the DHT: so much, so often, and as itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer
from hypothesis import given
from hypothesis import strategies as st

from dht.allowance import Allowance, Answers, StrangersShare
from dht.errors import PeerError
from dht.guard import (
    ANSWER_BYTES_AT_ONCE,
    ANSWER_BYTES_PER_SECOND,
    BYTES_AT_ONCE,
    CALL_BYTES_MAX,
    CALLERS_KEPT,
    CALLS_AT_ONCE,
    CALLS_PER_SECOND,
    STORE_BYTES_MAX,
    CallGuard,
    guard_handlers,
    node_id_of,
)
from dht.hivemind_storage import HANDOVER_BYTES_MAX, HANDOVER_RECORDS_MAX
from dht.identity import Identity
from dht.table import ENTRIES_PER_KEY_MAX
from tests.dht.conftest import ALICE, BOB

PING, STORE, FIND = "DHTProtocol.rpc_ping", "DHTProtocol.rpc_store", "DHTProtocol.rpc_find"


def caller(identity: Identity = ALICE) -> PeerID:
    return PeerID.from_base58(identity.peer_id)


def find(keys: int, identity: Identity = ALICE) -> bytes:
    info = dht_pb2.NodeInfo(node_id=node_id_of(identity.peer_id).to_bytes())
    request: bytes = dht_pb2.FindRequest(keys=[bytes(20)] * keys, peer=info).SerializeToString()
    return request


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 5)), max_size=50), st.floats(0.1, 10), st.floats(0.1, 10))
def test_bytes_taken_while_nothing_is_owed_stay_within_the_rate(
    takes: list[tuple[float, float]], per_second: float, at_once: float
) -> None:
    allowance, now, taken, largest = Allowance(per_second, at_once), 0.0, 0.0, 0.0
    for pause, amount in takes:
        now += pause
        if allowance.wait_seconds(now) == 0.0:
            allowance.take(amount, now)
            taken, largest = taken + amount, max(largest, amount)
    assert taken <= at_once + per_second * now + largest + 1e-6


def test_a_caller_that_waited_may_take_again() -> None:
    allowance = Allowance(2.0, 4.0)
    allowance.take(10.0, 0.0)
    assert allowance.wait_seconds(0.0) == pytest.approx(3.0)
    assert allowance.wait_seconds(2.0) == pytest.approx(1.0)
    assert allowance.wait_seconds(3.0) == 0.0


def test_calls_of_honest_peers_pass() -> None:
    guard = CallGuard()
    guard.check(caller(), FIND, find(1), 0.0)
    guard.check(caller(), PING, b"", 0.0)
    handover = dht_pb2.StoreRequest(values=[bytes(HANDOVER_BYTES_MAX)]).SerializeToString()
    guard.check(caller(), STORE, handover, 0.0)
    assert len(handover) < STORE_BYTES_MAX


def test_a_call_for_more_than_anybody_needs_is_refused() -> None:
    guard = CallGuard()
    with pytest.raises(PeerError, match=f"over the limit of {CALL_BYTES_MAX}"):
        guard.check(caller(), FIND, find(CALL_BYTES_MAX // 20), 0.0)
    with pytest.raises(PeerError, match="a search for 2 keys at once"):
        guard.check(caller(), FIND, find(2), 0.0)
    with pytest.raises(PeerError, match="over the limit"):
        guard.check(caller(), STORE, bytes(STORE_BYTES_MAX + 1), 0.0)


def handover(*sizes: int) -> bytes:
    """A call that hands over a dictionary of each of these sizes."""
    values = []
    for size in sizes:
        whole = DictionaryDHTValue()
        for number in range(size):
            whole.store(f"{number}", b"", 4e9)
        values.append(MSGPackSerializer.dumps(whole))
    request: bytes = dht_pb2.StoreRequest(subkeys=[b""] * len(sizes), values=values).SerializeToString()
    return request


def test_more_records_than_anybody_hands_over_are_refused_before_a_signature_is_checked() -> None:
    guard, full = CallGuard(), [ENTRIES_PER_KEY_MAX] * (HANDOVER_RECORDS_MAX // ENTRIES_PER_KEY_MAX)
    guard.check(caller(), STORE, handover(*full), 0.0)
    for sizes in ([ENTRIES_PER_KEY_MAX + 1], [*full, 1]):
        with pytest.raises(PeerError, match="too many records"):
            guard.check(caller(), STORE, handover(*sizes), 0.0)
    single = dht_pb2.StoreRequest(subkeys=[b"one"] * (HANDOVER_RECORDS_MAX + 1), values=[b""] * 2000)
    with pytest.raises(PeerError, match="too many records"):
        guard.check(caller(), STORE, single.SerializeToString(), 0.0)
    with pytest.raises(PeerError, match="cannot be read"):
        guard.check(caller(), STORE, dht_pb2.StoreRequest(subkeys=[b""], values=[b""]).SerializeToString(), 0.0)


def test_a_call_that_is_none_is_refused() -> None:
    with pytest.raises(PeerError, match="cannot be read"):
        CallGuard().check(caller(), PING, b"\xff", 0.0)


def test_a_node_id_of_another_key_is_refused() -> None:
    guard = CallGuard()
    with pytest.raises(PeerError, match="does not follow"):
        guard.check(caller(BOB), FIND, find(1, ALICE), 0.0)
    guard.check(caller(BOB), FIND, find(1, BOB), 0.0)


def test_too_many_calls_are_refused_and_nobody_elses() -> None:
    guard = CallGuard()
    for _ in range(CALLS_AT_ONCE):
        guard.check(caller(), PING, b"", 0.0)
    guard.check(caller(), PING, b"", 0.0)  # now something is owed
    with pytest.raises(PeerError, match="too many"):
        guard.check(caller(), PING, b"", 0.0)
    guard.check(caller(BOB), PING, b"", 0.0)
    guard.check(caller(), PING, b"", 1.1 / CALLS_PER_SECOND)


def test_few_calls_with_much_in_them_are_too_many_as_well() -> None:
    guard, large = CallGuard(), dht_pb2.StoreRequest(values=[bytes(STORE_BYTES_MAX - 100)]).SerializeToString()
    for _ in range(BYTES_AT_ONCE // len(large) + 1):
        guard.check(caller(), STORE, large, 0.0)
    with pytest.raises(PeerError, match="too many"):
        guard.check(caller(), PING, b"", 0.0)


def test_searches_with_large_answers_are_too_many_and_nothing_else_is() -> None:
    guard, size = CallGuard(), 1 << 20
    for _ in range(ANSWER_BYTES_AT_ONCE // size + 1):
        guard.check(caller(), FIND, find(1), 0.0)
        guard.answered(caller(), size, 0.0)
    with pytest.raises(PeerError, match="too many answers"):
        guard.check(caller(), FIND, find(1), 0.0)
    guard.check(caller(), PING, b"", 0.0)
    guard.check(caller(BOB), FIND, find(1, BOB), 0.0)
    guard.check(caller(), FIND, find(1), 1.1 * size / ANSWER_BYTES_PER_SECOND)


def test_the_callers_remembered_are_bounded() -> None:
    guard = CallGuard()
    for number in range(CALLERS_KEPT + 10):
        guard.check(PeerID(b"\x12\x20" + number.to_bytes(32, "big")), PING, b"", 0.0)
    assert len(guard._calls) == CALLERS_KEPT


def test_a_refused_call_does_not_reach_its_handler() -> None:
    reached = []

    async def handle(request: bytes, caller: PeerID) -> bytes:
        reached.append(request)
        return b"answer"

    handlers: dict[str, Callable[..., object]] = {PING: handle, "another": handle}
    guard_handlers(handlers, CallGuard(), lambda: 0.0)
    assert asyncio.run(handlers[PING](b"", caller())) == b"answer"  # type: ignore[arg-type]
    with pytest.raises(PeerError):
        asyncio.run(handlers[PING](bytes(CALL_BYTES_MAX + 1), caller()))  # type: ignore[arg-type]
    assert reached == [b""]
    assert handlers["another"] is handle


def test_answers_at_once_to_one_caller_are_bounded() -> None:
    """Also of searches that come together: each is answered in one go, and the next is looked at after that."""
    size, given = 1 << 20, 0

    async def handle(request: bytes, caller: PeerID) -> bytes:
        nonlocal given
        given += 1
        return bytes(size)

    handlers: dict[str, Callable[..., object]] = {FIND: handle}
    guard_handlers(handlers, CallGuard(), lambda: 0.0)

    async def ask() -> None:
        calls = (handlers[FIND](find(1), caller()) for _ in range(CALLS_AT_ONCE))
        await asyncio.gather(*calls, return_exceptions=True)  # type: ignore[arg-type]

    asyncio.run(ask())
    assert given == ANSWER_BYTES_AT_ONCE // size + 1


def test_many_callers_together_get_no_more_than_the_share_of_strangers() -> None:
    """Four keys drew 57.8 MB in 90 s: each had its own 16 MiB at once."""
    answers, size = Answers(), 1 << 20
    guard = CallGuard(answers=answers)
    answers.strangers = StrangersShare(per_second=size, at_once=4 * size)
    keys = [Identity(bytes([number]) * 32) for number in range(40)]

    def drawn(now: float) -> int:
        given = 0
        for key in keys:
            with suppress(PeerError):
                guard.check(caller(key), FIND, find(1, key), now)
                guard.answered(caller(key), size, now)
                given += 1
        return given

    assert drawn(0.0) == 5
    assert drawn(10.0) == 5  # the one owed, and what may be had at once
    member = keys[-1]
    answers.strangers.is_member = lambda peer: peer == member.peer_id
    guard.check(caller(member), FIND, find(1, member), 10.0)
    assert answers.sent_bytes == 10 * size


def test_callers_are_not_answered_once_the_owners_upload_of_the_day_is_used_up() -> None:
    answers = Answers()
    guard = CallGuard(answers=answers)
    answers.strangers.is_member = lambda _: True
    guard.check(caller(), FIND, find(1), 0.0)
    answers.strangers.closed = True
    with pytest.raises(PeerError, match="too many answers"):
        guard.check(caller(), FIND, find(1), 0.0)
    guard.check(caller(), PING, b"", 0.0)


def test_strangers_have_their_part_of_a_day() -> None:
    share = StrangersShare()
    share.give_of_day(1000.0)
    share.gave("one", 600.0, 0.0)
    assert share.admits("another", 0.0)
    share.gave("another", 600.0, 0.0)
    assert not share.admits("a third", 10_000.0)
    assert share.admits("a third", 18_000.0)
