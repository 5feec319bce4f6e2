"""A virtual peer whose every message may be changed on its way, and signed anew: what message handlers must survive."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from coordinator.simulator.invariants import Watcher
from coordinator.simulator.network import Deliver
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.scale import ScaleRun
from coordinator.simulator.simulation import World
from coordinator.wire.messages import Message
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement, signed_bytes
from peer.net.frames import Transfer, decode_header, encode_header
from tests.fuzz.headers import notes, statements
from tests.fuzz.mutate import mutated
from tests.sim.worlds import PACE, swarm

ROUNDS = 30
SHARE = 0.5  # of the hostile peer's messages
SETTLE_SECONDS = 2 * PACE.round_seconds  # after the last of the others has stopped listening


@dataclass(slots=True)
class Mangler:
    """Stands before everybody's inbox. `delivered` counts by kind the changed messages that somebody still heard.

    Two statements that contradict each other cost the hostile peer its place, and what it says then is not read any
    more. So where it does not `sign` it leaves statements as they are, changes notes, and stays; there each that it
    changes is told in so many `copies`, every one changed otherwise, for a swarm's own rounds cost far more than these.
    """

    world: World | ScaleRun
    hostile: VirtualPeer
    source: random.Random
    signs: bool
    copies: int = 1
    delivered: Counter[str] = field(default_factory=Counter)
    seen: dict[str, Message] = field(init=False)  # the newest of each kind, whoever sent it

    def __post_init__(self) -> None:
        self.seen = {kind_of(message): message for message in ((*statements(), *notes()) if self.signs else notes())}
        inboxes = self.world.network.inboxes
        peers = {peer.me: peer for peer in self.world.peers}
        inboxes.update({peer: partial(self._receive, peers[peer], inbox) for peer, inbox in inboxes.items()})

    @property
    def heard(self) -> bool:
        """Does anybody still listen to the hostile peer?"""
        return any(self._listens(peer) for peer in self.world.peers if peer is not self.hostile)

    def _listens(self, peer: VirtualPeer) -> bool:
        return peer.engine is not None and self.hostile.me not in peer.engine.core.bans

    def _receive(
        self, peer: VirtualPeer, inbox: Deliver, sender: PeerId, message: Message, payload: bytes | None
    ) -> None:
        """Hand on the original, too, now and then, so that rounds get far enough to matter."""
        if kind_of(message) in self.seen:
            self.seen[kind_of(message)] = message
        changed = sender == self.hostile.me and self.source.random() < SHARE
        for _ in range(self.copies if changed else 0):
            if (other := self._changed(self._chosen(message))) is not None:
                self.delivered[kind_of(other)] += self._listens(peer)
                inbox(sender, other, payload)
        if not changed or self.source.random() < SHARE or not self.signs:
            inbox(sender, message, payload)

    def _chosen(self, message: Message) -> Message:
        """This one, or one of a kind that may never be this peer's to send."""
        if self.source.random() < SHARE or (isinstance(message, Statement) and not self.signs):
            return self.seen[self.source.choice(sorted(self.seen))]
        return message

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


def kind_of(message: Message) -> str:
    """The name of a note, or what a statement states."""
    return message.context.kind if isinstance(message, Statement) else type(message).__name__


def signs(seed: int) -> bool:
    """Whether whoever says anything in the run of this seed signs it, too: in three of four."""
    return seed % 4 != 1


def mangled_run(seed: int, copies: int = 1) -> Mangler:
    """A swarm of four of which one says anything, for thirty deadlines of virtual time; whatever breaks is raised.

    Those where it `signs` end soon after nobody listens to it any more. In the others a changed note comes in so many
    `copies`.
    """
    world = swarm(4, seed=seed)
    mangler = Mangler(world, world.peers[3], random.Random(seed), signs(seed), 1 if signs(seed) else copies)
    world.outcasts |= {mangler.hostile.me}
    if isinstance(world.watcher, Watcher):
        world.watcher.hostile |= world.outcasts
    until = world.clock.now + ROUNDS * PACE.round_seconds
    while mangler.heard and world.clock.step(until):
        pass
    world.run(SETTLE_SECONDS)
    return mangler
