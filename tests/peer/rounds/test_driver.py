"""Whole peers in one process: real core, real tensors, real learner steps; virtual time, memory transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from itertools import count, product
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from coordinator.chain.chain import CHAIN_KEPT, Chain
from coordinator.chain.passes import ReadingLane
from coordinator.core.actions import Apply, Discard, PartitionResult, Reduce, RoundKey
from coordinator.core.context import Core
from coordinator.core.events import PresenceSeen, Progress, Reduced
from coordinator.engine.engine import Engine
from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import Manifest, OuterSpec, PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from coordinator.simulator.faults import FAULT_POINTS as SIMULATED
from coordinator.wire.inputs import ReduceInput
from coordinator.wire.messages import NeedNote, PartNote
from coordinator.wire.presence import Presence
from dht.identity import Identity, KeyVerifier, PeerId
from dht.statement import digest_of
from peer.data.windows import training_windows
from peer.learner.gradient.batch_ahead import Batches
from peer.learner.learner import Learner, make_learner
from peer.learner.work_counters import Counters
from peer.machine.fault_points import FAULT_POINTS, Fault
from peer.net.frames import encode_header
from peer.node.build import BLOB_FRAGMENTS
from peer.node.lifecycle import window_to_read
from peer.numerics.codec import CODECS
from peer.numerics.fragments import Partitioning
from peer.numerics.outer_optimizer import outer_step, state_digest
from peer.numerics.reduction import segment_norms
from peer.rounds.counters import RunCounters
from peer.rounds.driver import RoundDriver
from peer.rounds.tensor_worker import TensorWorker
from peer.storage.anchors import Anchors, genesis_states, layouts_of
from peer.storage.blobs import BlobStore
from peer.storage.record_log import RecordLog
from tests.extra import extra
from tests.peer.memory_transport import MemoryNetwork
from tests.peer.virtual_loop import run_virtual

STEP_SECONDS = 0.25
STEPS_PER_PRESENCE = 8


def config_of(versions: int = 10_000, **pace: Any) -> RunConfig:
    spec: dict[str, Any] = {"fragments": 2, "steps_per_version": 4, "round_seconds": 8.0, "quorum": 2, "min_group": 1}
    return RunConfig(
        versions=versions,
        model=ModelSpec(hidden_size=8, layers=1, heads=2, intermediate_size=16),
        data=DataSpec(context_tokens=16, sequences_per_step=2, evaluation_tokens=256),
        inner=InnerSpec(optimizer="adamw", warmup_steps=0),
        outer=OuterSpec(merge="mean", contribution_codec="fp32", result_codec="fp32"),
        pace=PaceSpec(**{**spec, **pace}),
    )


class Inline(Executor):
    """An executor that works inline, so that virtual time does not pass while a thread works."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            future.set_exception(error)
        return future


@dataclass
class InProcessLearner:
    """A learner in this process, with the interface of `LearnerClient`; `steps_at` are its steps' virtual times."""

    learner: Learner
    steps_at: list[float] = field(default_factory=list)
    adoptions: list[tuple[int, int]] = field(default_factory=list)

    async def snapshot(self, fragment: int) -> tuple[Tensor, Counters]:
        out = torch.empty(self.learner.fragments[fragment].elements)
        return out, self.learner.snapshot(fragment, out)

    async def adopt(
        self, fragment: int, new: Tensor, reference: Tensor | None, counted_steps: int = 0, counted_tokens: int = 0
    ) -> int:
        self.learner.adopt(fragment, new, reference, counted_steps, counted_tokens)
        self.adoptions.append((fragment, self.learner.step_count))
        return self.learner.step_count


@dataclass
class Peer:
    identity: Identity
    driver: RoundDriver
    learner: InProcessLearner
    failures: list[BaseException]

    @property
    def versions(self) -> list[int]:
        return [machine.chain.version for machine in self.driver.engine.machines]

    def presence(self) -> Presence:
        versions, heads = self.driver.engine.heads()
        return Presence(
            boot=self.driver.engine.core.boot,
            state="training",
            steps=self.learner.learner.step_count,
            steps_per_second=1 / STEP_SECONDS,
            tokens=0,
            versions=versions,
            heads=heads,
            addresses=(),
        )


@dataclass
class Swarm:
    """Peers that train in lockstep with virtual time."""

    config: RunConfig
    count: int
    folder: Path
    chain_kept: int = CHAIN_KEPT
    network: MemoryNetwork = field(default_factory=lambda: MemoryNetwork(7))
    peers: list[Peer] = field(default_factory=list)
    sides: tuple[frozenset[PeerId], ...] = ()

    async def start(self) -> None:
        identities = [Identity(digest_of(b"peer", bytes([number]))) for number in range(self.count)]
        genesis = genesis_states(self.config)
        manifest = Manifest(
            config=self.config,
            organiser=identities[0].peer_id,
            founders=tuple(identity.peer_id for identity in identities),
            data_digest=digest_of(b"test data"),
            genesis=tuple(state_digest(state.anchor, state.momentum) for state in genesis),
            created_unix_seconds=0,
        )
        for identity in identities:
            peer = await self.add(identity, manifest)
            await peer.driver.transport.start(peer.driver.on_frame, peer.driver.on_gone)
            self.peers.append(peer)

    async def add(self, identity: Identity, manifest: Manifest) -> Peer:
        """Return a new peer that does not hear anybody yet."""
        random = iter(range(1 << 30))
        core = Core(
            manifest,
            identity,
            KeyVerifier(),
            lambda n: digest_of(bytes(str(next(random)), "ascii"))[:n],
            1e9,
            chain_kept=self.chain_kept,
        )
        chains = [Chain(core.rules, fragment, digest) for fragment, digest in enumerate(manifest.genesis)]
        anchors = Anchors(layouts_of(self.config), genesis_states(self.config))
        blobs = BlobStore(1 << 26)
        learner = InProcessLearner(make_learner(self.config, windows_of(self.config, identity.peer_id)))
        transport = self.network.transport(identity.peer_id)
        failures: list[BaseException] = []
        driver = RoundDriver(
            engine=Engine(core, chains, [0] * len(chains), asyncio.get_running_loop().time()),
            transport=transport,
            work=TensorWorker(self.config, anchors, blobs, Inline()),
            anchors=anchors,
            blobs=blobs,
            votes=RecordLog(self.folder / identity.peer_id),
            counters=RunCounters(self.config.pace.fragments),
            failed=failures.append,
            learner=learner,  # type: ignore[arg-type]
        )
        return Peer(identity, driver, learner, failures)

    def part(self, first: int) -> None:
        """Cut the network between the first peers and the others."""
        names = [peer.identity.peer_id for peer in self.peers]
        self.sides = (frozenset(names[:first]), frozenset(names[first:]))
        self.network.partition(*self.sides)

    def heal(self) -> None:
        """Reconnect the network, so that everybody hears everybody again."""
        self.sides = ()
        self.network.heal()

    def side(self, peer: Peer) -> int:
        return next((index for index, side in enumerate(self.sides) if peer.identity.peer_id in side), 0)

    async def train(self, steps: int) -> None:
        """Let every learner make this many steps, one per STEP_SECONDS."""
        loop = asyncio.get_running_loop()
        for number in range(steps):
            for peer in self.peers:
                peer.learner.learner.set_progress(
                    0, window_to_read(peer.driver.engine)
                )  # as `LearnerClient.follow` does
                peer.learner.learner.step()
                peer.learner.steps_at.append(loop.time())
                peer.driver.feed(Progress(peer.learner.learner.step_count, 1 / STEP_SECONDS))
            if number % STEPS_PER_PRESENCE == 0:
                for peer in self.peers:
                    for other in self.peers:
                        if other is not peer and self.side(other) == self.side(peer):
                            other.driver.feed(PresenceSeen(peer.identity.peer_id, peer.presence()))
            await asyncio.sleep(STEP_SECONDS)

    async def train_until(self, done: Callable[[], bool], steps_max: int) -> None:
        """Train until `done` returns true, for at most `steps_max` steps."""
        for _ in range(0, steps_max, STEPS_PER_PRESENCE):
            await self.train(STEPS_PER_PRESENCE)
            if done():
                return
        raise AssertionError(f"not so after {steps_max} steps")

    def have_made(self, versions: int, since: list[list[int]]) -> Iterator[bool]:
        """Yield, for each peer and fragment, whether it has made so many more versions since then."""
        for peer, before in zip(self.peers, since, strict=True):
            for now, then in zip(peer.versions, before, strict=True):
                yield now >= then + versions

    async def close(self) -> None:
        for peer in self.peers:
            await peer.driver.close()
            await peer.driver.transport.close()
            assert peer.failures == []


def windows_of(config: RunConfig, peer: PeerId) -> Batches:
    tokens = torch.randint(0, 256, (4096,), generator=torch.Generator().manual_seed(5), dtype=torch.uint8)
    return training_windows(tokens, config, digest_of(b"run"), peer)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_three_peers_train_one_model(tmp_path: Path) -> None:
    async def main() -> Swarm:
        swarm = Swarm(config_of(), 3, tmp_path)
        await swarm.start()
        await swarm.train(60)
        await swarm.close()
        return swarm

    swarm = run_virtual(main())
    for peer in swarm.peers:
        assert sum(peer.versions) >= 20
        engine, anchors = peer.driver.engine, peer.driver.anchors
        for machine in engine.machines:
            assert anchors.digest(machine.index) == machine.chain.state  # hashed from the tensors
        assert peer.driver.counters.certified.members == 3 * peer.driver.counters.certified.versions
    heads = {peer.driver.engine.heads() for peer in swarm.peers}
    assert len(heads) == 1


def test_the_timer_is_set_once_for_all_that_comes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    look = Engine.next_deadline

    def noted(engine: Engine, now: float) -> float:
        asked.append(now)
        return look(engine, now)

    async def main() -> int:
        swarm = Swarm(config_of(), 1, tmp_path)
        await swarm.start()
        await asyncio.sleep(0.1)
        asked.clear()
        for steps in range(3):
            swarm.peers[0].driver.feed(Progress(steps, 1 / STEP_SECONDS))
        await asyncio.sleep(0.0)
        found = len(asked)
        swarm.peers[0].driver.feed(Progress(3, 1 / STEP_SECONDS))
        await swarm.close()  # before the timer is set, which must then stay unset
        await asyncio.sleep(60.0)
        return found

    monkeypatch.setattr(Engine, "next_deadline", noted)
    assert run_virtual(main()) == 1
    assert len(asked) == 1


@pytest.mark.slow
def test_work_that_either_half_certified_is_in_the_model_of_both_afterwards(tmp_path: Path) -> None:
    """Every step of every learner is in one version of each fragment, or still to be brought."""

    async def main() -> Swarm:
        swarm = Swarm(config_of(min_group=2), 4, tmp_path)
        await swarm.start()
        await swarm.train(20)
        swarm.part(2)
        parted = [list(peer.versions) for peer in swarm.peers]
        await swarm.train_until(lambda: all(swarm.have_made(10, parted)), 160)
        assert len({peer.driver.engine.heads() for peer in swarm.peers}) == 2
        swarm.heal()
        healed = [list(peer.versions) for peer in swarm.peers]
        await swarm.train_until(lambda: all(swarm.have_made(5, healed)), 80)
        await swarm.close()
        return swarm

    swarm = run_virtual(main())
    chains = swarm.peers[0].driver.engine.chains
    assert len({peer.driver.engine.heads() for peer in swarm.peers}) == 1
    assert sorted(peer.driver.counters.events["branch_carried"] for peer in swarm.peers) == [0, 0, *[len(chains)] * 2]
    for peer in swarm.peers:
        for chain in chains:
            listed = [one for certificate in chain.certificates for one in certificate.outcome.included()]
            certified = sum(one.steps for one in listed if one.peer == peer.identity.peer_id)
            learner = peer.learner.learner
            assert certified + learner.counters(chain.fragment).steps == learner.step_count


@pytest.mark.slow
def test_in_passes_every_version_gives_everybody_a_lane_of_its_own(tmp_path: Path) -> None:
    """Also, the length of an adoption is reported in steps, whatever the windows' numbers are."""
    config = config_of()
    config = config.model_copy(update={"data": config.data.model_copy(update={"order": "passes"})})
    read: list[int] = []
    lanes: list[set[ReadingLane]] = []

    async def main() -> Swarm:
        swarm = Swarm(config, 3, tmp_path)
        await swarm.start()
        for _ in range(60):
            await swarm.train(1)
            counted = [peer.learner.learner.counters(0) for peer in swarm.peers]
            newest = [one.window_first + one.window_count - 1 for one in counted]
            read.extend(newest)
            lanes.append({ReadingLane.of(window) for window in newest})
        await swarm.close()
        return swarm

    swarm = run_virtual(main())
    assert len(set(read)) == len(read)
    assert all(len(each) == 3 for each in lanes)
    assert {lane.lanes for each in lanes for lane in each} == {3}
    assert max(lane.version for lane in lanes[-1]) >= 10
    for peer in swarm.peers:
        delays = peer.driver.counters.delays_steps
        assert delays
        assert all(0 <= delay < 8 for delay in delays)


@pytest.mark.parametrize("codec", ["int4", *extra(["fp32"])])
def test_a_cheating_reducer_is_found_before_anything_is_applied(tmp_path: Path, codec: str) -> None:
    """Its bytes are signed and complete, but a twentieth of the leaves does not follow from the inputs."""
    config = config_of(fragments=1)
    config = config.model_copy(
        update={"outer": OuterSpec(merge="robust_rda", contribution_codec=codec, result_codec=codec)}
    )
    lies: list[bytes] = []

    async def main() -> Swarm:
        swarm = Swarm(config, 4, tmp_path)
        await swarm.start()
        work, blobs = swarm.peers[2].driver.work, swarm.peers[2].driver.blobs
        honest = work.reduce

        def reduce(action: Reduce) -> Reduced:
            reduced = honest(action)
            data = bytearray(blobs.get(reduced.root or b"") or b"")
            for at in range(0, len(data), 20 * work.leaf_bytes[1]):
                data[at] ^= 1
            lies.append(blobs.add(bytes(data), work.leaf_bytes[1]))
            return replace(reduced, root=lies[-1])

        work.reduce = reduce  # type: ignore[method-assign]
        await swarm.train(30)
        await swarm.close()
        return swarm

    swarm = run_virtual(main())
    culprit = swarm.peers[2].identity.peer_id
    assert len(lies) >= 3
    for peer in swarm.peers:
        [machine] = peer.driver.engine.machines
        assert machine.chain.version >= 3
        partitions = [part for one in machine.chain.certificates for part in one.outcome.partitions if part is not None]
        assert culprit not in {part.reducer for part in partitions}
        assert not set(lies) & {part.root for part in partitions}
        assert peer is swarm.peers[2] or peer.driver.counters.events["result_refuted"] >= 3


def test_a_flood_of_bytes_does_not_drive_out_what_rounds_need(tmp_path: Path) -> None:
    """One of four answers every frame with parts that it never committed, and with bytes where none belong."""
    config = config_of()
    kinds = [
        PartNote(group=bytes(32), partition=0, turn=0),
        NeedNote(what="part", group=bytes(32), partition=0, turn=0),
    ]
    headers = [encode_header(kind) for kind in kinds]

    async def main() -> Swarm:
        swarm = Swarm(config, 4, tmp_path)
        await swarm.start()
        largest_bytes = 4 * max(layout.elements for layout in swarm.peers[0].driver.anchors.layouts)
        for peer in swarm.peers:
            peer.driver.blobs._bytes_max = BLOB_FRAGMENTS * largest_bytes * config.pace.overlap
        *others, culprit = (peer.driver for peer in swarm.peers)
        hear, numbers = culprit.on_frame, count()

        def flood(sender: PeerId, header: bytes, payload: bytes) -> None:
            hear(sender, header, payload)
            for driver, header in product(others, headers):
                garbage = next(numbers).to_bytes(8, "big") + bytes(culprit.work.payload_bytes_max - 8)
                culprit.transport.post(driver.transport.peer_id, header, garbage)

        culprit.transport._on_frame = flood  # type: ignore[attr-defined]
        await swarm.train(16)
        await swarm.close()
        return swarm

    swarm = run_virtual(main())
    for peer in swarm.peers[:3]:
        assert sum(peer.versions) >= 6
        assert peer.driver.counters.events["round_void"] == 0


def test_a_round_that_is_given_up_at_once_leaves_no_step(tmp_path: Path) -> None:
    """The last result may come together with certificates that make the round old."""

    async def main() -> int:
        swarm = Swarm(config_of(), 1, tmp_path)
        await swarm.start()
        driver = swarm.peers[0].driver
        elements = driver.anchors.layouts[0].elements
        codec, cut = CODECS[config_of().outer.result_codec], Partitioning.of(driver.anchors.layouts[0], 1)
        data = codec.encode(torch.ones(elements))
        root = driver.blobs.add(data, codec.leaf_bytes)
        norms = segment_norms(codec.decode(data, elements), cut, 0)
        key = RoundKey(0, 7, digest_of(b"roster"))
        inputs = (ReduceInput(0, digest_of(b"part"), 1.0, norms),)
        applied = Apply(key, (PartitionResult(root, (0,)),), inputs, 1)
        assert driver.work.apply(applied) is not None, "it is a step"
        driver.work.discard(key)
        before = len(driver.work._applied)
        driver._perform(applied)
        driver._perform(Discard(key))
        await driver.work.run(lambda: None)
        left = len(driver.work._applied) - before
        await swarm.close()
        return left

    assert run_virtual(main()) == 0


class Spy(Fault):
    """A fault that never strikes, and remembers where it could have."""

    reached: ClassVar[set[str]] = set()

    def strikes(self, point: str) -> bool:
        self.reached.add(point)
        return False


def test_every_point_at_which_a_peer_can_be_killed_is_passed(tmp_path: Path) -> None:
    async def main() -> None:
        swarm = Swarm(config_of(), 3, tmp_path)
        await swarm.start()
        for peer in swarm.peers:
            peer.driver.fault = Spy("nowhere", 1)
        await swarm.train(24)
        await swarm.close()

    run_virtual(main())
    assert Spy.reached >= set(FAULT_POINTS)
    assert set(FAULT_POINTS) == set(SIMULATED), "as in the simulator"


@pytest.mark.parametrize("seconds", [15.0, *extra([30.0])])
def test_a_frozen_network_does_not_slow_the_learner(seconds: float, tmp_path: Path) -> None:
    """Without any delivery, steps continue at the same rate; versions resume afterwards (design §6.5, 2)."""

    async def main() -> tuple[Swarm, list[int], list[int]]:
        swarm = Swarm(config_of(min_group=2), 3, tmp_path)  # nobody goes on alone
        await swarm.start()
        await swarm.train(20)
        before = list(swarm.peers[0].versions)
        for peer in swarm.peers:
            swarm.network.freeze(peer.identity.peer_id, seconds)
        await swarm.train(round(seconds / STEP_SECONDS))
        frozen = list(swarm.peers[0].versions)
        await swarm.train(48)
        await swarm.close()
        return swarm, before, frozen

    swarm, before, frozen = run_virtual(main())
    assert sum(frozen) <= sum(before) + 2  # what was in flight may still have come through
    assert sum(swarm.peers[0].versions) >= sum(frozen) + 10
    for peer in swarm.peers:
        gaps = {round(b - a, 6) for a, b in zip(peer.learner.steps_at, peer.learner.steps_at[1:], strict=False)}
        assert gaps == {STEP_SECONDS}


def test_one_peer_alone_is_local_training_with_the_outer_step(tmp_path: Path) -> None:
    """M = 1 (DiLoCo 2604.21428 §3): bit for bit what a plain loop computes from the same windows."""
    outer = OuterSpec(learning_rate=0.5, momentum=0.8, merge="mean", contribution_codec="fp32", result_codec="fp32")
    config = config_of(quorum=1, overlap=1).model_copy(update={"outer": outer})

    async def main() -> Swarm:
        swarm = Swarm(config, 1, tmp_path)
        await swarm.start()
        await swarm.train(40)
        await swarm.close()
        return swarm

    swarm = run_virtual(main())
    [peer] = swarm.peers
    plain = make_learner(config, windows_of(config, peer.identity.peer_id))
    states = genesis_states(config)
    adoptions = iter([*peer.learner.adoptions, (0, 1 << 30)])
    upcoming = next(adoptions)
    for _ in range(40):
        plain.step()
        while upcoming[1] == plain.step_count:
            fragment = upcoming[0]
            theta = torch.empty_like(states[fragment].anchor)
            counters = plain.snapshot(fragment, theta)
            gradient = states[fragment].anchor - theta
            states[fragment] = outer_step(states[fragment], gradient, 0.5, 0.8)
            plain.adopt(fragment, states[fragment].anchor, theta, counters.steps, counters.tokens)
            upcoming = next(adoptions)
    assert sum(peer.versions) >= 14
    for fragment, state in enumerate(states):
        held = peer.driver.anchors.current(fragment)
        assert torch.equal(state.momentum, held.momentum)
        assert torch.equal(state.anchor, held.anchor)
    for name, parameter in plain.model.named_parameters():
        assert torch.equal(parameter, dict(peer.learner.learner.model.named_parameters())[name])
