"""Peers that contradict themselves, commit garbage or reduce falsely.

In simulator, lab and process a hostile peer runs the real core; what it signs, sends, computes and believes is
exchanged on the way. Each behaviour is named by what it does; `coordinator.adversary.collusion` lists them all, and
draws some for a whole band of them.
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

MEMORY = 8  # older statements of each kind that are kept to be said again
HOARDED = 200  # votes, certificates and chains that are kept back before all is shown
NOBODY: frozenset[PeerId] = frozenset()


@dataclass(slots=True)
class LoyalBans(Bans):
    """Bans of a peer that spares accomplices, and so tells nobody of what it could prove."""

    accomplices: frozenset[PeerId] = NOBODY

    def add(self, ban: Ban, known: Collection[PeerId]) -> bool:
        """As an honest peer, of all others."""
        return ban.guilt.peer not in self.accomplices and Bans.add(self, ban, known)


@dataclass(frozen=True, slots=True)
class Memory:
    """What a hostile peer has heard and said."""

    said: dict[str, deque[Statement]] = field(default_factory=dict)
    answered: deque[bytes] = field(default_factory=lambda: deque(maxlen=1024))
    hoarded: list[Message] = field(default_factory=list)

    def recall(self, statement: Statement) -> list[Statement]:
        """Keep this and what it holds; the oldest of its kind that we still have, unless that is this one."""
        for one in (statement, *nested(statement)):
            kept = self.said.setdefault(one.context.kind, deque(maxlen=MEMORY))
            if one not in kept:
                kept.append(one)
        oldest = self.said[statement.context.kind][0]
        return [] if oldest.digest == statement.digest else [oldest]


@dataclass(frozen=True, slots=True)
class Mischief:
    """How one hostile peer behaves: `two_faced` kinds are told in two versions, and to leaders in both."""

    signer: Signer
    two_faced: frozenset[str] = frozenset()
    altered: frozenset[str] = frozenset()  # kinds that it tells everybody otherwise than it should: see `lies.ALTERED`
    mute: frozenset[str] = frozenset()  # kinds of statements that it keeps to itself, «part» and «opening»
    victims: frozenset[PeerId] = NOBODY  # of the next four
    slanders: bool = False  # spreads evidence about them that proves nothing
    frames: bool = False  # its rosters leave them out as convicted
    shuts_out: bool = False  # its rosters leave them out, and say nothing of it
    stretches: bool = False  # its rosters say that many groups were void, for a longer deadline
    passes_over: bool = False  # its bundles leave out what they committed
    garbles: bool = False
    cheats: bool = False  # signs other results than its inputs give
    drops: bool = False  # merges without the first input, and says so
    raises: bool = False  # signs coefficients that are not the rule's
    claims: bool = False  # to have done many times its work, so that it weighs the most that anybody may
    takes_back: bool = False  # votes, and tells some that it abstains
    votes_for_all: bool = False  # tells every voter that it votes as that one does
    grinds: bool = False  # leads, and lets the coin be drawn from whichever checks suit it
    replays: bool = False  # says again, with everything it says, what was said before
    shuns_half: bool = False  # says nothing to half of the world
    halved: frozenset[str] = frozenset()  # kinds, as in `mute`, that it keeps from that half
    hoards: bool = False  # keeps its votes and what they certify to itself and accomplices, and shows that much later
    spoils: lies.Spoil | None = None  # what it does to the bytes of its parts
    complaint: Finding | None = None  # what it claims to find in every result that it looks into
    sybils: tuple[Signer, ...] = ()  # keys that ask into every group beside it, and say nothing there
    others: frozenset[PeerId] | None = None  # who hears the other version; None: a hash decides
    accomplices: frozenset[PeerId] = NOBODY  # whom it does not see cheat, and does not betray
    memory: Memory = field(default_factory=Memory, compare=False)

    # -- what it signs, and believes itself

    def says(self, body: Wire) -> Wire:
        """What its core says instead, to itself, too: what follows in the group rests on it."""
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

    # -- what it sends

    def sends(self, action: Send) -> list[Send]:
        """What goes out instead of this message."""
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
        if self.accomplices and betrays:  # by comparing what they heard, others find two-faced accomplices out
            return True
        if self._hoards(to, message):
            self.memory.hoarded.append(message)
            return True
        kind = kind_of(message)
        return kind in self.mute or ((self.shuns_half or kind in self.halved) and self._is_other(to))

    def _hoards(self, peer: PeerId, message: Message) -> bool:
        """Whether this is what it hoards, from or of an outsider, before the day on which all is shown."""
        if not self.hoards or peer in self.accomplices or len(self.memory.hoarded) >= HOARDED:
            return False
        return kind_of(message) == "vote" or isinstance(message, CertificateNote | ChainNote)

    def _recall(self, message: Statement) -> list[Statement]:
        return self.memory.recall(message) if self.replays else []

    def _told(self, action: Send, message: Statement) -> list[Send]:
        """A statement of its own, as it tells it."""
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
        """Which half of the world hears the other version."""
        return digest_of(b"face", peer.encode())[0] % 2 == 1 if self.others is None else peer in self.others

    def carries(self, message: Message, payload: bytes) -> bytes:
        """What comes beside a message; a virtual peer sends a root in place of bytes."""
        return self.spoils(payload) if self.spoils is not None and isinstance(message, PartNote) else payload

    def is_deaf_to(self, sender: PeerId, message: Message) -> bool:
        """Whether it stays on a branch of its own although others show theirs."""
        return self._hoards(sender, message) and not isinstance(message, Statement)

    def hears(self, sender: PeerId, message: Message) -> list[Send]:
        """What it says at once to the sender of this."""
        if not self.votes_for_all or not isinstance(message, Statement) or message.context.kind != "vote":
            return []
        own = {self.signer.peer_id, *self.accomplices}
        if sender in own or message.sender != sender or message.digest in self.memory.answered:
            return []
        self.memory.answered.append(message.digest)
        with suppress(PeerError):  # others may lie, too
            return [Send(sender, make_statement(self.signer, message.context, message.read(Vote)))]
        return []

    # -- what it computes

    def encodes(self, encoded: Encoded, garbled: Callable[[Encoded], Encoded]) -> Encoded:
        """What it commits to instead of its contribution; `garbled` makes the same of parts that decode to nothing."""
        return garbled(encoded) if self.garbles else encoded

    def merges(self, action: Reduce) -> Reduce:
        """What it merges instead, if the others would take it."""
        enough = len(action.inputs) > max(action.inputs_min, 1)
        return replace(action, inputs=action.inputs[1:]) if self.drops and enough else action

    def reduces(self, reduced: Reduced, falsified: Callable[[Reduced], Reduced]) -> Reduced:
        """What it returns instead of the merged partition; `falsified` makes another of it."""
        if reduced.root is None:
            return reduced
        told = falsified(reduced) if self.cheats else reduced
        return replace(told, coefficients=(1.0,)) if self.raises else told

    def inspects(self, action: Inspect, inspected: Inspected, reducer: PeerId | None = None) -> Inspected:
        """What it says to have found in a result; its refutation refutes nothing. With accomplices all is well."""
        if reducer in self.accomplices:
            return replace(inspected, finding=Finding.CONFIRMED, refutation=None)
        if self.complaint is None or action.accuser != self.signer.peer_id:
            return inspected
        refutation = lies.false_refutation(action) if self.complaint is Finding.REFUTED else None
        return replace(inspected, finding=self.complaint, refutation=refutation)


def kind_of(message: Message) -> str:
    """What a mute peer may keep to itself."""
    if isinstance(message, Statement):
        return message.context.kind
    if isinstance(message, PartNote):
        return "part"
    return "opening" if isinstance(message, OpeningNote) else ""


@dataclass(slots=True)
class MischievousCore(Core):
    """A core of which mischief, if its peer has any by then, exchanges what it says; who has none is honest."""

    mischief: Callable[[], Mischief | None] = field(kw_only=True)

    def __post_init__(self) -> None:
        Core.__post_init__(self)
        if (mischief := self.mischief()) is not None:
            self.bans = LoyalBans(accomplices=mischief.accomplices)

    def say(self, kind: str, key: RoundKey, group: bytes, body: Wire) -> Statement:
        """Sign a statement about (fragment, version)."""
        mischief = self.mischief()
        return Core.say(self, kind, key, group, body if mischief is None else mischief.says(body))
