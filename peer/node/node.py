"""A running peer: network, protocol core, learner and checkpoints, put together and taken apart.

`host` begins a run, `join` takes part in one. Everything that decides lives in `coordinator`; everything that computes
in `peer.rounds.tensor_worker` and the learner; this module only connects them and says what state the peer is in.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Literal

import structlog

from coordinator.chain.chain import CHAIN_KEPT
from coordinator.core.events import PresenceSeen
from coordinator.engine.engine import Engine
from coordinator.run.manifest import Manifest, RunConfig
from coordinator.views.snapshot import PeerSnapshot
from coordinator.wire.presence import Presence
from dht.addresses import PeerAddress
from dht.identity import Identity, KeyVerifier, PeerId
from dht.invite import Invite
from peer.data.corpus import TokenData
from peer.machine.sensors import MachineSensors
from peer.machine.tasks import Tasks
from peer.net.addresses import OwnAddresses
from peer.net.frames import STATE_PIECE_BYTES_MAX
from peer.net.network import Network
from peer.net.origins import OriginsLoop
from peer.net.presence_loop import PresenceLoop
from peer.net.probe import ProbeDesk
from peer.node.build import (
    begin_at_invite,
    build_driver,
    check_brought,
    core_kind,
    describe_here,
    make_run,
    open_network,
    prepare,
    read_invite,
)
from peer.node.checkpointer import Checkpointer
from peer.node.clock_check import watch_clock
from peer.node.evaluator import HostEvaluator
from peer.node.evidence_exchange import EvidenceExchange
from peer.node.learner_supervisor import LearnerSupervisor
from peer.node.lifecycle import Lifecycle
from peer.node.live_limits import LiveLimits
from peer.node.options import NodeOptions
from peer.node.pause_loop import PauseLoop
from peer.node.presence import OwnPresence
from peer.node.reachability import watch_reach
from peer.node.status import mark_of, peer_snapshot, told_status
from peer.rounds.counters import LearnerProgress
from peer.rounds.driver import RoundDriver
from peer.rounds.evaluation_loop import Mark
from peer.storage.run_directory import RunDirectory
from peer.storage.tokenizer_file import keep_tokenizer
from peer.sync.bootstrap import fetch_manifest
from peer.sync.genesis import ensure_genesis
from peer.sync.introduction import fresh_invite

log = structlog.get_logger(__name__)

WATCH_SECONDS = 0.2
FLUSH_SECONDS = 1.0  # for what is on its way to others when we leave


class Node:
    """One peer of one run, from start to stop."""

    def __init__(self, options: NodeOptions, identity: Identity, role: Literal["host", "learner"]) -> None:
        self.options = options
        self.role = role
        self.identity = identity
        self.started_at = asyncio.get_running_loop().time()
        self.learning: LearnerSupervisor | None = None
        self.hosting: HostEvaluator | None = None
        self._tasks = Tasks(self._fail)
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stopped = False
        self.manifest: Manifest
        self.network: Network
        self.driver: RoundDriver
        self.addresses: OwnAddresses
        self.own_presence: OwnPresence
        self.presence: PresenceLoop
        self.checkpointer: Checkpointer
        self.stage: Lifecycle
        self.manners: PauseLoop
        self.limits: LiveLimits

    # -- starting

    @classmethod
    async def host(cls, config: RunConfig, options: NodeOptions, invite: Invite | None = None) -> Node:
        """Begin a run, or go on hosting it, after long with an invite; with a session also train; raises as `join`."""
        described = await asyncio.to_thread(describe_here, config, options)
        options = replace(options, files=described.files)
        node = cls(options, prepare(options), "host" if options.session is None else "learner")
        manifest, data = await asyncio.to_thread(make_run, described, options, node.identity.peer_id)
        try:
            met = () if invite is None else invite.addresses
            await node._enter(manifest.run_id, met)
            await node._start(manifest, data, invite)
        except BaseException:
            await node.stop()
            raise
        return node

    @classmethod
    async def join(cls, invite_text: str, options: NodeOptions) -> Node:
        """Take part in the run of this invite; raises MusterError with nothing left behind."""
        invite = read_invite(invite_text, options)
        node = cls(options, prepare(options), "learner")
        try:
            directory = RunDirectory(options.data_directory, invite.run_id)
            await node._enter(invite.run_id, invite.addresses)
            manifest = directory.known_manifest() or await fetch_manifest(node.network, invite.run_id, invite.peers)
            check_brought(manifest.config)
            await ensure_genesis(directory.path, manifest, invite.peers, node.network)
            await node._start(manifest, None, invite)
        except BaseException:
            await node.stop()
            raise
        return node

    async def _enter(self, run_id: bytes, met: tuple[PeerAddress, ...]) -> None:
        self.network = await open_network(self.options, run_id, met, self._addresses_of)
        self._tasks.spawn(self.network.watch())

    async def _start(self, manifest: Manifest, data: TokenData | None, invite: Invite | None) -> None:
        self.manifest = manifest
        directory = RunDirectory(self.options.data_directory, manifest.run_id)
        directory.keep_manifest(manifest)
        await asyncio.to_thread(keep_tokenizer, directory.path, manifest.config.data, self.options.files.tokenizer)
        core = core_kind(self.options, manifest, self.identity)(
            manifest,
            self.identity,
            KeyVerifier(),
            os.urandom,
            unix_offset_seconds=self.options.clock() - self._now(),
            contributes=self.role == "learner",
            chain_kept=self.options.chain_kept or CHAIN_KEPT,
        )
        held = await asyncio.to_thread(directory.load, manifest, core.rules)
        self.driver = build_driver(core, held, self.network, directory, self.options)
        self.driver.engine.bind(held.votes, self._now())  # before anybody can ask us to vote again
        if self.role != "host":
            self.learning = LearnerSupervisor(self.options, self.identity.peer_id, self.driver, directory, self._tasks)
            self.learning.prepare(held.learner_state, held.learner_behind)  # while we ask others
        await begin_at_invite(self.driver.engine, invite, self.network)
        desk = ProbeDesk(self.network.dht.daemon.host_of, self.driver.post, self.options.clock)
        self.driver.transfers.answer_probes(desk)
        self.driver.transfers.tell_status(lambda: told_status(self.snapshot(), self.driver))
        self.checkpointer = Checkpointer(directory, self.driver, self._presence)
        self.addresses = await OwnAddresses.start(self.network.dht, core, lambda: self.presence.hurry())
        self._tasks.spawn(self.addresses.run())
        self.own_presence = OwnPresence(self.driver, self.options, self.addresses)
        self.presence = PresenceLoop(
            self.network.dht.store,
            self.network.dht.daemon,
            manifest.run_id,
            self._presence,
            lambda peer, presence: self.driver.feed(PresenceSeen(peer, presence)),
        )
        self.stage = Lifecycle(self.driver, self.presence, "starting" if self.role == "learner" else "hosting")
        self.driver.failed, self.driver.certified = self._fail, self.stage.drain_at_goal
        sensors = partial(MachineSensors, data_directory=self.options.data_directory)
        self.manners = PauseLoop(self.options, sensors, self.network, self.network.throttle, self.stage.obey)
        self.limits = LiveLimits(self.options, self.manners, self.network, self.driver)
        await self.manners.look()  # before the first step
        self._tasks.spawn(self.manners.run())
        self.network.expect_payloads(max(self.driver.work.payload_bytes_max, STATE_PIECE_BYTES_MAX))
        await self.network.start(self.driver.on_frame, self.driver.on_gone)
        self._tasks.spawn(watch_reach(self.options, self.driver, self.addresses))
        self._tasks.spawn(watch_clock(self.options.clock, self.driver, () if invite is None else invite.peers))
        self._tasks.spawn(EvidenceExchange(self.driver, directory.evidence, self.network.dht.store).run())
        pace = manifest.config.pace
        self._tasks.spawn(self.presence.run(pace.presence_seconds, pace.presence_lifetime_seconds))
        if manifest.config.trust.network_share < 1:
            self._tasks.spawn(OriginsLoop(self.network.dht.daemon.hosts, self.driver.feed).run(pace.presence_seconds))
        if self.learning is not None:
            await self.learning.begin(self.checkpointer, self.stage, self.limits)
        elif data is not None:
            self.hosting = await HostEvaluator.start(
                self.driver, self.checkpointer, data, self.options.export, self._mark
            )
            self._tasks.spawn(self.hosting.run())
        self._tasks.spawn(self._watch())
        self._tasks.spawn(self.checkpointer.run())

    # -- what is going on

    @property
    def _engine(self) -> Engine:
        return self.driver.engine

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _mark(self) -> Mark:
        return mark_of(self.driver, self._now() - self.started_at)

    def _presence(self) -> Presence:
        return self.own_presence.now(self.stage.state, None if self.learning is None else self.learning.progress)

    def _addresses_of(self, peer: PeerId) -> list[str]:
        sighting = self._engine.core.presence.sightings.get(peer) if hasattr(self, "driver") else None
        return [] if sighting is None else list(sighting.presence.addresses)

    # -- loops

    def _fail(self, error: BaseException) -> None:
        """Something that this peer cannot go on without is broken."""
        if not self._over.done():
            log.error("failed", error=str(error), exc_info=error)
            self._over.set_exception(error)
            self._over.exception()  # whoever does not wait for us must not be warned about it

    async def _watch(self) -> None:
        while not self.stage.advance(self._now()):  # noqa: ASYNC110 - what it looks at changes in many places
            await asyncio.sleep(WATCH_SECONDS)
        if self.hosting is not None:
            await self.hosting.export_last()
        if not self._over.done():
            self._over.set_result(None)

    # -- for whoever runs the node

    def invite(self) -> str:
        """One line of text with which others join, at this peer's addresses and from the versions that it holds."""
        return str(fresh_invite(self.manifest, self.addresses.texts, [one.held_chain for one in self._engine.machines]))

    def snapshot(self) -> PeerSnapshot:
        """This peer as it is now."""
        base = PeerSnapshot(
            peer_id=self.identity.peer_id,
            run_id=self.manifest.run_id.hex(),
            name=self.options.name,
            role=self.role,
            state="finished" if self._over.done() else self.stage.state,
            note=self.stage.reason,
            pid=0,
            wall_seconds=self._now() - self.started_at,
            evaluations=() if self.hosting is None else self.hosting.found,
            sample="" if self.hosting is None else self.hosting.sample,
        )
        progress = LearnerProgress() if self.learning is None else self.learning.progress
        return peer_snapshot(base, self.driver, progress, self.manners.seen, self._now())

    async def final_snapshot(self) -> PeerSnapshot:
        """`snapshot`, with digests hashed from the tensors now; on the host, a last evaluation and a sample too."""
        if self.hosting is not None:
            await self.hosting.look_last()
        snapshot = self.snapshot()  # of the same moment: what is adopted from now on is installed after the hashing
        digests = await self.driver.work.run(self.driver.anchors.digests)
        return snapshot.model_copy(update={"digests_from_tensors": tuple(one.hex() for one in digests)})

    async def pause(self) -> None:
        """Make no inner steps until `resume`."""
        self.stage.wanted_paused = True
        self.stage.advance(self._now())

    async def resume(self) -> None:
        """Catch up, then go on."""
        self.stage.wanted_paused = False

    def drain(self) -> None:
        """Open no further rounds; once those in flight are over, or had a round's deadline, the learner rests."""
        self.stage.leave()

    async def wait(self) -> None:
        """Return when the run is over and all agree, or this peer has drained; raises MusterError if it failed."""
        await asyncio.shield(self._over)

    async def save_last(self) -> None:
        """End all work but the learner's, and save unless that is what failed; as long as the disk takes to write."""
        await self._tasks.end()
        if hasattr(self, "checkpointer") and not self._failed():
            await self.checkpointer.save_last()

    async def stop(self) -> None:
        """Take everything apart; leaves no process, socket or file behind. Safe to call twice."""
        if self._stopped:
            return
        self._stopped = True
        await self._tasks.end()
        if not self._over.done():
            self._over.set_result(None)
        async with AsyncExitStack() as last_first:  # each is called, whatever becomes of the others
            if hasattr(self, "network"):
                last_first.push_async_callback(self.network.close)
                last_first.push_async_callback(self.network.flush, FLUSH_SECONDS)
            if self.hosting is not None:
                last_first.push_async_callback(asyncio.to_thread, self.hosting.close)
            if hasattr(self, "driver"):
                last_first.callback(self.driver.tape.close)
                last_first.push_async_callback(self.driver.close)
            if self.learning is not None and self.learning.training is not None:
                last_first.push_async_callback(self.learning.training.client.stop)
                last_first.callback(setattr, self.driver, "learner", None)

    def _failed(self) -> bool:
        return self._over.done() and self._over.exception() is not None
