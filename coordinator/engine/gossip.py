"""How news of a version gets round: from its leader in a small swarm, by rumour in a large one (docs/adr/0010).

Of the active set everybody knows, and of the others only a part: drawn like these, its few members outside the group
would be told by the whole swarm. So the leader tells them.
"""

from __future__ import annotations

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import Chain
from coordinator.core.actions import Action, Send
from coordinator.core.context import Core
from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from coordinator.wire.messages import AskChainNote, CertificateNote
from coordinator.wire.openings import drawn_leaves
from dht.identity import PeerId
from dht.statement import digest_of

TOLD_BY_LEADER_MAX = 2 * PEERS_PER_GROUP_MAX
RUMOUR_PEERS = 4  # told by each who learns: all but e⁻⁴ of a swarm hear it, the rest see it in somebody's presence


def is_crowded(core: Core, now: float) -> bool:
    """Whether there are more peers than one leader can tell."""
    return core.presence.population(now) > TOLD_BY_LEADER_MAX


def announce(core: Core, chain: Chain, certificate: Certificate, now: float) -> list[Action]:
    """The leader tells everyone who was not there; where they are many, the active set, and rumour tells the rest."""
    told = _outsiders(core, certificate, now)
    if is_crowded(core, now):
        told &= chain.active_set()
    note = CertificateNote(certificate=certificate)
    return [Send(peer, note) for peer in sorted(told)]


def spread(core: Core, chain: Chain, certificate: Certificate, now: float) -> list[Action]:
    """A peer that learns of a version in a large swarm tells a few, so that nobody has to tell all (design §10).

    By asking what follows it: who has not heard of it asks back, and only then a certificate of 13 KB is sent. Some are
    known to many, and would get it from each of these.
    """
    if not is_crowded(core, now):
        return []
    known = (certificate.digest, certificate.outcome.parent)
    note = AskChainNote(fragment=chain.fragment, version=certificate.version, known=known)
    others = sorted(_outsiders(core, certificate, now) - chain.active_set())
    drawn = drawn_leaves(digest_of(certificate.digest, core.me.encode()), len(others), RUMOUR_PEERS)
    return [Send(others[place], note) for place in drawn]


def _outsiders(core: Core, certificate: Certificate, now: float) -> frozenset[PeerId]:
    """Live peers that were not there."""
    return core.presence.live(now) - certificate.outcome.roster_ids - {core.me}
