"""The owner's rates, in virtual time: bytes sent in any minute, priorities, and frames that never wait."""

from __future__ import annotations

import asyncio
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.daemon.calls import ByteStream
from peer.machine.limits import MBIT_BYTES
from peer.machine.throttle import SLICE_BYTES_MAX, DownloadGate, Throttle, TokenBucket, UploadGate
from peer.net.hivemind_streams import OutgoingLane
from peer.net.transport import Lane, Payload, Traffic, TransportConfig, frame_prefix
from tests.peer.virtual_loop import run_virtual

RATE = 2.0 * MBIT_BYTES
MINUTE = 60.0


class Wire:
    """A stream whose other end takes everything at once; keeps the sizes and times."""

    def __init__(self) -> None:
        self.taken: list[tuple[float, int]] = []
        self.frames = 0
        self._closing = False

    # of a transport
    def set_protocol(self, protocol: object) -> None: ...

    def set_write_buffer_limits(self, high: int) -> None: ...

    def abort(self) -> None:
        self._closing = True

    # of a writer
    @property
    def transport(self) -> Wire:
        return self

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: bytes) -> None:
        self.taken.append((asyncio.get_running_loop().time(), len(data)))

    # of a reader
    def at_eof(self) -> bool:
        return False

    def feed_eof(self) -> None: ...

    async def read(self) -> bytes:
        return b""

    # of the keeper of the peer's state
    def stream_up(self) -> None: ...

    def queue_empty(self) -> None:
        self.frames += 1

    async def dial(self) -> ByteStream:
        return self, self  # type: ignore[return-value]


def lane_over(wire: Wire, gate: UploadGate, lane: Lane = Lane.BULK) -> OutgoingLane:
    return OutgoingLane(lane, TransportConfig(), Traffic(), wire.dial, wire, gate)  # type: ignore[arg-type]


def post(lane: OutgoingLane, payload: Payload) -> None:
    lane.post(frame_prefix(b"header", payload, 1 << 30), b"header", payload)


def most_in_a_minute(taken: list[tuple[float, int]]) -> int:
    """Return the bytes of the busiest minute."""
    most = sent = begin = 0
    for at, size in taken:
        sent += size
        while taken[begin][0] <= at - MINUTE:
            sent -= taken[begin][1]
            begin += 1
        most = max(most, sent)
    return most


@pytest.mark.parametrize("seed", range(3))
def test_two_megabits_are_kept_within_five_percent_over_a_minute(seed: int) -> None:
    draws = random.Random(seed)

    async def send_for_five_minutes() -> list[tuple[float, int]]:
        gate, wires = UploadGate(RATE), [Wire() for _ in range(5)]
        lanes = [lane_over(wire, gate) for wire in wires]
        small = Wire()
        control = lane_over(small, gate, Lane.CONTROL)
        for _ in range(600):
            for lane in lanes:
                if not lane.busy:
                    post(lane, bytes(draws.randrange(70_000, 3_000_000)))
            post(control, bytes(draws.randrange(4000)))
            await asyncio.sleep(0.5)
        return sorted(one for wire in (*wires, small) for one in wire.taken)

    taken = run_virtual(send_for_five_minutes())
    assert most_in_a_minute(taken) <= 1.05 * RATE * MINUTE
    for minute in range(5):  # and a backlog uses what it is given
        sent = sum(size for at, size in taken if minute * MINUTE <= at < (minute + 1) * MINUTE)
        assert sent >= 0.95 * RATE * MINUTE


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 100_000)), max_size=60))
def test_senders_that_ask_first_do_not_exceed_rate_and_burst(requests: list[tuple[float, int]]) -> None:
    bucket, now, spent = TokenBucket(RATE), 0.0, 0
    for rest_seconds, size in requests:
        now += rest_seconds + bucket.wait_seconds(now + rest_seconds)
        spent += size
        assert spent - size <= RATE * now + bucket.slice_bytes * 2 + 1e-3  # what rounding costs
        bucket.take(size, now)


def test_small_messages_never_wait_and_are_paid_for_by_bulk() -> None:
    async def send() -> tuple[Wire, Wire]:
        gate, large, small = UploadGate(RATE), Wire(), Wire()
        bulk, control = lane_over(large, gate), lane_over(small, gate, Lane.CONTROL)
        post(bulk, bytes(int(RATE * 10)))
        await asyncio.sleep(1)
        for _ in range(10):
            post(control, bytes(int(RATE / 10)))
        await asyncio.sleep(30)
        return large, small

    large, small = run_virtual(send())
    assert {at for at, _ in small.taken} == {1.0}
    assert large.taken[-1][0] == pytest.approx(11.0, abs=0.3)  # ten seconds of bulk, and one that the messages took


def test_a_frame_that_was_begun_ends_before_another_begins() -> None:
    async def send() -> list[Wire]:
        gate, wires = UploadGate(RATE), [Wire() for _ in range(3)]
        for wire in wires:
            lane = lane_over(wire, gate)
            for _ in range(2):
                post(lane, bytes(int(RATE)))
        await asyncio.sleep(20)
        return wires

    wires = run_virtual(send())
    owners = [index for _, index in sorted((at, index) for index, wire in enumerate(wires) for at, _ in wire.taken)]
    turns = [owner for place, owner in enumerate(owners) if place == 0 or owners[place - 1] != owner]
    assert turns == [0, 1, 2, 0, 1, 2]


def test_a_shut_gate_lets_nothing_out_until_it_opens() -> None:
    async def send() -> tuple[int, Wire]:
        gate, wire = UploadGate(), Wire()
        gate.shut = True
        lane = lane_over(wire, gate)
        post(lane, bytes(1 << 20))
        await asyncio.sleep(3600)
        before = len(wire.taken)
        gate.shut = False
        await asyncio.sleep(1)
        return before, wire

    before, wire = run_virtual(send())
    assert before == 0
    assert sum(size for _, size in wire.taken) > 1 << 20


def test_another_rate_holds_at_once_and_wakes_whoever_waits() -> None:
    async def send() -> Wire:
        throttle, wire = Throttle(RATE / 100, RATE), Wire()
        post(lane_over(wire, throttle.upload), bytes(int(10 * RATE)))
        await asyncio.sleep(1)
        throttle.limit(RATE, RATE)
        await asyncio.sleep(5)
        throttle.limit(float("inf"), RATE)
        await asyncio.sleep(1)
        return wire

    taken = run_virtual(send()).taken
    slow, fast, free = (
        sum(size for at, size in taken if begin <= at < end) for begin, end in ((0.0, 1.0), (1.0, 6.0), (6.0, 7.0))
    )
    assert slow < 0.1 * RATE
    assert fast == pytest.approx(5 * RATE, rel=0.1)
    assert slow + fast + free >= 10 * RATE


def test_a_lane_that_is_closed_gives_up_its_turn() -> None:
    async def send() -> Wire:
        gate, first, second = UploadGate(RATE), Wire(), Wire()
        one, other = lane_over(first, gate), lane_over(second, gate)
        post(one, bytes(1 << 20))
        post(other, bytes(1 << 20))
        await asyncio.sleep(0.2)
        one._drop_queue()
        await asyncio.sleep(10)
        return second

    assert sum(size for _, size in run_virtual(send()).taken) > 1 << 20


def test_a_reader_rests_for_what_it_has_read() -> None:
    gate = DownloadGate(RATE)
    assert gate.wait_seconds(0.0) == 0.0
    gate.received(int(RATE), 0.0)
    assert gate.wait_seconds(0.0) == pytest.approx(0.9)
    assert gate.wait_seconds(1.0) == 0.0
    gate.received(int(RATE), 1.0)
    gate.limit(RATE / 2)
    assert gate.wait_seconds(1.0) == 0.0  # what was owed is forgiven
    gate.received(int(RATE), 1.0)
    assert gate.wait_seconds(1.0) == pytest.approx(1.9)
    gate.shut = True
    assert gate.wait_seconds(1.0) > 0


def test_without_limits_nothing_waits_and_slices_stay_large() -> None:
    gate = DownloadGate()
    gate.received(1 << 40, 0.0)
    assert gate.wait_seconds(0.0) == 0.0
    assert gate.slice_bytes == UploadGate().slice_bytes == SLICE_BYTES_MAX


def test_relayed_bytes_have_their_turn_beside_bulk_within_both_rates() -> None:
    async def send() -> tuple[Wire, float, float]:
        throttle, wire, loop = Throttle(RATE, math.inf), Wire(), asyncio.get_running_loop()
        lane = lane_over(wire, throttle.upload)
        for _ in range(4):
            post(lane, bytes(1 << 20))
        await asyncio.sleep(0.1)
        for _ in range(40):
            await throttle.wait_for_relayed(1 << 16)
        shared_at = loop.time()
        await asyncio.sleep(60.0)
        throttle.limit(math.inf, RATE)
        began = loop.time()
        for _ in range(40):
            await throttle.wait_for_relayed(1 << 16)
        return wire, shared_at, loop.time() - began

    wire, shared_at, alone_seconds = run_virtual(send())
    passed = 40 << 16
    own = sum(size for at, size in wire.taken if at <= shared_at)
    assert own > 1 << 20, "it had its turns, too"
    assert own + passed <= 1.05 * RATE * shared_at
    assert alone_seconds == pytest.approx(passed / RATE, rel=0.1)


def test_nothing_is_passed_on_while_the_gate_is_shut_and_nobody_is_left_waiting() -> None:
    async def send() -> bool:
        throttle = Throttle(RATE)
        throttle.upload.shut = True
        waiting = asyncio.create_task(throttle.wait_for_relayed(1 << 16))
        await asyncio.sleep(100.0)
        shut = not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        forgotten = not throttle.upload._waiting
        throttle.upload.shut = False
        await throttle.wait_for_relayed(1 << 16)
        return shut and forgotten

    assert run_virtual(send())
