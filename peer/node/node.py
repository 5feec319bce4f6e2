"""A running peer: `host` begins a run, `join` takes part in one.

All decisions are made in `coordinator`, all computing in `peer.rounds.tensor_worker` and the learner. `parts` builds
what every peer has; this module runs it, and reports the peer's state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace

from coordinator.run.manifest import Manifest, RunConfig
from coordinator.views.snapshot import PeerSnapshot
from dht.admission import Ticket
from dht.errors import UsageError
from dht.identity import Identity, PeerId
from dht.invite import Invite
from peer.data.token_files import TokenData
from peer.export.regular import next_steps
from peer.net.frames import STATE_PIECE_BYTES_MAX
from peer.net.origins import OriginsLoop
from peer.net.probe import ProbeResponder
from peer.node.build import begin_at_invite, check_frozen, check_plugins, describe_here, make_run, prepare, read_invite
from peer.node.checkpointer import Checkpointer
from peer.node.clock_check import watch_clock
from peer.node.evaluator import HostEvaluator
from peer.node.evidence_exchange import EvidenceExchange
from peer.node.gate import ConnectionReaper, Gate, initial_gate
from peer.node.invitations import Invitations
from peer.node.learner_supervisor import LearnerDependents, LearnerSupervisor, Starting
from peer.node.live_limits import LiveLimits
from peer.node.membership import Membership
from peer.node.options import NodeOptions
from peer.node.organiser_rights import OrganiserRights
from peer.node.parts import JoinedNetwork, Parts, Role, assemble, join_network
from peer.node.reachability import watch_reach
from peer.node.status import own_public_status, peer_snapshot, run_position
from peer.rounds.evaluation_loop import RunPosition
from peer.storage.run_directory import RunDirectory
from peer.storage.tokenizer_file import keep_tokenizer
from peer.sync.base_fetch import hand_out_base
from peer.sync.bootstrap import fetch_manifest
from peer.sync.introduction import fresh_invite

WATCH_SECONDS = 0.2


class Node:
    """One peer of one run, from the moment that all its parts exist until it is stopped.

    A learner has a `learning`, a host with held-out text an `evaluator`.
    """

    def __init__(self, parts: Parts, learning: LearnerSupervisor | None, evaluator: HostEvaluator | None) -> None:
        self.learning = learning
        self.evaluator = evaluator
        self._parts = parts
        self._driver = parts.driver
        self._life = parts.joined.life
        core, joined = parts.driver.engine.core, parts.joined
        self.organiser_rights = OrganiserRights(core, joined.identity, parts.directory.path)
        self.invitations = Invitations(core, self.organiser_rights, parts.directory.path, joined.ticket)
        self.membership = Membership(parts.driver, self.organiser_rights, self.invitations, joined.options.name)

    # -- starting

    @classmethod
    async def host(cls, config: RunConfig, options: NodeOptions, invite: Invite | None = None) -> Node:
        """Begin a run, or go on hosting it: after long, with an invite. A session also trains. Raises as `join`."""
        options.stage("reads the run's model and text")
        described = await asyncio.to_thread(describe_here, config, options)
        options = replace(options, files=replace(described.files, cache=options.files.cache))
        role: Role = "host" if options.session is None else "learner"
        identity = prepare(options)
        manifest, data = await asyncio.to_thread(make_run, described, options, identity.peer_id)
        options.stage("enters the network")
        joined = await join_network(options, identity, role, manifest.run_id, invite, manifest)
        try:
            return await cls._begin(joined, manifest, data, invite)
        except BaseException:
            await joined.life.close()
            raise

    @classmethod
    async def join(cls, invite_text: str, options: NodeOptions) -> Node:
        """Take part in the run of this invite; raises MusterError with nothing left behind."""
        invite = read_invite(invite_text, options)
        directory = RunDirectory(options.data_directory, invite.run_id)
        known = directory.known_manifest()
        options.stage("calls the peers of its invite")
        joined = await join_network(options, prepare(options), "learner", invite.run_id, invite, known)
        try:
            network = joined.network
            manifest = known or await fetch_manifest(network, invite.run_id, invite.peers)
            network.dht.daemon.door.policy = initial_gate(invite, manifest, options.clock)
            check_plugins(manifest.config)
            check_frozen(manifest, options)
            options.stage("fetches what the model begins with")
            joined = await joined.with_given(invite, manifest, directory.path)
            return await cls._begin(joined, manifest, None, invite)
        except BaseException:
            await joined.life.close()
            raise

    @classmethod
    async def _begin(
        cls, joined: JoinedNetwork, manifest: Manifest, data: TokenData | None, invite: Invite | None
    ) -> Node:
        stage = joined.options.stage
        stage("reads what this machine keeps of the run")
        parts = await assemble(joined, manifest)
        tokenizer = joined.options.files.tokenizer
        await asyncio.to_thread(keep_tokenizer, parts.directory.path, manifest.config.data, tokenizer)
        learning = None if joined.role == "host" else _supervisor(parts)
        starting = None  # the learner's process starts while we ask other peers
        if learning is not None:
            starting = learning.prepare(parts.held.learner_state, parts.held.learner_heads)
        before = 0 if joined.role != "host" else (await parts.checkpointer.credit()).tokens
        stage("asks the others for the newest versions")
        await begin_at_invite(parts.driver.engine, invite, joined.network, joined.known.met.keys())
        evaluator = None
        if learning is None and data is not None:
            stage("builds the model that it evaluates with")
            evaluator = await HostEvaluator.start(
                parts.driver, parts.checkpointer, data, joined.options, lambda: _run_position(parts, before)
            )
            joined.life.closing.push_async_callback(asyncio.to_thread, evaluator.close)
        node = cls(parts, learning, evaluator)
        stage("opens its doors" if learning is None else "gets its learner ready")
        await node._run(() if invite is None else invite.peers, starting)
        return node

    async def _run(self, met: Collection[PeerId], starting: Starting | None) -> None:
        """Open the network to others, and start all tasks."""
        parts, driver, spawn = self._parts, self._driver, self._life.tasks.spawn
        joined, pace = parts.joined, parts.manifest.config.pace
        network, options = joined.network, joined.options
        driver.requests.answer_probes(ProbeResponder(network.dht.daemon.host_of, driver.post, options.clock))
        driver.requests.tell_status(lambda: own_public_status(self.snapshot(), driver))
        await parts.limits.exchange()
        await parts.pause_loop.look()  # before the first step
        spawn(parts.pause_loop.run())
        spawn(parts.limits.follow())
        spawn(parts.addresses.run())
        network.expect_payloads(max(driver.work.payload_bytes_max, STATE_PIECE_BYTES_MAX))
        await network.start(driver.on_frame, driver.on_gone)
        spawn(watch_reach(options, driver, parts.addresses, network.dht.daemon.hosts))
        spawn(watch_clock(options.clock, driver, met))
        spawn(EvidenceExchange(driver, parts.directory.evidence, network.dht.store).run())
        spawn(parts.presence.run(pace.presence_seconds, pace.presence_lifetime_seconds))
        if parts.manifest.config.trust.network_share < 1:
            spawn(OriginsLoop(network.dht.daemon.hosts, driver.feed).run(pace.presence_seconds))
        if self.learning is not None and starting is not None:
            await self.learning.begin(starting)
        if self.evaluator is not None:
            spawn(self.evaluator.run())
        spawn(self._watch())
        spawn(hand_out_base(driver.requests.server, parts.manifest.config, options.files.base))
        spawn(parts.checkpointer.run())
        if driver.engine.core.admission.is_closed:
            spawn(ConnectionReaper(network.dht.daemon).run())

    async def _watch(self) -> None:
        lifecycle = self._parts.lifecycle
        while not lifecycle.advance(self._driver.now):
            await asyncio.sleep(WATCH_SECONDS)
            if exclusion_reason := self.membership.exclusion_reason:
                return self._life.fail(UsageError(exclusion_reason))
        if self.evaluator is not None:
            await self.evaluator.end()
        self._life.finish()

    # -- state

    @property
    def identity(self) -> Identity:
        """This peer's key."""
        return self._parts.joined.identity

    @property
    def manifest(self) -> Manifest:
        """The run's manifest."""
        return self._parts.manifest

    @property
    def checkpointer(self) -> Checkpointer:
        """The checkpointer that saves this peer."""
        return self._parts.checkpointer

    @property
    def limits(self) -> LiveLimits:
        """The limits that its owner sets."""
        return self._parts.limits

    def invite(self, words: Sequence[str] = ()) -> str:
        """Return a line of text with which others join, at this peer's addresses and from the versions that it holds.

        With `words`, this is a new invite with these limits; raises UsageError if this peer may not give it.
        """
        return self._invite_with(self.invitations.ticket(words, self._driver.now))

    def _invite_with(self, ticket: Ticket | None) -> str:
        chains = [one.held_chain for one in self._driver.engine.machines]
        return str(fresh_invite(self.manifest, self._parts.addresses.texts, chains, ticket))

    def observer_invite(self, key: PeerId) -> str:
        """Return an invite for an observer of our owner. If we may invite no one, only this peer admits it."""
        try:
            return self.invite()
        except UsageError:
            policy = self._parts.joined.network.dht.daemon.door.policy
            if not isinstance(policy, Gate):
                raise
            policy.guests.append(key)
            return self._invite_with(None)

    def snapshot(self) -> PeerSnapshot:
        """Return the current state of this peer."""
        parts, evaluator = self._parts, self.evaluator
        base = PeerSnapshot(
            peer_id=self.identity.peer_id,
            run_id=self.manifest.run_id.hex(),
            name=parts.joined.options.name,
            role=parts.joined.role,
            state="finished" if self._life.over else parts.lifecycle.state,
            note=parts.lifecycle.reason or ("" if evaluator is None else evaluator.doing),
            pid=0,
            wall_seconds=self._driver.now - self._life.began_at,
            evaluations=() if evaluator is None else evaluator.found,
            day=parts.pause_loop.day,
            sample="" if evaluator is None else evaluator.sample,
            exports="" if evaluator is None else evaluator.exports_to,
        )
        return peer_snapshot(base, self._driver, parts.progress, parts.pause_loop.seen, self._driver.now)

    async def final_snapshot(self) -> PeerSnapshot:
        """Return `snapshot` with digests hashed from the tensors now; on a host, evaluate and sample once before."""
        if self.evaluator is not None:
            await self.evaluator.look_last()
        snapshot = self.snapshot()  # consistent with the digests: later adoptions are installed after the hashing
        digests = await self._driver.work.run(self._driver.anchors.digests)
        return snapshot.model_copy(update={"digests_from_tensors": tuple(one.hex() for one in digests)})

    # -- requests of the owner

    async def pause(self) -> None:
        """Make no inner steps until `resume`."""
        self._parts.lifecycle.wanted_paused = True
        self._parts.lifecycle.advance(self._driver.now)

    async def resume(self) -> None:
        """Catch up, then go on training."""
        self._parts.lifecycle.wanted_paused = False

    def drain(self) -> None:
        """Open no further rounds. The learner rests once those in flight are over or a round's deadline has passed."""
        self._parts.lifecycle.leave()

    def closing_advice(self) -> tuple[str, ...]:
        """Return advice for the owner after the end."""
        newest = None if self.evaluator is None else self.evaluator.newest_export
        base = self._parts.joined.options.files.base
        return () if newest is None else (next_steps(newest, self.manifest.config, base),)

    async def wait(self) -> None:
        """Return when the run is over and all agree, or this peer has drained; raises MusterError if it failed."""
        await self._life.wait()

    async def save_last(self) -> None:
        """End all work but the learner's, and save, unless saving is what failed; takes as long as the disk does."""
        await self._life.tasks.end()
        if not self._life.failed:
            await self.checkpointer.save_last()

    async def stop(self) -> None:
        """Clean everything up; leaves no process, socket or file behind. Safe to call twice."""
        await self._life.close()


def _supervisor(parts: Parts) -> LearnerSupervisor:
    life = parts.joined.life
    dependents = LearnerDependents(parts.directory, parts.checkpointer, parts.lifecycle, parts.limits)
    supervisor = LearnerSupervisor(parts.joined.options, parts.driver, life.tasks, parts.progress, dependents)
    life.closing.push_async_callback(supervisor.stop)
    return supervisor


def _run_position(parts: Parts, before: int) -> RunPosition:
    """Return the current position of the run, for an evaluation."""
    return run_position(parts.driver, parts.driver.now - parts.joined.life.began_at, before)
