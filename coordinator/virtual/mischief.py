"""Virtual peers that contradict themselves, commit garbage or reduce falsely, for the simulator (`byzantine.md` §3.2).

A hostile peer runs the real core; what it sends is exchanged on the way out. Each behaviour is named by what it does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from coordinator.actions import Inspect, Send
from coordinator.certificate import Conviction, Vote
from coordinator.events import Encoded, Finding, Inspected, Reduced
from coordinator.evidence import contradiction
from coordinator.messages import STATEMENT_BODIES, Abstain, ConvictionsNote, EvidenceNote, Message, Roster
from coordinator.openings import OpenedInput, OpeningNote, Refutation
from coordinator.virtual.tensors import garbage_root
from dht.identity import PeerId, Signer
from dht.statement import Statement, digest_of, make_statement
from dht.wire import Wire

Change = Callable[[Any], Wire]


def _resign(signer: Signer, statement: Statement, change: Change) -> Statement:
    bodies: dict[str, type[Wire]] = {**STATEMENT_BODIES, "vote": Vote}
    model = bodies[statement.context.kind]
    return make_statement(signer, statement.context, change(statement.read(model)))


def _update(**values: Callable[[Any], object]) -> Change:
    return lambda body: body.model_copy(update={name: value(body) for name, value in values.items()})


CHANGES: Mapping[str, Change] = MappingProxyType(
    {
        "join": _update(expires_unix_seconds=lambda body: body.expires_unix_seconds + 1),
        "roster": _update(joins=lambda body: body.joins[::-1]),
        "commit": _update(nonce_hashes=lambda body: body.nonce_hashes[::-1]),
        "bundle": _update(commits=lambda body: body.commits[::-1]),
        "result": _update(encoding_error=lambda body: body.encoding_error + 1),
        "check": _update(results=lambda body: (None, *body.results[1:]), nonce=lambda body: None),
        "redo": _update(checks=lambda body: body.checks[::-1]),
        "proposal": _update(checks=lambda body: body.checks[::-1]),
        "vote": _update(state=lambda body: digest_of(b"another", body.state)),
        "abstain": _update(attempt=lambda body: body.attempt + 1),
    }
)
"""Per kind of statement, what a two-faced peer tells the others of a group: well formed, but not the same."""

ALTERED: Mapping[str, Change] = MappingProxyType(
    {
        "result": _update(included=lambda body: (*body.included, body.included[0])),
        "vote": _update(state=lambda body: digest_of(b"nothing", body.state)),
    }
)
"""What a peer says to everybody that is a lie, or a vote for what nobody else votes for."""


COMPLAINTS = (Finding.DOUBTFUL, Finding.REFUTED, Finding.UNOPENED)
MUTE = ("result", "opening")


def _slander(statement: Statement, victim: PeerId) -> list[EvidenceNote | ConvictionsNote]:
    """Two statements that the victim never signed, and the news of them."""
    forged = [statement.model_copy(update={"sender": victim, "body": body}) for body in (statement.body, b"\x90")]
    evidence = contradiction(forged[0], forged[1])
    news = ConvictionsNote(convictions=(Conviction(peer=victim, evidence=evidence.digest),))
    return [news, EvidenceNote(evidence=evidence.to_wire())]


@dataclass(frozen=True, slots=True)
class Mischief:
    """How one hostile peer behaves: `two_faced` kinds are told in two versions, and to leaders in both."""

    signer: Signer
    two_faced: frozenset[str] = frozenset()
    altered: frozenset[str] = frozenset()  # kinds that it tells everybody otherwise than it should: see `ALTERED`
    garbles: bool = False
    cheats: bool = False  # signs other results than its inputs give
    takes_back: bool = False  # votes, and tells some that it abstains
    slanders: frozenset[PeerId] = frozenset()  # peers about which it spreads evidence that proves nothing
    frames: frozenset[PeerId] = frozenset()  # peers that its rosters leave out as convicted
    mute: frozenset[str] = frozenset()  # kinds of statements that it keeps to itself, and «opening»
    shuns_half: bool = False  # says nothing to half of the world
    complaint: Finding | None = None  # what it claims to find in every result that it looks into
    others: frozenset[PeerId] | None = None  # who hears the other version; None: whoever a hash puts there

    def sends(self, action: Send) -> list[Send]:
        """What goes out instead of this message."""
        message = action.message
        if (self.shuns_half and self._is_other(action.to)) or _kind(message) in self.mute:
            return []
        if not isinstance(message, Statement) or message.sender != self.signer.peer_id:
            return [action]
        kind = message.context.kind
        if kind == "roster" and self.frames:
            return [replace(action, message=_resign(self.signer, message, self._frame))]
        if kind == "join" and self.slanders:
            notes = [note for victim in sorted(self.slanders) for note in _slander(message, victim)]
            return [action, *(replace(action, message=note) for note in notes)]
        if kind == "vote" and self.takes_back and self._is_other(action.to):
            abstain = make_statement(
                self.signer, message.context.model_copy(update={"kind": "abstain"}), Abstain(attempt=0)
            )
            return [action, replace(action, message=abstain)]
        if kind in self.altered:
            return [replace(action, message=_resign(self.signer, message, ALTERED[kind]))]
        return self._faces(action, message) if kind in self.two_faced else [action]

    def _faces(self, action: Send, message: Statement) -> list[Send]:
        kind = message.context.kind
        changed = replace(action, message=_resign(self.signer, message, CHANGES[kind]))
        if kind in ("commit", "check"):
            return [action, changed]
        return [changed] if self._is_other(action.to) else [action]

    def encodes(self, encoded: Encoded) -> Encoded:
        """What it commits to instead of its contribution."""
        if not self.garbles:
            return encoded
        return replace(encoded, part_roots=tuple(garbage_root(part) for part in range(len(encoded.part_roots))))

    def reduces(self, reduced: Reduced) -> Reduced:
        """What it returns instead of the merged partition."""
        if not self.cheats or reduced.root is None:
            return reduced
        return replace(reduced, root=digest_of(b"cheated", reduced.root))

    def inspects(self, action: Inspect, inspected: Inspected) -> Inspected:
        """What it says to have found in a result; its refutation refutes nothing."""
        if self.complaint is None or action.accuser != self.signer.peer_id:
            return inspected
        lie = Refutation(
            partition=action.partition,
            turn=action.turn,
            result=action.result,
            leaf=0,
            inputs=(OpenedInput(member=0, pieces=(), siblings=()),),
            piece=b"",
            siblings=(),
        )
        refutation = lie if self.complaint is Finding.REFUTED else None
        return replace(inspected, finding=self.complaint, refutation=refutation)

    def _frame(self, body: Roster) -> Roster:
        joins = tuple(join for join in body.joins if join.sender not in self.frames)
        convictions = tuple(Conviction(peer=peer, evidence=bytes(32)) for peer in sorted(self.frames))
        return body.model_copy(update={"joins": joins, "convictions": convictions})

    def _is_other(self, peer: PeerId) -> bool:
        """Which half of the world hears the other version."""
        return digest_of(b"face", peer.encode())[0] % 2 == 1 if self.others is None else peer in self.others


def _kind(message: Message) -> str:
    if isinstance(message, Statement):
        return message.context.kind
    return "opening" if isinstance(message, OpeningNote) else ""


def draw_mischief(signer: Signer, honest: Sequence[PeerId], draw: random.Random) -> Mischief:
    """Some behaviour at random, perhaps several at once."""
    kinds = [kind for kind in CHANGES if draw.random() < 0.25]
    return Mischief(
        signer,
        frozenset(kinds),
        garbles=draw.random() < 0.2,
        takes_back=draw.random() < 0.2,
        slanders=frozenset(draw.sample(honest, 1)) if draw.random() < 0.2 else frozenset(),
        frames=frozenset(draw.sample(honest, 1)) if draw.random() < 0.1 else frozenset(),
        cheats=draw.random() < 0.2,
        altered=frozenset(kind for kind in ALTERED if draw.random() < 0.1),
        complaint=draw.choice(COMPLAINTS) if draw.random() < 0.2 else None,
        shuns_half=draw.random() < 0.1,
        mute=frozenset(kind for kind in MUTE if draw.random() < 0.1),
    )
