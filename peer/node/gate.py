"""The door policy of a peer that knows its run, and the removal of strangers' connections (docs/adr/0061)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from coordinator.chain.chain import Rules
from coordinator.core.admission_control import AdmissionControl
from coordinator.core.context import Core
from coordinator.run.admission_spec import AdmissionSpec
from coordinator.run.manifest import Manifest
from coordinator.trust.orders import Orders
from dht.admission import AdmissionAuthority
from dht.daemon.calls import DAEMON_ERRORS
from dht.daemon.process import Daemon
from dht.errors import LocalError
from dht.identity import KeyVerifier, PeerId
from dht.invite import Invite
from dht.refusal import Refusal
from peer.machine.clock import Clock
from peer.net.network import Network

LOOK_SECONDS = 2.0
GRACE_SECONDS = 10.0  # in which a connected peer must show its pass
STRANGERS_MAX = 256  # connections without a pass, some 75 kB of the daemon each; beyond this, the oldest end sooner
CLOSED_AT_ONCE = 512
GUESTS_MAX = 16  # observers of one owner at once


@dataclass(frozen=True, slots=True)
class Gate:
    """A `dht.door.AdmissionPolicy` with the protocol core's judgement at the time of asking.

    `guests` are keys of our owner's observers, which have no part in the run and are admitted here only.
    """

    control: AdmissionControl
    unix_clock: Clock
    guests: deque[PeerId] = field(default_factory=lambda: deque(maxlen=GUESTS_MAX))

    def refusal(self, peer: PeerId, shown: bytes) -> Refusal | None:
        return None if peer in self.guests else self.control.refusal(peer, shown, self.unix_clock())

    def proves(self, peer: PeerId, shown: bytes) -> bool:
        return self.control.proves(peer, shown)

    def knows(self, peer: PeerId) -> bool:
        return peer in self.guests or self.control.knows(peer, self.unix_clock())


def initial_gate(invite: Invite | None, manifest: Manifest | None, unix_clock: Clock) -> Gate | None:
    """Return the guard of a door before all parts of its peer exist: by the manifest, or else by an invite's ticket.

    Returns None where any peer may come in, as far as is known.
    """
    if manifest is not None:
        rules = Rules.of(manifest, KeyVerifier())
        control = AdmissionControl(rules.admission, rules.authority, rules.keyholders, Orders())
    elif invite is not None and invite.ticket is not None:  # else the invite admits its holder without a ticket
        authority = AdmissionAuthority(invite.run_id, invite.organiser, KeyVerifier())
        control = AdmissionControl(AdmissionSpec(), authority, invite.peers | {invite.organiser}, Orders())
    else:
        return None
    return Gate(control, unix_clock) if control.is_closed else None


@dataclass(frozen=True, slots=True)
class RelayPolicy:
    """Decides for whom this peer relays: for members of its run, while its owner's limits leave room for others."""

    core: Core
    network: Network

    def admits(self, peer: PeerId) -> bool:
        """Whether to relay from and to this peer. In a run without passes, it has to be live."""
        core, throttle, now = self.core, self.network.throttle, asyncio.get_running_loop().time()
        if throttle.strangers.closed or throttle.upload.shut or peer in core.bans:
            return False
        known = core.admission.knows(peer, core.unix_seconds(now))
        return known and (core.admission.is_closed or core.presence.is_live(peer, now))


class ConnectionReaper:
    """Closes connections of peers that did not show a pass in time, because the number of connections is limited."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._since: dict[PeerId, float] = {}

    def strangers(self, connections: Mapping[PeerId, int], now: float) -> list[PeerId]:
        """Return the strangers to disconnect; in a crowd, the oldest of those that were here at the last look."""
        unknown = {peer: count for peer, count in connections.items() if not self._daemon.door.knows(peer)}
        waiting = sorted(self._since.keys() & unknown.keys(), key=self._since.__getitem__)
        self._since = {peer: self._since.get(peer, now) for peer in unknown}
        too_many, leaving = sum(unknown.values()) - STRANGERS_MAX, []
        for peer in waiting:
            if too_many <= 0 and now < self._since[peer] + GRACE_SECONDS:
                break
            leaving.append(peer)
            too_many -= unknown[peer]
        return leaving[:CLOSED_AT_ONCE]

    async def run(self) -> None:
        """Look every few seconds, until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for peer in self.strangers(await self._daemon.connections(), clock()):
                with suppress(*DAEMON_ERRORS, LocalError):
                    await self._daemon.hang_up(peer)
