"""Hostile peers: they contradict themselves, commit garbage, reduce falsely, and more.

In simulator, lab and real processes a hostile peer runs the real core. This module changes what it signs, sends,
computes and believes. `coordinator.adversary.collusion` lists all behaviours by name, and draws some for a band of
peers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace

from coordinator.adversary import lies
from coordinator.chain.certificate import Vote
from coordinator.core.actions import Inspect, Reduce, RoundKey, Send
from coordinator.core.context import Core
from coordinator.core.events import Encoded, Finding, Inspected, Reduced
from coordinator.trust.bans import Ban, Bans
from coordinator.trust.statement_slots import nested
from coordinator.wire.messages import (
    Abstain,
    Bundle,
    CertificateNote,
    ChainNote,
    Commit,
    HeardNote,
    Message,
    PartNote,
    Proposal,
    Roster,
)
from coordinator.wire.openings import OpeningNote
from dht.errors import PeerError
from dht.identity import PeerId, Signer
from dht.statement import Statement, digest_of, make_statement
from dht.wire import Wire

MEMORY = 8  # statements kept of each kind, to repeat old ones
HOARDED = 200  # votes, certificates and chains that it holds back before it stops hoarding
NOBODY: frozenset[PeerId] = frozenset()


@dataclass(slots=True)
class LoyalBans(Bans):
    """Bans of a peer that spares its accomplices, and so tells nobody of its evidence about them."""

    accomplices: frozenset[PeerId] = NOBODY

    def add(self, ban: Ban, known: Collection[PeerId]) -> bool:
        """Add a ban as an honest peer would, unless it is about an accomplice."""
        return ban.guilt.peer not in self.accomplices and Bans.add(self, ban, known)


@dataclass(slots=True)
class Memory:
    """Statements that a hostile peer has seen or answered, and the number of messages that it has held back."""

    said: dict[str, deque[Statement]] = field(default_factory=dict)
    answered: deque[bytes] = field(default_factory=lambda: deque(maxlen=1024))
    hoarded: int = 0

    def recall(self, statement: Statement) -> list[Statement]:
        """Keep this statement and the ones inside it; return the oldest kept one of its kind, unless it is this one."""
        for one in (statement, *nested(statement)):
            kept = self.said.setdefault(one.context.kind, deque(maxlen=MEMORY))
            if one not in kept:
                kept.append(one)
        oldest = self.said[statement.context.kind][0]
        return [] if oldest.digest == statement.digest else [oldest]


@dataclass(frozen=True, slots=True)
class Mischief:
    """The behaviour of one hostile peer. It sends statements of `two_faced` kinds in two versions; leaders get both."""

    signer: Signer
    two_faced: frozenset[str] = frozenset()
    altered: frozenset[str] = frozenset()  # kinds that it changes for everybody (`lies.ALTERED`)
    mute: frozenset[str] = frozenset()  # kinds of statements that it does not send, or «part» and «opening»
    victims: frozenset[PeerId] = NOBODY  # of `slanders`, `frames`, `shuts_out` and `passes_over`
    slanders: bool = False  # spreads evidence about the victims that proves nothing
    frames: bool = False  # its rosters leave the victims out as convicted
    shuts_out: bool = False  # its rosters leave the victims out silently
    stretches: bool = False  # its rosters claim many void groups, for a longer deadline
    passes_over: bool = False  # its bundles leave out the victims' commitments
    garbles: bool = False  # commits to parts that do not decode
    cheats: bool = False  # signs results that do not follow from its inputs
    drops: bool = False  # merges without the first input, and says so
    raises: bool = False  # signs coefficients that do not follow from the merge rule
    claims: bool = False  # claims many times its work, for the largest weight that a peer may have
    takes_back: bool = False  # votes, and tells some peers that it abstains
    votes_for_all: bool = False  # answers every vote with the same vote of its own
    grinds: bool = False  # as leader, chooses the checks whose coin suits it
    replays: bool = False  # repeats an old statement with each statement that it sends
    shuns_half: bool = False  # sends nothing to one half of the peers
    halved: frozenset[str] = frozenset()  # kinds, as in `mute`, that it does not send to that half
    hoards: bool = False  # shows its votes and their certificates only to accomplices, up to HOARDED messages
    spoils: lies.Spoil | None = None  # change to the bytes of its parts
    complaint: Finding | None = None  # finding that it claims for every result that it inspects
    sybils: tuple[Signer, ...] = ()  # keys that join every group beside it, and stay silent there
    others: frozenset[PeerId] | None = None  # the half that gets the second version; None: a hash decides
    accomplices: frozenset[PeerId] = NOBODY  # peers that it never accuses or betrays
    memory: Memory = field(default_factory=Memory, compare=False)

    # -- bodies that it signs, and uses itself

    def says(self, body: Wire) -> Wire:
        """Return the body that its core signs instead, and uses itself: later steps in the group rest on it."""
        if isinstance(body, Roster):
            body = lies.stretching(body) if self.stretches else body
            if self.frames:
                return lies.framing(body, self.victims)
            return lies.leaving_out(body, self.victims) if self.shuts_out else body
        if isinstance(body, Commit) and self.claims:
            return lies.claiming(body)
        if isinstance(body, Bundle) and self.passes_over:
            return lies.passing_over(body, self.victims)
        if isinstance(body, Proposal) and self.grinds:
            return lies.grinding(body, self.accomplices | {self.signer.peer_id})
        return body

    # -- messages that it sends

    def sends(self, action: Send) -> list[Send]:
        """Return the messages to send instead of this one."""
        message = action.message
        if self._keeps_back(action.to, message):
            return []
        if not isinstance(message, Statement):
            return [action]
        again = [replace(action, message=old, payload=None) for old in self._recall(message)]
        if message.sender != self.signer.peer_id:
            return [action, *again]
        return [*self._told(action, message), *again]

    def _keeps_back(self, to: PeerId, message: Message) -> bool:
        betrays = isinstance(message, HeardNote) or getattr(message, "sender", None) in self.accomplices
        if self.accomplices and betrays:  # others could find out two-faced accomplices by comparing statements
            return True
        if self._hoards(to, message):
            self.memory.hoarded += 1
            return True
        kind = kind_of(message)
        return kind in self.mute or ((self.shuns_half or kind in self.halved) and self._is_other(to))

    def _hoards(self, peer: PeerId, message: Message) -> bool:
        """Whether to hold back this vote, certificate or chain to or from an outsider: only the first HOARDED ones."""
        if not self.hoards or peer in self.accomplices or self.memory.hoarded >= HOARDED:
            return False
        return kind_of(message) == "vote" or isinstance(message, CertificateNote | ChainNote)

    def _recall(self, message: Statement) -> list[Statement]:
        return self.memory.recall(message) if self.replays else []

    def _told(self, action: Send, message: Statement) -> list[Send]:
        """Return the messages that it sends for a statement of its own."""
        kind = message.context.kind
        if kind == "join" and (self.slanders or self.sybils):
            notes = [note for victim in sorted(self.victims) for note in lies.slander(message, victim)]
            joins = [lies.sybil_join(sybil, message) for sybil in self.sybils]
            return [replace(action, message=one) for one in (message, *(notes if self.slanders else ()), *joins)]
        if kind == "vote" and self.takes_back and self._is_other(action.to):
            abstain = make_statement(
                self.signer, message.context.model_copy(update={"kind": "abstain"}), Abstain(attempt=0)
            )
            return [action, replace(action, message=abstain)]
        told = lies.altered(self.signer, message, self.altered)
        action = replace(action, message=told)
        return self._faces(action, told) if kind in self.two_faced - self.altered else [action]

    def _faces(self, action: Send, message: Statement) -> list[Send]:
        kind = message.context.kind
        changed = replace(action, message=lies.resign(self.signer, message, lies.CHANGES[kind]))
        if kind in ("commit", "check"):
            return [action, changed]
        return [changed] if self._is_other(action.to) else [action]

    def _is_other(self, peer: PeerId) -> bool:
        """Whether this peer belongs to the half that gets the second version."""
        return digest_of(b"face", peer.encode())[0] % 2 == 1 if self.others is None else peer in self.others

    def carries(self, message: Message, payload: bytes) -> bytes:
        """Return the payload to send with a message; a virtual peer sends a root in place of bytes."""
        return self.spoils(payload) if self.spoils is not None and isinstance(message, PartNote) else payload

    def is_deaf_to(self, sender: PeerId, message: Message) -> bool:
        """Whether it ignores this message, to stay on its own branch although others show theirs."""
        return self._hoards(sender, message) and not isinstance(message, Statement)

    def hears(self, sender: PeerId, message: Message) -> list[Send]:
        """Return its immediate answers to the sender of this message."""
        if not self.votes_for_all or not isinstance(message, Statement) or message.context.kind != "vote":
            return []
        own = {self.signer.peer_id, *self.accomplices}
        if sender in own or message.sender != sender or message.digest in self.memory.answered:
            return []
        self.memory.answered.append(message.digest)
        with suppress(PeerError):  # others may lie, too
            return [Send(sender, make_statement(self.signer, message.context, message.read(Vote)))]
        return []

    # -- results that it computes

    def encodes(self, encoded: Encoded, garbled: Callable[[Encoded], Encoded]) -> Encoded:
        """Return the contribution that it commits to; `garbled` makes one whose parts do not decode."""
        return garbled(encoded) if self.garbles else encoded

    def merges(self, action: Reduce) -> Reduce:
        """Return the reduction that it runs instead, if the others would accept its result."""
        enough = len(action.inputs) > max(action.inputs_min, 1)
        return replace(action, inputs=action.inputs[1:]) if self.drops and enough else action

    def reduces(self, reduced: Reduced, falsified: Callable[[Reduced], Reduced]) -> Reduced:
        """Return the result that it sends instead of the merged partition; `falsified` makes a false one."""
        if reduced.root is None:
            return reduced
        told = falsified(reduced) if self.cheats else reduced
        return replace(told, coefficients=(1.0,)) if self.raises else told

    def inspects(self, action: Inspect, inspected: Inspected, reducer: PeerId | None = None) -> Inspected:
        """Return the finding that it claims, with an empty refutation; it confirms its accomplices' results."""
        if reducer in self.accomplices:
            return replace(inspected, finding=Finding.CONFIRMED, refutation=None)
        if self.complaint is None or action.accuser != self.signer.peer_id:
            return inspected
        refutation = lies.false_refutation(action) if self.complaint is Finding.REFUTED else None
        return replace(inspected, finding=self.complaint, refutation=refutation)


def kind_of(message: Message) -> str:
    """Return the kind by which a mute peer may withhold this message; "" for other messages."""
    if isinstance(message, Statement):
        return message.context.kind
    if isinstance(message, PartNote):
        return "part"
    return "opening" if isinstance(message, OpeningNote) else ""


@dataclass(slots=True)
class MischievousCore(Core):
    """A core whose statements its peer's mischief changes, if there is any at that time; else it is honest."""

    mischief: Callable[[], Mischief | None] = field(kw_only=True)

    def __post_init__(self) -> None:
        Core.__post_init__(self)
        if (mischief := self.mischief()) is not None:
            self.bans = LoyalBans(accomplices=mischief.accomplices)

    def sign_statement(self, kind: str, key: RoundKey, group: bytes, body: Wire) -> Statement:
        """Sign a statement about (fragment, version)."""
        mischief = self.mischief()
        return Core.sign_statement(self, kind, key, group, body if mischief is None else mischief.says(body))
