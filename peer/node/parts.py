"""Builds the parts that every peer has, once and in order, so that every part finds those that it needs."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from coordinator.chain.chain import CHAIN_KEPT, active_sets
from coordinator.core.context import Core
from coordinator.core.events import PresenceSeen
from coordinator.run.manifest import Manifest
from coordinator.wire.presence import Presence
from dht.addresses import is_relayed
from dht.admission import Ticket
from dht.identity import Identity, KeyVerifier, PeerId
from dht.invite import Invite
from peer.learner.work_counters import LearnerProgress
from peer.machine.sensors import MachineSensors
from peer.net.addresses import OwnAddresses
from peer.net.network import Network
from peer.net.presence_loop import PresenceLoop, PresenceReaders, present_peers
from peer.node.build import build_driver, core_kind, is_known, open_network
from peer.node.checkpointer import Checkpointer
from peer.node.gate import Gate, RelayPolicy, initial_gate
from peer.node.life import PeerLife
from peer.node.lifecycle import Lifecycle
from peer.node.live_limits import LiveLimits
from peer.node.options import NodeOptions
from peer.node.pause_loop import PauseLoop
from peer.node.presence import OwnPresence
from peer.rounds.driver import RoundDriver
from peer.storage.base_place import note_base
from peer.storage.run_directory import RunDirectory, RunState
from peer.sync.base_fetch import ensure_base
from peer.sync.genesis import ensure_genesis

FLUSH_SECONDS = 1.0  # for frames that are still queued when we leave

Role = Literal["host", "learner"]


@dataclass(slots=True)
class KnownAddresses:
    """The addresses at which peers can be dialled, by their own claims; empty until the first are known."""

    core: Core | None = None
    met: dict[PeerId, list[str]] = field(default_factory=dict)  # peers that were present when we came
    on_loopback: bool = False  # then only peers of this machine can dial us, even if they report that they can

    def of(self, peer: PeerId) -> list[str]:
        """Return the addresses that this peer claimed last, without relayed ones if we can be dialled ourselves.

        Relays are left to peers that cannot be dialled: the other peer then dials us.
        """
        sighting = None if self.core is None else self.core.presence.sightings.get(peer)
        said = self.met.get(peer, []) if sighting is None else sighting.presence.addresses
        dialable = not self.on_loopback and (self.core is None or self.core.dialable)
        return [one for one in said if not (dialable and is_relayed(one))]


@dataclass(frozen=True, slots=True)
class JoinedNetwork:
    """A peer in the network of its run. It may not know the run's manifest yet."""

    options: NodeOptions
    identity: Identity
    role: Role
    life: PeerLife
    known: KnownAddresses
    network: Network
    ticket: Ticket | None = None  # of the invite with which it came

    async def holders(self, invite: Invite) -> set[PeerId]:
        """Return the peers to ask before we take part: those of the invite, and those that claim to be in the run."""
        dht = self.network.dht
        present = await present_peers(dht.store, dht.daemon, invite.run_id)
        self.known.met.update({peer: list(presence.addresses) for peer, presence in present})
        return set(invite.peers) | self.known.met.keys()

    async def with_given(self, invite: Invite, manifest: Manifest, folder: Path) -> JoinedNetwork:
        """Fetch version 0 and the base if they are given by others and missing here; raises as `ensure_base`."""
        holders, options = partial(self.holders, invite), self.options
        await ensure_genesis(folder, manifest, holders, self.network)
        adapter = manifest.config.adapter
        if adapter is None or adapter.base_file is None or options.files.base:
            return self
        base = await ensure_base(folder, manifest, holders, self.network, options.tell)
        return replace(self, options=replace(options, files=replace(options.files, base=str(base))))


@dataclass(frozen=True, slots=True)
class Parts:
    """All parts of a peer except its learner or evaluator. None of them runs yet."""

    joined: JoinedNetwork
    manifest: Manifest
    directory: RunDirectory
    held: RunState
    driver: RoundDriver
    addresses: OwnAddresses
    presence: PresenceLoop
    checkpointer: Checkpointer
    lifecycle: Lifecycle
    pause_loop: PauseLoop
    limits: LiveLimits
    progress: LearnerProgress


async def join_network(
    options: NodeOptions,
    identity: Identity,
    role: Role,
    run_id: bytes,
    invite: Invite | None,
    manifest: Manifest | None = None,
) -> JoinedNetwork:
    """Enter the network to which an invite leads; raises UsageError, NetworkError or LocalError.

    Its door is guarded from the first moment, by the manifest if that is known.
    """
    if options.sharers is not None:
        options = replace(options, limits=options.sharers.begin())
    life, known = PeerLife(), KnownAddresses(on_loopback=options.on_loopback)
    gate = initial_gate(invite, manifest, options.clock)
    network = await open_network(options, run_id, invite, known.of, gate, identity.is_new)
    life.closing.push_async_callback(network.close)
    life.closing.push_async_callback(network.flush, FLUSH_SECONDS)
    life.tasks.spawn(network.watch())
    return JoinedNetwork(options, identity, role, life, known, network, None if invite is None else invite.ticket)


async def assemble(joined: JoinedNetwork, manifest: Manifest) -> Parts:
    """Build all parts of a peer of this run, with what this machine kept of it; raises MusterError."""
    options, network, life = joined.options, joined.network, joined.life
    directory = RunDirectory(options.data_directory, manifest.run_id)
    directory.keep_manifest(manifest)
    note_base(directory.path, manifest.config, options.files.base)
    core = _core(joined, manifest)
    core.answering.strangers = network.throttle.strangers
    held = await asyncio.to_thread(directory.load, manifest, core.rules)
    driver = build_driver(core, held, network, directory, options)
    core.answering.strangers.is_member = partial(is_known, driver.engine)
    core.answering.strangers.is_shut_out = core.bans.__contains__
    if core.admission.is_closed:
        core.admission.own = network.dht.daemon.door.show(joined.identity.peer_id)
        network.dht.daemon.door.policy = Gate(core.admission, options.clock)
        driver.requests.may_have_states = core.admission.may_have_states
    network.dht.daemon.relay_limits.admits = RelayPolicy(core, network).admits
    life.closing.callback(driver.tape.close)
    life.closing.push_async_callback(driver.close)
    driver.engine.restore_votes(held.votes, driver.now)  # before any peer can ask us to vote again
    joined.known.core = core
    progress = LearnerProgress()

    def said() -> Presence:
        return own_presence.now(lifecycle.state, progress if joined.role == "learner" else None)

    addresses = await OwnAddresses.start(network.dht, core, lambda: presence.hurry())
    own_presence = OwnPresence(driver, options, addresses)
    presence = PresenceLoop(
        network.dht.store,
        network.dht.daemon,
        manifest.run_id,
        said,
        presence_readers(driver),
    )
    lifecycle = Lifecycle(driver, presence, "starting" if joined.role == "learner" else "hosting")
    driver.failed, driver.certified = life.fail, lifecycle.drain_at_goal
    sensors = partial(MachineSensors, data_directory=options.data_directory)
    pause_loop = PauseLoop(options, sensors, network, network.throttle, lifecycle.obey, lambda: lifecycle.trains)
    limits = LiveLimits(options, pause_loop, network, driver)
    checkpointer = Checkpointer(directory, driver, said, lambda: limits.in_force)
    return Parts(
        joined=joined,
        manifest=manifest,
        directory=directory,
        held=held,
        driver=driver,
        addresses=addresses,
        presence=presence,
        checkpointer=checkpointer,
        lifecycle=lifecycle,
        pause_loop=pause_loop,
        limits=limits,
        progress=progress,
    )


def presence_readers(driver: RoundDriver) -> PresenceReaders:
    """Connect the presence loop with the protocol core."""
    table, machines = driver.engine.core.presence, driver.engine.machines
    return PresenceReaders(
        needed=lambda: active_sets(machine.chain for machine in machines),
        missing=lambda needed: needed - table.live(driver.now),
        seen=lambda peer, presence: driver.feed(PresenceSeen(peer, presence)),
        counted=lambda everybody: table.sample(everybody, driver.now),
    )


def _core(joined: JoinedNetwork, manifest: Manifest) -> Core:
    options = joined.options
    return core_kind(options, manifest, joined.identity)(
        manifest,
        joined.identity,
        KeyVerifier(),
        os.urandom,
        unix_offset_seconds=options.clock() - asyncio.get_running_loop().time(),
        contributes=joined.role == "learner",
        chain_kept=options.trial.chain_kept or CHAIN_KEPT,
    )
