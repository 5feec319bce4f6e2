"""Who keeps a stream of libp2p's Kademlia where there are too many."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace

import pytest
from hivemind.p2p import PeerID

from dht.allowance import Answers
from dht.daemon import kademlia
from dht.daemon.kademlia import PING, Kademlia, Message
from dht.door import Door
from dht.identity import Identity, PeerId
from tests.dht.conftest import ALICE

QUESTION = bytes(Message(type=PING).SerializeToString())


class Stream:
    """One of ours, which reads its own end when it is cut off."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        self.transport = SimpleNamespace(abort=self.abort)
        self.answers = 0
        self.open = True

    def ask(self) -> None:
        self.reader.feed_data(bytes([len(QUESTION)]) + QUESTION)

    def abort(self) -> None:
        self.open = False
        self.reader.feed_eof()

    def write(self, data: bytes) -> None:
        self.answers += 1

    async def drain(self) -> None:
        pass


class Nobody:
    async def places(self, asked: bytes) -> Mapping[PeerId, tuple[bytes, ...]]:
        return {}


def test_a_newcomer_takes_the_place_of_who_was_silent_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 128 peers kept its stream for a minute, and the next ones were refused until then."""
    monkeypatch.setattr(kademlia, "STREAMS_MAX", 3)

    async def scenario() -> None:
        served = Kademlia(ALICE.peer_id, Nobody(), lambda: 0.0, Door(), Answers())
        streams: list[Stream] = []
        serving: list[asyncio.Task[None]] = []
        for number in range(4):
            peer = PeerID.from_base58(Identity(bytes([number]) * 32).peer_id)
            stream = Stream()
            streams.append(stream)
            serving.append(
                asyncio.create_task(served.serve(SimpleNamespace(peer_id=peer), stream.reader, stream))  # type: ignore[arg-type]
            )
            stream.ask()
            await turns()
            if number == 1:
                streams[0].ask()  # so that the second is silent longest
                await turns()
        assert [stream.answers for stream in streams] == [2, 1, 1, 1]
        assert [stream.open for stream in streams] == [True, False, True, True]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    asyncio.run(scenario())


async def turns() -> None:
    """Let all go on that can."""
    for _ in range(10):
        await asyncio.sleep(0)
