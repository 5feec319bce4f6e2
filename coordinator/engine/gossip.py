"""News of a version: its leader tells a small swarm; in a large one it spreads as a rumour (docs/adr/0010).

Every peer knows the active set, but only a part of the other peers. If peers drew members of the active set for rumours
like others, the whole swarm would tell the few of them outside the group. So the leader tells these instead.
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
RUMOUR_PEERS = 4  # peers told by each peer that learns of it: all but e⁻⁴ of a swarm hear it, the rest by presence


def is_crowded(core: Core, now: float) -> bool:
    """Whether the swarm has more peers than one leader can tell."""
    return core.presence.population(now) > TOLD_BY_LEADER_MAX


def announce(core: Core, chain: Chain, certificate: Certificate, now: float) -> list[Action]:
    """Tell, as the leader, all peers outside the roster; in a crowd only the active set, as a rumour tells the rest."""
    told = _outsiders(core, certificate, now)
    if is_crowded(core, now):
        told &= chain.active_set()
    note = CertificateNote(certificate=certificate)
    return [Send(peer, note) for peer in sorted(told)]


def spread(core: Core, chain: Chain, certificate: Certificate, now: float) -> list[Action]:
    """Tell a few random peers of a version, in a large swarm, so that nobody has to tell all (design §10).

    The news is a question for the versions after it. A peer that lacks it asks back, and only then we send the
    certificate of 13 KB. Else a peer that many others know would get it from each of them.
    """
    if not is_crowded(core, now):
        return []
    known = (certificate.digest, certificate.outcome.parent)
    note = AskChainNote(fragment=chain.fragment, version=certificate.version, known=known)
    others = sorted(_outsiders(core, certificate, now) - chain.active_set())
    drawn = drawn_leaves(digest_of(certificate.digest, core.me.encode()), len(others), RUMOUR_PEERS)
    return [Send(others[place], note) for place in drawn]


def _outsiders(core: Core, certificate: Certificate, now: float) -> frozenset[PeerId]:
    """Return the live peers outside the roster, without ourselves."""
    return core.presence.live(now) - certificate.outcome.roster_ids - {core.me}
