"""A newcomer's way to the waypoint of its invite: the heads behind the hash, then the tail of each. Sans-IO.

`coordinator.chain.waypoint` defines waypoints and their proofs. Every answer proves itself, so its sender does not
matter, and any peer that keeps these versions can answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.chain.chain import Chain, Rules
from coordinator.chain.waypoint import Waypoint, chain_of_tail, heads_at, heads_digest, newest_waypoint, tail
from coordinator.run.manifest import Manifest
from dht.addresses import PeerAddress
from dht.admission import Ticket
from dht.errors import PeerError
from dht.identity import PeerId, Verifier
from dht.invite import ADDRESSES_MAX, Invite
from peer.net.frames import HeadsAnswer, HeadsAsk, TailAnswer, TailAsk

ADVICE_OUT_OF_REACH = "start again with a fresh invite, which `muster invite` prints at any of them"
TAILS_ASKED_MAX = 8  # of one peer at once


def waypoint_of(invite: Invite) -> Waypoint | None:
    """Return the waypoint where this invite has a newcomer begin; None for one made when the run was young."""
    if invite.heads_digest is None or not invite.heads_version:
        return None
    return Waypoint(invite.heads_version, invite.heads_digest)


def fresh_invite(
    manifest: Manifest, addresses: Sequence[str], held: Sequence[Chain], ticket: Ticket | None = None
) -> Invite:
    """Make the invite of a peer at these addresses whose states end these chains."""
    waypoint = newest_waypoint(held)
    return Invite(
        manifest.run_id,
        PeerId(manifest.organiser),
        tuple(PeerAddress.parse(text) for text in addresses[:ADDRESSES_MAX]),
        heads_digest=None if waypoint is None else waypoint.digest,
        heads_version=None if waypoint is None else waypoint.version,
        ticket=ticket,
    )


def empty_chains(manifest: Manifest, rules: Rules) -> tuple[Chain, ...]:
    """Return the chains at version 0, by fragment."""
    return tuple(Chain(rules, fragment, digest) for fragment, digest in enumerate(manifest.genesis))


def observer_rules(manifest: Manifest, verifier: Verifier) -> Rules:
    """Return the rules of this run for a process without a protocol core."""
    return Rules.of(manifest, verifier)


def answer_heads(chains: Sequence[Chain], ask: HeadsAsk) -> HeadsAnswer:
    """Return the heads that were asked for, if we keep them."""
    heads = heads_at(chains, ask.version)
    known = heads is not None and heads_digest(chains[0].rules.run_id, ask.version, heads) == ask.digest
    return HeadsAnswer(digest=ask.digest, heads=heads if heads is not None and known else ())


def answer_tail(chains: Sequence[Chain], ask: TailAsk) -> TailAnswer:
    """Return the tail that was asked for, if we keep it."""
    chain = chains[ask.fragment] if ask.fragment < len(chains) else None
    known = chain is not None and chain.digest_at(ask.version) == ask.head
    certificates = tail(chain, ask.version) if chain is not None and known else ()
    return TailAnswer(fragment=ask.fragment, head=ask.head, certificates=certificates)


class Introduction:
    """The parts of a waypoint that have arrived; `empty` are the run's chains at version 0."""

    def __init__(self, waypoint: Waypoint, empty: Sequence[Chain]) -> None:
        self._waypoint = waypoint
        self._empty = tuple(empty)
        self._heads: tuple[bytes, ...] = ()
        self._found: dict[int, Chain] = {}
        self.refused: set[PeerId] = set()  # peers that lack what we ask for, or gave something else

    @property
    def done(self) -> bool:
        return len(self._found) == len(self._empty)

    def chains(self) -> tuple[Chain, ...]:
        """Return the chains that end at the waypoint, once `done`."""
        return tuple(self._found[fragment] for fragment in range(len(self._empty)))

    def questions(self) -> list[HeadsAsk | TailAsk]:
        """Return the questions for all holders; repeat until `done`."""
        version = self._waypoint.version
        if not self._heads:
            return [HeadsAsk(version=version, digest=self._waypoint.digest)]
        missing = [fragment for fragment in range(len(self._empty)) if fragment not in self._found]
        return [
            TailAsk(fragment=fragment, version=version, head=self._heads[fragment])
            for fragment in missing[:TAILS_ASKED_MAX]
        ]

    def hear(self, sender: PeerId, answer: HeadsAnswer | TailAnswer) -> bool:
        """Take an answer; return whether it changes the questions."""
        try:
            if isinstance(answer, HeadsAnswer):
                return self._take_heads(answer)
            return self._take_tail(answer)
        except PeerError:
            self.refused.add(sender)
            return True

    def _take_heads(self, answer: HeadsAnswer) -> bool:
        if self._heads or answer.digest != self._waypoint.digest:
            return False
        run_id, version = self._empty[0].rules.run_id, self._waypoint.version
        if len(answer.heads) != len(self._empty) or heads_digest(run_id, version, answer.heads) != answer.digest:
            raise PeerError("does not know the heads")
        self._heads = answer.heads
        return True

    def _take_tail(self, answer: TailAnswer) -> bool:
        fragment = answer.fragment
        if fragment >= len(self._heads) or fragment in self._found or answer.head != self._heads[fragment]:
            return False
        version, empty = self._waypoint.version, self._empty[fragment]
        self._found[fragment] = chain_of_tail(empty, version, answer.head, answer.certificates)
        return self.done or len(self._found) % TAILS_ASKED_MAX == 0  # the last of those asked for at once
