"""Joins whose donors die, lie or have little to give: `python tests/bench/bench_donors.py [JOINS]`.

Prints, for each kind of trouble, how many joins got the whole certified state, how long they took, and how many donors
died during a join; then the times on slow lines and of many joins at once. Donors and newcomers run the code of real
peers, on a network in memory with lines of 20 Mbit/s. Its time is virtual, so it is the same on every machine. A
newcomer asks three donors for all fragments at once; which of them fail, and when, is drawn.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from coordinator.run.manifest import OuterSpec, PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.errors import NetworkError
from dht.identity import PeerId
from dht.statement import digest_of
from peer.net.frames import StateAsk, StatePiece, decode_header, encode_header
from peer.numerics.outer_optimizer import OuterState, state_digest
from peer.storage.anchors import Anchors, genesis_states, layouts_of
from peer.sync.download import Wanted
from peer.sync.state_client import StateClient
from peer.sync.state_server import StateServer
from tests.peer.memory_transport import LinkPolicy, MemoryNetwork
from tests.peer.virtual_loop import run_virtual

JOINS = 50
OUTER = OuterSpec(momentum=0.8)  # so that a state has two halves
CONFIG = RunConfig(model=ModelSpec(hidden_size=256, layers=3, heads=4), pace=PaceSpec(fragments=4), outer=OUTER)
LARGER = RunConfig(model=ModelSpec(hidden_size=512, layers=4, heads=4), pace=PaceSpec(fragments=8), outer=OUTER)
LINE = LinkPolicy(delay_seconds=0.025, jitter_seconds=0.01, bytes_per_second=20e6 / 8)
TRICKLE = LinkPolicy(bytes_per_second=1.0)
NEWCOMER = PeerId("newcomer")
DONORS = tuple(PeerId(f"donor {number}") for number in range(3))
JOIN_SECONDS = 1.8  # within which deaths are drawn: a join without trouble takes a little longer
AGAIN_SECONDS = 1.0  # before a peer asks again for a state that no donor gave
TRIES_MAX = 30

Spoil = Callable[[StatePiece, bytes], bytes]


@dataclass(frozen=True, slots=True)
class Trouble:
    """A fault that hits so many of the three donors."""

    name: str
    donors: int = 1
    dies: bool = False  # kill -9, at a moment of the join
    returns: bool = False  # and starts again some seconds later
    old: bool = False  # serves an older certified state under the newer one's name
    trickles: bool = False  # a byte a second
    spoil: Spoil = field(default=lambda piece, payload: payload)


def wrong_bytes(piece: StatePiece, payload: bytes) -> bytes:
    """Corrupt a piece, while the leaf digests stay true."""
    return payload if piece.piece is None else payload[:-1] + bytes([payload[-1] ^ 1])


def half(piece: StatePiece, payload: bytes) -> bytes:
    return payload[: len(payload) // 2]


TROUBLES = (
    Trouble("none fails", donors=0),
    Trouble("one is killed", dies=True),
    Trouble("two are killed", donors=2, dies=True),
    Trouble("all are killed, and come back after 5 s", donors=3, dies=True, returns=True),
    Trouble("two send wrong bytes", donors=2, spoil=wrong_bytes),
    Trouble("two send an old state", donors=2, old=True),
    Trouble("two send half of every answer", donors=2, spoil=half),
    Trouble("two send 1 byte/s", donors=2, trickles=True),
)
NEWEST, OLDER = 2, 1  # versions, and the seeds of their values


@dataclass(frozen=True, slots=True)
class Join:
    """The result of one join."""

    whole: bool  # every fragment is the certified one, bit for bit
    seconds: float
    tries: int
    deaths: int  # of donors, before it had ended


@dataclass(frozen=True, slots=True)
class Crowd:
    """A case with so many newcomers at once, and no faults."""

    name: str
    joiners: int
    config: RunConfig
    line_mbit: float  # from each donor to each newcomer
    given_mbit: float = math.inf  # by each donor, to all

    @property
    def size_bytes(self) -> int:
        """Bytes that each newcomer needs."""
        return sum(8 * layout.elements for layout in layouts_of(self.config))

    @property
    def ideal_seconds(self) -> float:
        """The least seconds at the donors' rates, although they give their first 4 MiB at once."""
        rate = len(DONORS) * min(self.line_mbit * self.joiners, self.given_mbit) * 1e6 / 8
        return self.joiners * self.size_bytes / rate


CROWDS = (
    Crowd("one, 8 fragments, lines of 3 Mbit/s", 1, LARGER, 3.0),
    Crowd("one, 8 fragments, lines of 6.7 Mbit/s", 1, LARGER, 6.7),
    Crowd("four at once, donors give 1 Mbit/s", 4, CONFIG, 20.0, 1.0),
    Crowd("eight at once, donors give 1 Mbit/s", 8, CONFIG, 20.0, 1.0),
    Crowd("eight at once, donors give 0.5 Mbit/s", 8, CONFIG, 20.0, 0.5),
)


@dataclass(frozen=True, slots=True)
class Crowding:
    """The result of a crowd."""

    seconds: tuple[float, ...]  # of the newcomers that got everything
    sent_bytes: int  # by all donors, of which each newcomer needs `Crowd.size_bytes`
    tries: int


@cache
def states(version: int, config: RunConfig = CONFIG) -> tuple[OuterState, ...]:
    """Return anchors and momenta of all fragments."""
    random_values = torch.Generator().manual_seed(version)
    sizes = [layout.elements for layout in layouts_of(config)]
    return tuple(OuterState(*(torch.randn(size, generator=random_values) for _ in range(2))) for size in sizes)


def names(version: int, config: RunConfig = CONFIG) -> list[bytes]:
    """Return the digests of the certificates of this version's fragments."""
    return [digest_of(b"certificate", bytes([version, fragment])) for fragment in range(len(layouts_of(config)))]


def wanted(fragment: int, config: RunConfig = CONFIG) -> Wanted:
    """Return a request for the newest state of a fragment."""
    state = states(NEWEST, config)[fragment]
    return Wanted(fragment, NEWEST, names(NEWEST, config)[fragment], state_digest(state.anchor, state.momentum))


class Peer:
    """One end of a transfer on the network in memory: a donor if it holds states."""

    def __init__(
        self,
        network: MemoryNetwork,
        me: PeerId,
        held: Sequence[OuterState],
        spoil: Spoil = lambda piece, payload: payload,
        config: RunConfig = CONFIG,
    ) -> None:
        self.anchors = Anchors(layouts_of(config), genesis_states(config))
        for fragment, (name, state) in enumerate(zip(names(NEWEST, config), held, strict=False)):
            self.anchors.install(fragment, name, state)
        self._transport = network.transport(me)
        self._spoil = spoil
        self.states = StateClient(self.anchors, self._post)
        self.server = StateServer(self.anchors, self._post)

    async def start(self) -> None:
        await self._transport.start(self._on_frame, self._gone)

    def _gone(self, peer: PeerId) -> None:
        self.server.gone(peer)
        self.states.gone(peer)

    @property
    def sent_bytes(self) -> int:
        """Bytes sent by this peer."""
        return self._transport.traffic.bytes_sent

    async def close(self) -> None:
        self.states.close()
        self.server.close()
        await self._transport.close()

    def _post(self, peer: PeerId, message: StateAsk | StatePiece, payload: bytes | memoryview) -> None:
        if isinstance(message, StatePiece) and payload:
            payload = self._spoil(message, bytes(payload))
        self._transport.post(peer, encode_header(message), payload)

    def _on_frame(self, sender: PeerId, header: bytes, payload: bytes) -> None:
        message = decode_header(header)
        if isinstance(message, StateAsk):
            self.server.serve(sender, message)
        elif isinstance(message, StatePiece):
            self.states.receive(sender, message, payload)


async def fetch(newcomer: Peer, state: Wanted) -> int:
    """Fetch and install the certified state, trying again on failure; returns the number of tries."""
    for tries in range(1, TRIES_MAX):
        with suppress(NetworkError):
            newcomer.anchors.install(state.fragment, state.name, await newcomer.states.get(state, DONORS))
            return tries
        await asyncio.sleep(AGAIN_SECONDS)
    return TRIES_MAX


class Scene:
    """One join under one trouble."""

    def __init__(self, trouble: Trouble, seed: int) -> None:
        self._trouble = trouble
        self._draw = random.Random(f"{trouble.name}/{seed}")
        self._network = MemoryNetwork(seed, LINE)
        self._hit = self._draw.sample(DONORS, trouble.donors)
        self._peers: list[Peer] = []
        self._deaths = 0

    async def play(self) -> Join:
        loop = asyncio.get_running_loop()
        for donor in DONORS:
            await self._start(donor)
        newcomer = Peer(self._network, NEWCOMER, (), self._trouble.spoil)
        self._peers.append(newcomer)
        await newcomer.start()
        deaths = [asyncio.create_task(self._die(donor)) for donor in self._hit if self._trouble.dies]
        began = loop.time()
        fetches = (fetch(newcomer, wanted(fragment)) for fragment in range(len(names(NEWEST))))
        tries = await asyncio.gather(*fetches)
        seconds, died = loop.time() - began, self._deaths
        for death in deaths:
            death.cancel()
        for peer in self._peers:
            await peer.close()
        return Join(all(map(self._is_certified, range(len(tries)))), seconds, max(tries), died)

    async def _start(self, donor: PeerId) -> None:
        trouble, hit = self._trouble, donor in self._hit
        held = states(OLDER if hit and trouble.old else NEWEST)
        peer = Peer(self._network, donor, held, trouble.spoil if hit else TROUBLES[0].spoil)
        self._peers.append(peer)
        if hit and trouble.trickles:
            self._network.set_policy(donor, NEWCOMER, TRICKLE)
        await peer.start()

    async def _die(self, donor: PeerId) -> None:
        await asyncio.sleep(self._draw.uniform(0.0, JOIN_SECONDS))
        self._network.kill(donor)
        self._deaths += 1
        if self._trouble.returns:
            await asyncio.sleep(5.0)
            await self._start(donor)

    def _is_certified(self, fragment: int) -> bool:
        got, wanted = self._peers[len(DONORS)].anchors.current(fragment), states(NEWEST)[fragment]
        return torch.equal(got.anchor, wanted.anchor) and torch.equal(got.momentum, wanted.momentum)


def join(trouble: Trouble, seed: int) -> Join:
    """Run one join; the same seed gives the same result."""

    async def play() -> Join:
        return await Scene(trouble, seed).play()

    return run_virtual(play())


def crowding(crowd: Crowd) -> Crowding:
    """Run the joins of a crowd."""

    async def play() -> Crowding:
        loop, line = asyncio.get_running_loop(), replace(LINE, bytes_per_second=crowd.line_mbit * 1e6 / 8)
        network, config = MemoryNetwork(1, line), crowd.config
        donors = [Peer(network, donor, states(NEWEST, config), config=config) for donor in DONORS]
        newcomers = [Peer(network, PeerId(f"{NEWCOMER} {place}"), (), config=config) for place in range(crowd.joiners)]
        for peer in (*donors, *newcomers):
            peer.server.give_at_most(crowd.given_mbit * 1e6 / 8)
            await peer.start()
        began, seconds = loop.time(), list[float]()

        async def join_one(newcomer: Peer) -> int:
            fetches = (fetch(newcomer, wanted(fragment, config)) for fragment in range(config.pace.fragments))
            tries = max(await asyncio.gather(*fetches))
            if tries < TRIES_MAX:
                seconds.append(loop.time() - began)
            return tries

        tries = max(await asyncio.gather(*map(join_one, newcomers)))
        sent_bytes = sum(donor.sent_bytes for donor in donors)
        for peer in (*donors, *newcomers):
            await peer.close()
        return Crowding(tuple(seconds), sent_bytes, tries)

    return run_virtual(play())


def print_crowds() -> None:
    """Print how long joins take on slow lines, and from donors that give little."""
    print("| newcomers | joins complete | seconds, all (ideal) | tries, most | given, MB (needed) |")
    print("| --- | --- | --- | --- | --- |")
    for crowd in CROWDS:
        found, needed = crowding(crowd), crowd.joiners * crowd.size_bytes
        complete, times = f"{len(found.seconds)} of {crowd.joiners}", f"{max(found.seconds, default=math.inf):.0f}"
        print(
            f"| {crowd.name} | {complete} | {times} ({crowd.ideal_seconds:.0f}) | {found.tries} "
            f"| {found.sent_bytes / 1e6:.0f} ({needed / 1e6:.0f}) |",
            flush=True,
        )


def main(joins: int) -> None:
    size = sum(8 * layout.elements for layout in layouts_of(CONFIG))
    print(f"{joins} joins each, {size / 1e6:.0f} MB in {CONFIG.pace.fragments} fragments, three donors at 20 Mbit/s\n")
    print("| donors | joins complete | seconds, median (longest) | tries, most | deaths during the download |")
    print("| --- | --- | --- | --- | --- |")
    for trouble in TROUBLES:
        found = [join(trouble, seed) for seed in range(joins)]
        seconds = [one.seconds for one in found]
        times = f"{statistics.median(seconds):.1f} ({max(seconds):.1f})"
        whole, tries = sum(one.whole for one in found), max(one.tries for one in found)
        deaths = f"{sum(one.deaths for one in found)} of {joins * trouble.donors}" if trouble.dies else "–"
        print(f"| {trouble.name} | {whole} of {joins} | {times} | {tries} | {deaths} |", flush=True)
    print()
    print_crowds()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("joins", type=int, nargs="?", default=JOINS)
    main(parser.parse_args().joins)
