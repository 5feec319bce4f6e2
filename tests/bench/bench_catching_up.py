"""Newcomers to a swarm that goes on while they download: `python tests/bench/bench_catching_up.py [BEGINS]`.

Prints how long they take to have been at the newest version of every fragment, if a state takes as long as some
versions. Further rows have slow lines, newcomers one after the other, which so begin with different versions, and many
at once. Donors and newcomers, network and time are as in `tests/bench/bench_donors.py`. Every version is a real outer
step from the one before, with its real digest; only the agreement on it is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import structlog
import torch

from coordinator.core.events import Event, StateFetched
from coordinator.run.manifest import RunConfig
from dht.identity import PeerId
from dht.statement import digest_of
from peer.numerics.codec import CODECS
from peer.numerics.fragments import Partitioning
from peer.numerics.outer_optimizer import OuterState, state_digest
from peer.numerics.outer_step import apply_merged, told_gradients
from peer.rounds.catch_up import CatchUp
from peer.rounds.tensor_worker import TensorWorker
from peer.storage.anchors import HeldState, genesis_states, layouts_of
from tests.bench.bench_donors import CONFIG, DONORS, LINE, NEWCOMER, Peer
from tests.peer.memory_transport import MemoryNetwork
from tests.peer.virtual_loop import run_virtual

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Moving:
    """A case with three donors: the interval between a fragment's versions, the lines, and the newcomers."""

    config: RunConfig
    line_mbit: float  # from each donor to each newcomer
    interval_seconds: float
    newcomers: int = 1
    apart_seconds: float = 0.0  # between two newcomers
    given_mbit: float = math.inf  # by each donor, to all
    versions_max: int = 60

    @property
    def needed_bytes(self) -> int:
        """Bytes of one version of all fragments, for all newcomers."""
        return self.newcomers * sum(8 * layout.elements for layout in layouts_of(self.config))

    @property
    def ideal_seconds(self) -> float:
        """The least seconds for one version of all fragments, for all newcomers at once."""
        rate_mbit = len(DONORS) * min(self.newcomers * self.line_mbit, self.given_mbit)
        return self.needed_bytes / (rate_mbit * 1e6 / 8)


SWARMS = {
    "a state takes half a version": Moving(CONFIG, 20.0, 4.0),
    "a state takes two versions": Moving(CONFIG, 2.0, 9.0),
    "a state takes four versions": Moving(CONFIG, 2.0, 4.5),
    "a state takes sixteen versions": Moving(CONFIG, 2.0, 1.1),
    "a state takes two versions, 0.3 Mbit/s": Moving(CONFIG, 0.3, 60.0),
    "a state takes four versions, 0.3 Mbit/s": Moving(CONFIG, 0.3, 30.0),
    "two, a version apart, a state takes four": Moving(CONFIG, 2.0, 4.5, 2, 4.5),
    "four, a version apart, a state takes four": Moving(CONFIG, 2.0, 4.5, 4, 4.5),
    "eight, a version apart, a state takes four": Moving(CONFIG, 2.0, 4.5, 8, 4.5),
    "four at once, donors give 1 Mbit/s": Moving(CONFIG, 20.0, 71.0, 4, 0.0, 1.0),
    "eight at once, donors give 1 Mbit/s": Moving(CONFIG, 20.0, 142.0, 8, 0.0, 1.0),
    "eight at once, donors give 0.5 Mbit/s": Moving(CONFIG, 20.0, 284.0, 8, 0.0, 0.5),
    "eight at once, donors give 0.5 Mbit/s, a state takes four": Moving(CONFIG, 20.0, 142.0, 8, 0.0, 0.5),
}


@dataclass(frozen=True, slots=True)
class Catching:
    """The result of one case."""

    seconds: tuple[float, ...]  # of those newcomers that have been at the newest version of every fragment
    versions: int  # that came meanwhile, of each fragment
    sent_bytes: int  # by all donors
    outrun: int  # newcomers that report at the end that they cannot catch up


class InlineWork(TensorWorker):
    """A tensor worker whose work takes no time."""

    async def run(self, work: Callable[[], Answer]) -> Answer:
        return work()


class Course:
    """The versions of one fragment."""

    def __init__(self, config: RunConfig, fragment: int, state: OuterState) -> None:
        self._outer = config.outer
        self._cut = Partitioning.of(layouts_of(config)[fragment], 1)
        self._random = torch.Generator().manual_seed(fragment)
        self.newest = HeldState(digest_of(b"first", bytes([fragment])), state)
        self.chain = SimpleNamespace(fragment=fragment, certificates=[])

    def step(self) -> bytes:
        """Make the next version; returns the encoded step that led to it."""
        layout, codec = self._cut.layout, CODECS[self._outer.result_codec]
        fragment, version = self.chain.fragment, len(self.chain.certificates) + 1
        gradient = torch.randn(layout.elements, generator=self._random)
        step = np.ones(len(layout.tensors), "<f4").tobytes() + codec.encode(gradient)
        rates = self._outer.learning_rate, self._outer.momentum
        told = told_gradients(memoryview(step), self._cut, set(), codec)
        state = apply_merged(self.newest.state, told, self._cut, rates)
        certificate = SimpleNamespace(
            fragment=fragment,
            version=version,
            digest=digest_of(b"certificate", bytes([fragment, version])),
            state=state_digest(state.anchor, state.momentum),
            outcome=SimpleNamespace(parent=self.newest.digest, partitions=(object(),)),
        )
        self.chain.certificates.append(certificate)
        self.newest = HeldState(certificate.digest, state)
        return step


class Newcomer:
    """A newcomer that fetches the newest version of every fragment until it has caught up."""

    def __init__(self, network: MemoryNetwork, name: PeerId, config: RunConfig, courses: Sequence[Course]) -> None:
        self._courses = courses
        self.peer = Peer(network, name, (), config=config)
        work = InlineWork(config, self.peer.anchors, Any, Any)  # type: ignore[arg-type]
        chains: Any = [course.chain for course in courses]
        loop = self._loop = asyncio.get_running_loop()
        self.catch_up = CatchUp(self.peer.states, work, lambda: chains, loop.create_task, self._hear)
        self._began_at = math.inf
        self._held = set[int]()
        self.seconds = math.inf  # until it had been at the newest version of every fragment

    def _hear(self, event: Event) -> None:
        """Install a fetched state, as the core does if it is the newest."""
        assert not isinstance(event, StateFetched) or self._adopt(event)

    def _adopt(self, event: StateFetched) -> bool:
        course = self._courses[event.fragment]
        state = self.catch_up.take(course.chain.certificates[-1])
        if state is not None:
            assert state_digest(state.anchor, state.momentum) == course.chain.certificates[-1].state
            self.peer.anchors.install(event.fragment, course.newest.digest, state)
        return True

    @property
    def here(self) -> bool:
        """Whether it has begun, and has not caught up yet."""
        return self._began_at < math.inf == self.seconds

    def begin(self) -> None:
        """Join now."""
        self._began_at = self._loop.time()
        self.follow()

    def follow(self) -> None:
        """Ask for the newest versions as the core does, of each fragment in another order of donors."""
        for course in self._courses:
            first = course.chain.fragment % len(DONORS)
            action: Any = SimpleNamespace(
                certificate=course.chain.certificates[-1], holders=(*DONORS[first:], *DONORS[:first])
            )
            self.catch_up.start(action)

    def look(self) -> None:
        """Note the time if it has caught up."""
        newest = self.peer.anchors.newest
        self._held |= {one.chain.fragment for one in self._courses if newest(one.chain.fragment) == one.newest.digest}
        if len(self._held) == len(self._courses):
            self.seconds = self._loop.time() - self._began_at


class Swarm:
    """Three donors that go on, and newcomers that give nothing to each other."""

    def __init__(self, moving: Moving) -> None:
        config = moving.config
        line = replace(LINE, bytes_per_second=moving.line_mbit * 1e6 / 8)
        network = MemoryNetwork(1, line)
        self._moving = moving
        self._courses = [Course(config, place, state) for place, state in enumerate(genesis_states(config))]
        self._donors = [Peer(network, donor, (), config=config) for donor in DONORS]
        names = [NEWCOMER, *(PeerId(f"{NEWCOMER} {place}") for place in range(1, moving.newcomers))]
        self._newcomers = [Newcomer(network, name, config, self._courses) for name in names]
        self._peers = [*self._donors, *(one.peer for one in self._newcomers)]

    async def play(self) -> Catching:
        moving, loop = self._moving, asyncio.get_running_loop()
        for peer in self._peers:
            peer.server.give_at_most(moving.given_mbit * 1e6 / 8)
            await peer.start()
        began, coming = loop.time(), list(self._newcomers)
        for version in range(1, moving.versions_max + 1):
            self._step()
            ends_at = began + version * moving.interval_seconds
            while loop.time() < ends_at:
                if coming and loop.time() >= began + (moving.newcomers - len(coming)) * moving.apart_seconds:
                    coming.pop(0).begin()
                    continue
                await asyncio.sleep(0.1)
                for newcomer in self._newcomers:
                    if newcomer.here:
                        newcomer.look()
                if not (coming or any(one.here for one in self._newcomers)):
                    return await self._end(version)
        return await self._end(moving.versions_max)

    def _step(self) -> None:
        """Let all donors go on to the next version of every fragment."""
        for course in self._courses:
            step = course.step()
            for donor in self._donors:
                donor.anchors.install(course.chain.fragment, course.newest.digest, course.newest.state, step)
        for newcomer in self._newcomers:
            if newcomer.here:
                newcomer.follow()

    async def _end(self, versions: int) -> Catching:
        sent_bytes = sum(donor.sent_bytes for donor in self._donors)
        for peer in self._peers:
            await peer.close()
        seconds = [one.seconds for one in self._newcomers if one.seconds < math.inf]
        return Catching(tuple(seconds), versions, sent_bytes, sum(one.catch_up.outrun for one in self._newcomers))


def catching(moving: Moving) -> Catching:
    """Run one case; its result is the same every time."""

    async def play() -> Catching:
        return await Swarm(moving).play()

    return run_virtual(play())


def main(begins: str) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    print("| the swarm | caught up | seconds, longest (one version) | versions | given, MB (one version) | cannot |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, moving in SWARMS.items():
        if not name.startswith(begins):
            continue
        found = catching(moving)
        seconds = f"{max(found.seconds, default=math.inf):.0f} ({moving.ideal_seconds:.0f})"
        given = f"{found.sent_bytes / 1e6:.0f} ({moving.needed_bytes / 1e6:.0f})"
        print(
            f"| {name} | {len(found.seconds)} of {moving.newcomers} | {seconds} | {found.versions} "
            f"| {given} | {found.outrun} |",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("begins", nargs="?", default="", help="only swarms whose names begin so")
    main(parser.parse_args().begins)
