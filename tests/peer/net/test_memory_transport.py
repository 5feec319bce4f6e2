"""The faults of the network in memory, in virtual time."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.identity import PeerId
from peer.net.transport import PREFIX_BYTES, TransportConfig
from tests.peer.memory_transport import LinkPolicy, MemoryNetwork, MemoryTransport
from tests.peer.virtual_loop import run_virtual

A, B, C = PeerId("A"), PeerId("B"), PeerId("C")
FOREVER_SECONDS = 1e6


class Recorder:
    """A transport's receiver that notes which frames arrive, and when."""

    def __init__(self, network: MemoryNetwork, peer_id: PeerId, config: TransportConfig | None = None) -> None:
        self.transport: MemoryTransport = network.transport(peer_id, config)
        self.frames: list[tuple[float, PeerId, bytes]] = []
        self.gone: list[tuple[float, PeerId]] = []

    async def start(self) -> "Recorder":
        clock = asyncio.get_running_loop().time
        await self.transport.start(
            lambda sender, header, payload: self.frames.append((clock(), sender, header)),
            lambda peer: self.gone.append((clock(), peer)),
        )
        return self

    @property
    def headers(self) -> list[bytes]:
        return [header for _, _, header in self.frames]

    def post_many(self, peer: PeerId, count: int) -> None:
        for index in range(count):
            self.transport.post(peer, b"%d" % index)


async def pair(policy: LinkPolicy | None = None, seed: int = 0, config: TransportConfig | None = None):
    network = MemoryNetwork(seed, policy)
    return network, await Recorder(network, A, config).start(), await Recorder(network, B, config).start()


def test_a_frame_takes_its_delay_and_its_turn_on_the_line() -> None:
    async def test() -> None:
        _, a, b = await pair(LinkPolicy(delay_seconds=2.0, bytes_per_second=100.0))
        a.transport.post(B, b"x" * (100 - PREFIX_BYTES))
        a.transport.post(B, b"y" * (50 - PREFIX_BYTES))
        assert await a.transport.flush(FOREVER_SECONDS)
        assert [when for when, _, _ in b.frames] == pytest.approx([3.0, 3.5])

    run_virtual(test())


def test_hours_pass_in_no_time() -> None:
    async def test() -> None:
        _, a, b = await pair(LinkPolicy(delay_seconds=86_400.0))
        a.transport.post(B, b"slow")
        assert not await a.transport.flush(3600.0)
        assert await a.transport.flush(FOREVER_SECONDS)
        assert b.headers == [b"slow"]

    run_virtual(test())


def test_the_loop_says_so_when_nothing_can_happen() -> None:
    async def test() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="nothing is left to happen"):
        run_virtual(test())


@given(seed=st.integers(0, 2**32), jitter=st.floats(0, 5), rate=st.floats(1, 1e9))
def test_without_reordering_the_order_holds(seed: int, jitter: float, rate: float) -> None:
    async def test() -> None:
        _, a, b = await pair(LinkPolicy(jitter_seconds=jitter, bytes_per_second=rate), seed)
        a.post_many(B, 50)
        assert await a.transport.flush(FOREVER_SECONDS)
        assert b.headers == [b"%d" % index for index in range(50)]

    run_virtual(test())


def test_one_seed_is_one_course_of_events() -> None:
    policy = LinkPolicy(0.1, jitter_seconds=0.2, loss=0.2, duplication=0.2, reordering=0.2)

    async def course(seed: int) -> list[tuple[float, PeerId, bytes]]:
        _, a, b = await pair(policy, seed)
        a.post_many(B, 200)
        b.post_many(A, 200)
        assert await a.transport.flush(FOREVER_SECONDS)
        assert await b.transport.flush(FOREVER_SECONDS)
        return a.frames + b.frames

    first, again, other = (run_virtual(course(seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_frames_are_lost_doubled_and_reordered_at_their_rates() -> None:
    async def test() -> None:
        for policy, expected in (
            (LinkPolicy(loss=0.25), 750),
            (LinkPolicy(duplication=0.25), 1250),
            (LinkPolicy(reordering=0.25), 1000),
        ):
            _, a, b = await pair(policy)
            a.post_many(B, 1000)
            assert await a.transport.flush(FOREVER_SECONDS)
            assert len(b.frames) == pytest.approx(expected, abs=60)
            in_order = [int(header) for header in b.headers] == sorted(int(header) for header in b.headers)
            assert in_order == (policy.reordering == 0)

    run_virtual(test())


def test_one_direction_may_differ() -> None:
    async def test() -> None:
        network, a, b = await pair()
        network.set_policy(A, B, LinkPolicy(loss=1.0))
        a.post_many(B, 10)
        b.post_many(A, 10)
        assert await b.transport.flush(1.0)
        assert (len(a.frames), len(b.frames)) == (10, 0)

    run_virtual(test())


def test_a_partition_loses_frames_and_dials_time_out() -> None:
    async def test() -> None:
        network, a, b = await pair(LinkPolicy(delay_seconds=1.0), config=TransportConfig(connect_timeout_seconds=7.0))
        c = await Recorder(network, C).start()
        a.transport.post(B, b"under way")
        network.partition({A}, {B})
        a.post_many(B, 5)
        a.transport.post(C, b"in no side")
        await asyncio.sleep(100)
        assert b.frames == []
        assert c.headers == [b"in no side"]
        assert a.gone == [(7.0, B)]
        network.heal()
        a.transport.post(B, b"healed")
        assert await a.transport.flush(FOREVER_SECONDS)
        assert b.headers == [b"healed"]

    run_virtual(test())


def test_a_frozen_peer_gets_and_gives_everything_later() -> None:
    async def test() -> None:
        network, a, b = await pair()
        network.freeze(B, 30.0)
        a.post_many(B, 3)
        b.post_many(A, 3)
        assert await a.transport.flush(FOREVER_SECONDS)
        assert await b.transport.flush(FOREVER_SECONDS)
        assert [(when, header) for when, _, header in b.frames] == [(30.0, b"0"), (30.0, b"1"), (30.0, b"2")]
        assert [when for when, _, _ in a.frames] == [30.0] * 3
        assert a.gone == b.gone == []

    run_virtual(test())


def test_a_frozen_peer_fills_only_its_own_queue() -> None:
    async def test() -> None:
        network, a, b = await pair(config=TransportConfig(queue_frames_max=4))
        c = await Recorder(network, C).start()
        network.freeze(B, 30.0)
        a.post_many(B, 10)
        a.post_many(C, 4)
        await asyncio.sleep(1)
        assert len(c.frames) == 4
        assert a.transport.traffic_of(B).congested
        assert not a.transport.traffic_of(C).congested
        assert a.transport.traffic.frames_dropped == 6
        await asyncio.sleep(30)
        assert len(b.frames) == 4

    run_virtual(test())


def test_a_killed_peer_is_missed_by_those_who_knew_it() -> None:
    async def test() -> None:
        network, a, b = await pair(LinkPolicy(delay_seconds=1.0))
        c = await Recorder(network, C).start()
        b.transport.post(A, b"hello")
        await asyncio.sleep(5)
        b.transport.post(A, b"on the wire")
        await asyncio.sleep(0.5)
        b.transport.post(A, b"not out yet")
        network.kill(B)
        a.transport.post(B, b"to nobody")
        await asyncio.sleep(5)
        assert a.headers == [b"hello", b"on the wire"]
        assert a.gone == [(6.5, B)]
        assert b.frames == b.gone == c.gone == []
        b.transport.post(A, b"from the grave")
        await asyncio.sleep(5)
        assert len(a.frames) == 2

    run_virtual(test())


def test_a_peer_that_returns_does_not_hear_messages_for_its_former_life() -> None:
    async def test() -> None:
        network, a, _ = await pair(LinkPolicy(delay_seconds=1.0))
        a.transport.post(B, b"old")
        network.kill(B)
        b = await Recorder(network, B).start()
        a.transport.post(B, b"new")
        await asyncio.sleep(10)
        assert b.headers == [b"new"]

    run_virtual(test())


def test_two_machines_cannot_use_one_key_at_once() -> None:
    async def test() -> None:
        network, _, _ = await pair()
        with pytest.raises(ValueError, match="already"):
            await Recorder(network, A).start()

    run_virtual(test())


def test_a_payload_is_what_it_was_when_posted() -> None:
    async def test() -> None:
        network = MemoryNetwork(0)
        a, b, payloads = network.transport(A), network.transport(B), []
        await a.start(lambda *frame: None, lambda peer: None)
        await b.start(lambda sender, header, payload: payloads.append(payload), lambda peer: None)
        buffer = bytearray(b"before")
        a.post(B, b"h", buffer)
        buffer[:] = b"after!"
        await a.flush(1.0)
        assert payloads == [b"before"]

    run_virtual(test())


@pytest.mark.parametrize("wrong", [{"delay_seconds": -1.0}, {"bytes_per_second": 0.0}, {"loss": 1.5}])
def test_a_policy_that_cannot_work_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must|are"):
        LinkPolicy(**wrong)
