"""A virtual peer whose every message may be changed on its way, and signed anew: what message handlers must survive."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

from coordinator.messages import Message
from coordinator.virtual.invariants import Watcher
from coordinator.virtual.network import Deliver
from coordinator.virtual.peer import VirtualPeer
from coordinator.virtual.simulation import World
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement, signed_bytes
from peer.frames import Transfer, decode_header, encode_header
from tests.fuzz.mutate import mutated
from tests.sim.worlds import PACE, swarm

ROUNDS = 30
SHARE = 0.5  # of the hostile peer's messages


@dataclass(slots=True)
class Mangler:
    """Stands before everybody's inbox. `delivered` counts changed messages that could still be decoded."""

    world: World
    hostile: VirtualPeer
    source: random.Random
    delivered: int = 0

    def __post_init__(self) -> None:
        self.world.outcasts |= {self.hostile.me}
        if isinstance(self.world.watcher, Watcher):
            self.world.watcher.hostile |= self.world.outcasts
        inboxes = self.world.network.inboxes
        inboxes.update({peer: partial(self._receive, inbox) for peer, inbox in inboxes.items()})

    def _receive(self, inbox: Deliver, sender: PeerId, message: Message, payload: bytes | None) -> None:
        """Hand on the original, too, now and then, so that rounds get far enough to matter."""
        changed = sender == self.hostile.me and self.source.random() < SHARE
        if changed and (other := self._changed(message)) is not None:
            self.delivered += 1
            inbox(sender, other, payload)
        if not changed or self.source.random() < SHARE:
            inbox(sender, message, payload)

    def _changed(self, message: Message) -> Message | None:
        try:
            if isinstance(message, Statement):
                return self._signed_anew(message)
            found: Message | Transfer = decode_header(mutated(encode_header(message), self.source, prefix_bytes=1))
        except PeerError:
            return None
        return found if isinstance(found, Message) else None

    def _signed_anew(self, statement: Statement) -> Statement:
        """Another body, or another context, under a good signature."""
        header = encode_header(statement.model_copy(update={"body": mutated(statement.body, self.source)}))
        if self.source.random() < 0.3:
            header = mutated(header, self.source, prefix_bytes=1)
        found = decode_header(header)
        if not isinstance(found, Statement):
            raise PeerError("no statement any more")
        signature = self.hostile.signer.sign(signed_bytes(found.context, self.hostile.me, found.body))
        return found.model_copy(update={"sender": self.hostile.me, "signature": signature})


def mangled_run(seed: int) -> Mangler:
    """A swarm of four of which one says anything, for thirty deadlines of virtual time; whatever breaks is raised."""
    world = swarm(4, seed=seed)
    mangler = Mangler(world, world.peers[3], random.Random(seed))
    world.run(ROUNDS * PACE.round_seconds)
    return mangler
