"""What hostile peers say instead of the truth, statement by statement.

Everything here is signed by its sender, and well formed unless its purpose is not to be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

from coordinator.chain.certificate import Conviction, votes_needed
from coordinator.core.actions import Inspect
from coordinator.trust.evidence import contradiction
from coordinator.wire.messages import (
    SIGNED_BODIES,
    Bundle,
    Check,
    Commit,
    ConvictionsNote,
    EvidenceNote,
    Join,
    Proposal,
    Roster,
)
from coordinator.wire.openings import PARTITIONS_MAX, OpenedInput, Refutation
from dht.identity import PeerId, Signer
from dht.statement import Statement, digest_of, make_statement
from dht.wire import Wire

CLAIMED = 8  # × the work that was done: more than any weight counts

Change = Callable[[Any], Wire]
Spoil = Callable[[bytes], bytes]


def resign(signer: Signer, statement: Statement, change: Change) -> Statement:
    """The same place, another body."""
    model = SIGNED_BODIES[statement.context.kind]
    return make_statement(signer, statement.context, change(statement.read(model)))


def update(**values: Callable[[Any], object]) -> Change:
    """Exchange these fields for what they are made into."""
    return lambda body: body.model_copy(update={name: value(body) for name, value in values.items()})


CHANGES: Mapping[str, Change] = MappingProxyType(
    {
        "join": update(expires_unix_seconds=lambda body: body.expires_unix_seconds + 1),
        "roster": update(joins=lambda body: body.joins[::-1]),
        "commit": update(nonce_hashes=lambda body: body.nonce_hashes[::-1]),
        "bundle": update(commits=lambda body: body.commits[::-1]),
        "result": update(encoding_error=lambda body: body.encoding_error + 1),
        "check": update(results=lambda body: (None, *body.results[1:]), nonce=lambda body: None),
        "redo": update(checks=lambda body: body.checks[::-1]),
        "proposal": update(checks=lambda body: body.checks[::-1]),
        "vote": update(state=lambda body: digest_of(b"another", body.state)),
        "abstain": update(attempt=lambda body: body.attempt + 1),
    }
)
"""Per kind of statement, what a two-faced peer tells the others of a group: well formed, but not the same."""

ALTERED: Mapping[str, Change] = MappingProxyType(
    {
        "join": update(expires_unix_seconds=lambda body: 0),
        "roster": update(joins=lambda body: (*body.joins, body.joins[0])),
        "commit": update(part_roots=lambda body: (*body.part_roots[1:], *body.part_roots[:2])[:PARTITIONS_MAX]),
        "bundle": update(commits=lambda body: (*body.commits, body.commits[0])),
        "result": update(included=lambda body: (*body.included, body.included[0])),
        "check": update(results=lambda body: (*body.results, None)[-PARTITIONS_MAX:]),
        "redo": update(partitions=lambda body: (PARTITIONS_MAX - 1,)),
        "proposal": update(results=lambda body: (None,) * len(body.results)),
        "vote": update(state=lambda body: digest_of(b"nothing", body.state)),
    }
)
"""What a peer says to everybody that is a lie, in the wrong shape, or a vote for what nobody else votes for."""


def altered(signer: Signer, statement: Statement, kinds: Set[str]) -> Statement:
    """As who alters these kinds tells it. Who leads shows checks, its own as it told it: two would be a proof."""
    kind = statement.context.kind
    if kind in kinds:
        return resign(signer, statement, ALTERED[kind])
    if "check" not in kinds or kind not in ("redo", "proposal"):
        return statement
    return resign(
        signer,
        statement,
        update(
            checks=lambda body: tuple(
                altered(signer, one, kinds) if one.sender == signer.peer_id else one for one in body.checks
            )
        ),
    )


def stretching(roster: Roster) -> Roster:
    """As if its leader had seen one group after the other fail."""
    return roster.model_copy(update={"voids": 8})


def slander(statement: Statement, victim: PeerId) -> list[EvidenceNote | ConvictionsNote]:
    """Two statements that the victim never signed, and the news of them."""
    forged = [statement.model_copy(update={"sender": victim, "body": body}) for body in (statement.body, b"\x90")]
    evidence = contradiction(forged[0], forged[1])
    news = ConvictionsNote(convictions=(Conviction(peer=victim, evidence=evidence.digest),))
    return [news, EvidenceNote(evidence=evidence.to_wire())]


def false_refutation(action: Inspect) -> Refutation:
    """It refutes nothing."""
    return Refutation(
        partition=action.partition,
        turn=action.turn,
        result=action.result,
        leaf=0,
        inputs=(OpenedInput(member=0, pieces=(), siblings=()),),
        piece=b"",
        siblings=(),
    )


def sybil_join(signer: Signer, statement: Statement) -> Statement:
    """The same wish to take part, of a key that was made for it."""
    boot = digest_of(b"sybil", signer.peer_id.encode())[:16]
    return make_statement(signer, statement.context, statement.read(Join).model_copy(update={"boot": boot}))


# -- bodies that a leader makes otherwise before it signs them


def framing(body: Roster, victims: Set[PeerId]) -> Roster:
    """These peers are left out as convicted, without evidence."""
    convictions = tuple(Conviction(peer=peer, evidence=bytes(32)) for peer in sorted(victims))
    return leaving_out(body, victims).model_copy(update={"convictions": convictions})


def leaving_out(body: Roster, victims: Set[PeerId]) -> Roster:
    """These peers have joined in vain."""
    joins = _without(body.joins, victims)
    return body.model_copy(update={"joins": joins}) if joins else body


def claiming(body: Commit) -> Commit:
    """More work than was done, as if with windows that nobody has counted."""
    more = {name: CLAIMED * getattr(body, name) for name in ("tokens", "steps", "window_count")}
    return body.model_copy(update=more)


def passing_over(body: Bundle, victims: Set[PeerId]) -> Bundle:
    """These peers have committed in vain."""
    commits = _without(body.commits, victims)
    return body.model_copy(update={"commits": commits}) if commits else body


def _without(statements: Sequence[Statement], victims: Set[PeerId]) -> tuple[Statement, ...]:
    return tuple(one for one in statements if one.sender not in victims)


def grinding(body: Proposal, ours: Set[PeerId]) -> Proposal:
    """A proposal without the checks of accomplices whose nonces give a worse coin, where enough checks are left.

    The last to reveal has one bit; a leader has one for each accomplice, since it picks the checks.
    """
    checks = list(body.checks)
    for peer in sorted(ours):
        rest = [one for one in checks if one.sender != peer]
        if len(rest) >= votes_needed(len(body.checks)) and _coin(rest) < _coin(checks):
            checks = rest
    return body.model_copy(update={"checks": tuple(checks)})


def _coin(checks: Sequence[Statement]) -> bytes:
    """What the group will draw from these checks, up to its name."""
    return digest_of(b"coin", *(one.read(Check).nonce or b"" for one in checks))


# -- bytes


def flip(data: bytes) -> bytes:
    """As long as it was, but not what was committed."""
    return bytes([data[0] ^ 1]) + data[1:] if data else data


def cut(data: bytes) -> bytes:
    """Shorter than it must be."""
    return data[:-1]
