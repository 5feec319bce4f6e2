"""Measures the CPU time of each stage of a round for one peer: `python tests/bench/bench_round.py [--peers 2 4 8]`.

It makes whole rounds of one fragment in one process and one thread, with real engines, drivers and tensor work. Frames
come in pieces as from a socket, and an outer gradient in shared memory replaces the learner. There are no sockets,
daemons, clocks or disk, except for the vote log. Prints one table: a peer's milliseconds per million parameters and
round, the median of several rounds, by stage. A stage excludes the stages that it calls.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import structlog
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

from coordinator.chain.chain import Chain
from coordinator.core.context import Core
from coordinator.engine.engine import Engine
from coordinator.run.manifest import Manifest, OuterSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.identity import Identity, KeyVerifier, PeerId
from dht.statement import digest_of
from peer.learner.client import LearnerClient, _PendingCommands
from peer.learner.messages import Done, SnapshotTaken, TakeSnapshot
from peer.learner.shared_memory import SharedSlots
from peer.learner.work_counters import Counters
from peer.machine.heap import give_back_large_pieces
from peer.net.transport import FrameReader, frame_prefix
from peer.numerics import codec, encoded_parts, outer_optimizer, outer_step, reduction
from peer.numerics.robust import segments, stack
from peer.rounds import spot_checks
from peer.rounds.counters import RunCounters
from peer.rounds.driver import RoundDriver
from peer.rounds.tensor_worker import TensorWorker
from peer.storage import blobs
from peer.storage.anchors import Anchors, genesis_states, layouts_of
from peer.storage.blobs import BlobStore
from peer.storage.genesis_file import digests_of
from peer.storage.record_log import RecordLog
from tests.bench.allreduce.gradients import outer_gradient
from tests.bench.allreduce.muster_peer import STEPS, TOKENS_PER_STEP, BenchPeer, Gradient, config_of
from tests.peer.memory_transport import MemoryNetwork, MemoryTransport
from tests.peer.rounds.test_driver import Inline
from tests.peer.virtual_loop import run_virtual

SLICE_BYTES = 64 << 10  # a socket gives so many at once
WARM_UP_ROUNDS = 2


class Meter:
    """CPU seconds by stage, each without the stages inside it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside: list[float] = []

    def wrap(self, owner: Any, name: str, stage: str) -> None:
        """Count the time of this function of a module or class for a stage."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def counted(*args: Any, **named: Any) -> Any:
            began = time.process_time()
            self._inside.append(0.0)
            try:
                return function(*args, **named)
            finally:
                spent = time.process_time() - began
                self.seconds[stage] += spent - self._inside.pop()
                if self._inside:
                    self._inside[-1] += spent

        setattr(owner, name, counted)


METER = Meter()
STAGES: tuple[tuple[Any, str, str], ...] = (
    (TensorWorker, "encode", "encode: subtract"),
    (TensorWorker, "reduce", "reduce: else"),
    (TensorWorker, "apply", "apply: else"),
    (TensorWorker, "adopt", "adopt"),
    (_PendingCommands, "settle", "copies from and to the learner"),
    (Tensor, "copy_", "copies from and to the learner"),
    (spot_checks.SpotChecker, "open", "checks: open"),
    (spot_checks.SpotChecker, "inspect", "checks: inspect"),
    (BlobStore, "add", "receive: keep"),
    (FrameReader, "feed", "receive: copy"),
    (RoundDriver, "on_frame", "protocol"),
    (RoundDriver, "feed", "protocol"),
    (codec.BlockCodec, "encode", "encode: int8"),
    (codec.BlockCodec, "decode", "decode"),
    (reduction, "squared_norm", "norms, exact"),
    (reduction, "_surely_has", "norms, rough"),
    (encoded_parts, "leaf_digests", "hash what we make"),
    (encoded_parts, "tree_of_leaves", "hash what we make"),
    (encoded_parts, "told_norm", "norms, told"),
    (blobs, "merkle_tree", "hash what comes"),
    (segments, "inner_products", "merge: inner products"),
    (stack, "combine", "merge: sum"),
    (segments, "robust_shares", "merge: coefficients"),
    (outer_step, "descend", "step"),
    (outer_step, "_scaled", "step: lengths"),
    (outer_optimizer, "_root", "hash the anchor"),
    (outer_optimizer.SpentMomentum, "of", "hash the spent momentum"),
)


class AtOnce(LearnerClient):
    """A learner that answers at once, without a process, so that only the peer's copies cost time."""

    def __init__(self, slots: SharedSlots) -> None:
        self.slots = slots
        self._commands = _PendingCommands(slots)
        self.steps = 0

    def _send(self, message: Any) -> None:
        answer: SnapshotTaken | Done = Done(ticket=message.ticket, at_step=self.steps)
        if isinstance(message, TakeSnapshot):
            began, tokens = self.steps - STEPS, STEPS * TOKENS_PER_STEP
            answer = SnapshotTaken(
                ticket=message.ticket,
                steps=STEPS,
                tokens=tokens,
                window_first=began,
                window_count=STEPS,
                at_step=self.steps,
            )
        asyncio.get_running_loop().call_soon(self._commands.settle, answer)


class SlotGradient(Gradient):
    """A gradient that lies in shared memory."""

    def __init__(self, peer: BenchPeer, gradient: Tensor, learner: AtOnce) -> None:
        super().__init__(peer, gradient)
        self._learner = learner

    def prepare(self, anchor: Tensor) -> None:
        super().prepare(anchor)
        self._learner.slots.slot(0, 0).copy_(self.theta)
        del self.theta
        self._learner.steps = self.steps

    async def snapshot(self, fragment: int) -> tuple[Tensor, Counters]:
        taken = await self._learner.snapshot(fragment)
        self.theta = taken[0]
        await super().snapshot(fragment)
        del self.theta
        return taken

    async def adopt(self, fragment: int, new: Tensor, *terms: Any) -> int:
        await self._learner.adopt(fragment, new, *terms)
        return await super().adopt(fragment, new, *terms)


class CutTransport(MemoryTransport):
    """A transport whose frames come in pieces, as from a socket."""

    def arrive(self, sender: PeerId, frame: Any) -> None:
        whole = frame_prefix(frame.header, frame.payload, self.config.payload_bytes_max) + frame.header + frame.payload
        reader, view = FrameReader(self.config.payload_bytes_max), memoryview(whole)
        for start in range(0, len(view), SLICE_BYTES):
            for one in reader.feed(view[start : start + SLICE_BYTES]):
                super().arrive(sender, one)


def layer_of(parameters: int) -> ModelSpec:
    """Return one layer of a Llama over bytes, of about this size."""
    width = max(64, round((parameters / 12) ** 0.5 / 64) * 64)
    return ModelSpec(hidden_size=width, layers=1, heads=width // 64, intermediate_size=8 * width // 3)


def run_config(parameters: int, peers: int, outer: OuterSpec) -> RunConfig:
    return config_of(parameters, peers).model_copy(update={"model": layer_of(parameters), "outer": outer})


class Group:
    """Peers of one run, in this process."""

    def __init__(self, config: RunConfig, count: int, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._network = MemoryNetwork(7)
        self._identities = [Identity(digest_of(b"peer", bytes([number]))) for number in range(count)]
        genesis = genesis_states(config)
        self._manifest = Manifest(
            config=config,
            organiser=self._identities[0].peer_id,
            founders=tuple(one.peer_id for one in self._identities),
            data_digest=digest_of(b"no data"),
            genesis=digests_of(genesis),
            created_unix_seconds=0,
        )
        self.peers: list[BenchPeer] = []

    async def start(self) -> None:
        self.peers = [self._add(number) for number in range(len(self._identities))]
        boots = {peer.network.peer_id: peer.driver.engine.core.boot for peer in self.peers}
        for peer in self.peers:
            await peer.network.start(peer.driver.on_frame, peer.driver.on_gone)
            peer.know(boots)

    def _add(self, number: int) -> BenchPeer:
        config, identity = self._config, self._identities[number]
        draws = iter(range(1 << 30))
        core = Core(
            self._manifest,
            identity,
            KeyVerifier(),
            lambda count: digest_of(identity.peer_id.encode(), b"%d" % next(draws))[:count],
            1e9,
        )
        chains = [Chain(core.rules, fragment, digest) for fragment, digest in enumerate(self._manifest.genesis)]
        anchors, store = Anchors(layouts_of(config), genesis_states(config)), BlobStore(1 << 30)
        transport = CutTransport(self._network, identity.peer_id, self._network.transport(identity.peer_id).config)
        work = TensorWorker(config, anchors, store, Inline())
        driver = RoundDriver(
            engine=Engine(core, chains, [0] * len(chains), asyncio.get_running_loop().time()),
            transport=transport,
            work=work,
            anchors=anchors,
            blobs=store,
            votes=RecordLog(self._folder / identity.peer_id),
            counters=RunCounters(config.pace.fragments),
        )
        gradient = outer_gradient(anchors.layouts[0].elements, number)
        peer = BenchPeer(transport, driver, number, gradient)  # type: ignore[arg-type]
        learner = AtOnce(SharedSlots.create(anchors.layouts, config.pace.overlap))
        peer.gradient = SlotGradient(peer, gradient, learner)
        driver.learner = peer.gradient  # type: ignore[assignment]
        return peer

    @property
    def parameters(self) -> int:
        return self.peers[0].driver.anchors.layouts[0].elements

    async def round(self) -> dict[str, float]:
        """Make one round; returns the mean CPU seconds of a peer by stage."""
        await self._all(BenchPeer.prepare)
        METER.seconds.clear()
        began = time.process_time()
        await self._all(BenchPeer.reduce)
        whole = time.process_time() - began
        found = {**METER.seconds, "else": whole - sum(METER.seconds.values()), "together": whole}
        return {stage: seconds / len(self.peers) for stage, seconds in found.items()}

    async def _all(self, command: Callable[[BenchPeer], Awaitable[Any]]) -> None:
        await asyncio.gather(*(command(peer) for peer in self.peers))

    async def check(self) -> bytes:
        """Return the state that all peers hold; raises RuntimeError unless they agree."""
        found = await asyncio.gather(*(peer.verify(len(self.peers)) for peer in self.peers))
        if len({one["state"] for one in found}) > 1 or any(one["included"] < len(found) for one in found):
            raise RuntimeError(f"the peers do not hold one result: {found}")
        return bytes.fromhex(found[0]["state"])


async def measure(config: RunConfig, count: int, rounds: int) -> tuple[int, dict[str, float], bytes]:
    """Return the parameters, a peer's milliseconds per million of them by stage, and the final state."""
    with tempfile.TemporaryDirectory() as folder:
        group = Group(config, count, Path(folder))
        await group.start()
        found = [await group.round() for _ in range(WARM_UP_ROUNDS + rounds)][WARM_UP_ROUNDS:]
        scale = 1e9 / group.parameters
        stages = sorted({stage for one in found for stage in one})
        state = await group.check()
        medians = {stage: scale * statistics.median(one.get(stage, 0.0) for one in found) for stage in stages}
        return group.parameters, medians, state


def print_table(counts: Sequence[int], columns: Sequence[dict[str, float]]) -> None:
    stages = sorted({stage for one in columns for stage in one}, key=lambda one: (one == "together", one))
    print(f"{'ms per million parameters, peer and round':44}" + "".join(f"{count:>8}" for count in counts))
    for stage in stages:
        print(f"{stage:44}" + "".join(f"{column.get(stage, 0.0):8.2f}" for column in columns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=2e6, help="of the fragment")
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--codec", default="int8")
    options = parser.parse_args()
    torch.set_num_threads(1)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    give_back_large_pieces()
    for owner, name, stage in STAGES:
        METER.wrap(owner, name, stage)
    outer = OuterSpec(contribution_codec=options.codec, result_codec=options.codec)
    columns = []
    for count in options.peers:
        config = run_config(int(options.parameters), count, outer)
        parameters, column, state = run_virtual(measure(config, count, options.rounds))
        print(f"{count} peers, {parameters / 1e6:.2f} million parameters: state {state.hex()[:16]}", flush=True)
        columns.append(column)
    print_table(options.peers, columns)


if __name__ == "__main__":
    main()
