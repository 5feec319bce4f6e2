"""One peer of the Muster side: `python -m tests.bench.allreduce.muster_peer FOLDER HOST PARAMETERS PEER_ID …`.

It has all the parts of a round that `peer.node.node` puts together: daemon, transport, engine, driver, tensor work,
vote log. It leaves out the learner, which `Gradient` replaces, the loops of the record store (a command tells which
peers are there) and checkpoints. A round begins when a command tells all peers that the learners have made their steps.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from coordinator.core.context import Core
from coordinator.core.events import PresenceSeen, Progress
from coordinator.run.manifest import Manifest, OuterSpec, PaceSpec, RunConfig
from coordinator.wire.presence import Presence
from dht.identity import KeyVerifier, PeerId
from dht.statement import digest_of
from peer.learner.work_counters import Counters
from peer.machine import log
from peer.machine.clock import unix_seconds
from peer.machine.heap import give_back_large_pieces
from peer.net.network import Network
from peer.node.build import build_driver, open_network, prepare
from peer.node.options import NodeOptions
from peer.rounds.driver import RoundDriver
from peer.storage.anchors import genesis_states
from peer.storage.genesis_file import digests_of
from peer.storage.run_directory import RunDirectory
from tests.bench.allreduce.commands import Answer, serve
from tests.bench.allreduce.gradients import likeness, model_of, outer_gradient, true_mean

STEPS = 20  # between two versions
STEPS_PER_SECOND = 200.0
TOKENS_PER_STEP = 1000
ROUND_SECONDS = 60.0  # a deadline that no round here comes near, on any machine


def config_of(parameters: int, peers: int) -> RunConfig:
    """Return a run with one fragment, in which no peer is left out; merge and checks are the defaults."""
    return RunConfig(
        name="allreduce",
        model=model_of(parameters),
        outer=OuterSpec(merge="robust_rda", contribution_codec="int4", result_codec="int4"),
        pace=PaceSpec(
            fragments=1,
            steps_per_version=STEPS,
            quorum=peers,
            min_group=peers,
            round_seconds=ROUND_SECONDS,
            presence_seconds=150.0,
            presence_lifetime_seconds=300.0,
        ),
    )


class Gradient:
    """Replaces the learner: gives the outer gradient to the round, and takes the result."""

    def __init__(self, peer: BenchPeer, gradient: Tensor) -> None:
        self._peer = peer
        self._gradient = gradient
        self.steps = 0
        self.theta: Tensor
        self.began = self.ended = 0.0
        self.done = asyncio.Event()

    def prepare(self, anchor: Tensor) -> None:
        """Make the steps of another version; afterwards Θ − θ is the gradient."""
        self.theta = anchor - self._gradient
        self.steps += STEPS
        self.done.clear()

    async def snapshot(self, fragment: int) -> tuple[Tensor, Counters]:
        self.began = time.monotonic()
        self._peer.see_everybody(steps_per_second=0.0)  # so that no round follows by itself
        return self.theta, Counters(STEPS, STEPS * TOKENS_PER_STEP, self.steps - STEPS, STEPS, self.steps)

    async def adopt(self, fragment: int, new: Tensor, *_: Any) -> int:
        self.ended = time.monotonic()
        self.done.set()
        return self.steps


class BenchPeer:
    """The parts of `peer.node.node.Node` that a round needs."""

    def __init__(self, network: Network, driver: RoundDriver, number: int, gradient: Tensor) -> None:
        self.network, self.driver, self.number = network, driver, number
        self.gradient = Gradient(self, gradient)
        driver.learner = self.gradient  # type: ignore[assignment]
        driver.failed = self._fail
        self._boots: dict[PeerId, bytes] = {}
        self._beat = 0
        self._failure: BaseException | None = None
        self._before = self._anchor

    @classmethod
    async def start(
        cls, options: NodeOptions, config: RunConfig, peers: list[PeerId], places: dict[PeerId, str]
    ) -> BenchPeer:
        """Start a peer; `places`, the addresses of peers, may be filled later."""
        identity = prepare(options)
        manifest = Manifest(
            config=config,
            organiser=peers[0],
            founders=tuple(peers),
            data_digest=digest_of(b"no data"),
            genesis=digests_of(genesis_states(config)),
            created_unix_seconds=0,
        )
        loop = asyncio.get_running_loop()
        network = await open_network(
            options, manifest.run_id, None, lambda peer: [places[peer]] if peer in places else []
        )
        core = Core(manifest, identity, KeyVerifier(), os.urandom, unix_seconds() - loop.time())
        directory = RunDirectory(options.data_directory, manifest.run_id)
        held = directory.load(manifest, core.rules)
        driver = build_driver(core, held, network, directory, options)
        number = peers.index(identity.peer_id)
        peer = cls(network, driver, number, outer_gradient(held.anchors.layouts[0].elements, number))
        network.expect_payloads(driver.work.payload_bytes_max)
        await network.start(driver.on_frame, driver.on_gone)
        return peer

    @property
    def _anchor(self) -> Tensor:
        return self.driver.anchors.current(0).anchor

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self.gradient.done.set()

    def know(self, boots: dict[PeerId, bytes]) -> None:
        """Set the boot ids of the other peers."""
        self._boots = {peer: boot for peer, boot in boots.items() if peer != self.network.peer_id}

    def see_everybody(self, steps_per_second: float) -> None:
        """Tell the driver, like presence records and a learner, that all have equal steps and go on at this rate."""
        self._beat += 1
        self.driver.feed(Progress(self.gradient.steps, steps_per_second))
        versions, heads = self.driver.engine.heads()
        for peer, boot in self._boots.items():
            presence = Presence(
                boot=boot,
                state="training",
                steps=self.gradient.steps,
                steps_per_second=steps_per_second,
                tokens=0,
                versions=versions,
                heads=heads,
                addresses=(),
                beat=self._beat,
            )
            self.driver.feed(PresenceSeen(peer, presence))

    async def prepare(self) -> Answer:
        await self.driver.adoptions.settle()
        self._before = self._anchor
        self.gradient.prepare(self._before)
        self.driver.feed(Progress(self.gradient.steps, 0.0))  # so that we have a contribution if others ask us first
        return {}

    async def reduce(self) -> Answer:
        """Make one round, from the news that it is due to the version's adoption."""
        asked = time.monotonic()
        self.see_everybody(STEPS_PER_SECOND)
        await self.gradient.done.wait()
        if self._failure is not None:
            raise self._failure
        view = self.driver.traces.views(1)[0]
        phases = {
            one.name: one.end_unix_seconds - one.start_unix_seconds
            for one in view.phases
            if one.end_unix_seconds is not None
        }
        return {"asked": asked, "began": self.gradient.began, "ended": self.gradient.ended, "phases": phases}

    async def verify(self, peers: int) -> Answer:
        """Return the state that all must agree on, and the likeness of the step to the mean of all outer gradients."""
        machine, outer = self.driver.engine.machines[0], self.driver.engine.core.manifest.config.outer
        merged = (self._before - self._anchor) / outer.learning_rate
        certificate = machine.chain.certificates[-1]
        return {
            "state": machine.chain.state.hex(),
            "holds_it": self.driver.anchors.digest(0) == machine.chain.state,
            "included": len(certificate.outcome.included()),
            "void_partitions": sum(one is None for one in certificate.outcome.partitions),
            "rounds_void": self.driver.counters.events["round_void"],
            "bytes_sent": self.network.traffic.bytes_sent,
            **likeness(merged, true_mean(merged.numel(), peers)),
        }

    async def close(self) -> None:
        await self.driver.close()
        await self.network.close()


async def main(options: NodeOptions, parameters: int, peers: list[PeerId]) -> None:
    log.configure(options.data_directory)
    log.silence_libraries()
    give_back_large_pieces()  # as a peer's process does
    places: dict[PeerId, str] = {}
    peer = await BenchPeer.start(options, config_of(parameters, len(peers)), peers, places)

    async def tell() -> Answer:
        (address, *_) = await peer.network.dht.daemon.visible_addresses()
        return {"peer": peer.network.peer_id, "address": str(address), "boot": peer.driver.engine.core.boot.hex()}

    async def meet(told: list[Answer]) -> Answer:
        places.update({PeerId(one["peer"]): one["address"] for one in told})
        peer.know({PeerId(one["peer"]): bytes.fromhex(one["boot"]) for one in told})
        return {}

    async def verify() -> Answer:
        return await peer.verify(len(peers))

    try:
        await serve({"tell": tell, "meet": meet, "prepare": peer.prepare, "reduce": peer.reduce, "verify": verify})
    finally:
        await peer.close()


if __name__ == "__main__":
    here = NodeOptions(data_directory=Path(sys.argv[1]), listen_host=sys.argv[2])
    asyncio.run(main(here, int(sys.argv[3]), [PeerId(one) for one in sys.argv[4:]]))
