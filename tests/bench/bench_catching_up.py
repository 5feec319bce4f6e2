"""Newcomers of a swarm that goes on while they download: `python tests/bench/bench_catching_up.py`.

Prints how long one takes until it has been at the newest version of every fragment, where a state takes as long as some
versions. Donors and newcomer, network and time are as in `tests/bench/bench_donors.py`. Every version is a real outer
step from the one before, with its real digest; only who agreed on it is left out.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import structlog
import torch

from coordinator.events import Event, StateFetched
from coordinator.manifest import RunConfig
from dht.statement import digest_of
from peer.anchors import HeldState, genesis_states, layouts_of
from peer.codec import CODECS
from peer.fetches import Fetches
from peer.fragments import Partitioning
from peer.memory_transport import MemoryNetwork
from peer.outer_optimizer import OuterState, state_digest
from peer.reduction import apply_merged, told_gradients
from peer.round_work import RoundWork
from peer.virtual_loop import run_virtual
from tests.bench.bench_donors import CONFIG, DONORS, LINE, NEWCOMER, Peer

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Moving:
    """A line from each of three donors, and how often each fragment has a new version."""

    name: str
    config: RunConfig
    line_mbit: float
    interval_seconds: float
    versions_max: int = 60

    @property
    def ideal_seconds(self) -> float:
        """For one version of all fragments."""
        return sum(8 * layout.elements for layout in layouts_of(self.config)) / (len(DONORS) * self.line_mbit * 1e6 / 8)


SWARMS = (
    Moving("a state takes half a version", CONFIG, 20.0, 4.0),
    Moving("a state takes two versions", CONFIG, 2.0, 9.0),
    Moving("a state takes four versions", CONFIG, 2.0, 4.5),
    Moving("a state takes sixteen versions", CONFIG, 2.0, 1.1),
)


@dataclass(frozen=True, slots=True)
class Catching:
    """How it went."""

    seconds: float  # until every fragment had been at its newest version, infinite if that never was
    versions: int  # that came meanwhile, of each fragment
    sent_bytes: int  # by all donors
    outrun: bool  # at the end: the newcomer says that it cannot catch up


class InlineWork(RoundWork):
    """Tensor work takes no time here."""

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
        """The next version, and what led there."""
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


class Swarm:
    """Three donors that go on, and a newcomer that wants the newest of every fragment until it is there."""

    def __init__(self, moving: Moving) -> None:
        config = self._config = moving.config
        line = replace(LINE, bytes_per_second=moving.line_mbit * 1e6 / 8)
        network = MemoryNetwork(1, line)
        self._moving = moving
        self._courses = [Course(config, place, state) for place, state in enumerate(genesis_states(config))]
        self._donors = [Peer(network, donor, (), config=config) for donor in DONORS]
        self._newcomer = Peer(network, NEWCOMER, (), config=config)
        work = InlineWork(config, self._newcomer.anchors, Any, Any)  # type: ignore[arg-type]
        chains: Any = [course.chain for course in self._courses]
        loop = asyncio.get_running_loop()
        self.fetches = Fetches(self._newcomer.states, work, lambda: chains, loop.create_task, self._hear)

    def _hear(self, event: Event) -> None:
        """As the core: what is the newest is installed."""
        assert not isinstance(event, StateFetched) or self._adopt(event)

    def _adopt(self, event: StateFetched) -> bool:
        course = self._courses[event.fragment]
        state = self.fetches.take(course.chain.certificates[-1])
        if state is not None:
            assert state_digest(state.anchor, state.momentum) == course.chain.certificates[-1].state
            self._newcomer.anchors.install(event.fragment, course.newest.digest, state)
        return True

    def _fetch(self, course: Course) -> None:
        """The newest version, as the core asks for it: of every fragment from others first."""
        first = course.chain.fragment % len(DONORS)
        action: Any = SimpleNamespace(
            certificate=course.chain.certificates[-1], holders=(*DONORS[first:], *DONORS[:first])
        )
        self.fetches.start(action)

    def _holds(self, course: Course) -> bool:
        return self._newcomer.anchors.newest(course.chain.fragment) == course.newest.digest

    async def play(self) -> Catching:
        for peer in (*self._donors, self._newcomer):
            await peer.start()
        loop = asyncio.get_running_loop()
        began, held = loop.time(), set[int]()
        for version in range(1, self._moving.versions_max + 1):
            for course in self._courses:
                step = course.step()
                for donor in self._donors:
                    donor.anchors.install(course.chain.fragment, course.newest.digest, course.newest.state, step)
                self._fetch(course)
            ends_at = began + version * self._moving.interval_seconds
            while loop.time() < ends_at:
                await asyncio.sleep(0.1)
                held |= {course.chain.fragment for course in self._courses if self._holds(course)}
                if len(held) == len(self._courses):
                    return await self._end(loop.time() - began, version)
        return await self._end(float("inf"), self._moving.versions_max)

    async def _end(self, seconds: float, versions: int) -> Catching:
        sent_bytes = sum(donor.sent_bytes for donor in self._donors)
        for peer in (*self._donors, self._newcomer):
            await peer.close()
        return Catching(seconds, versions, sent_bytes, self.fetches.outrun)


def catching(moving: Moving) -> Catching:
    """How a newcomer catches up; the same every time."""

    async def play() -> Catching:
        return await Swarm(moving).play()

    return run_virtual(play())


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    print("| the swarm | seconds (one version alone) | versions meanwhile | given, MB (one version) | says |")
    print("| --- | --- | --- | --- | --- |")
    for moving in SWARMS:
        found, needed = catching(moving), sum(8 * layout.elements for layout in layouts_of(moving.config))
        seconds = f"{found.seconds:.0f} ({moving.ideal_seconds:.0f})"
        says = "cannot catch up" if found.outrun else "–"
        given = f"{found.sent_bytes / 1e6:.0f} ({needed / 1e6:.0f})"
        print(f"| {moving.name} | {seconds} | {found.versions} | {given} | {says} |", flush=True)


if __name__ == "__main__":
    main()
