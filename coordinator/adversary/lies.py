"""Lies of hostile peers, statement by statement.

Every lie is signed by its sender, and well formed unless its purpose is to be malformed.
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

CLAIMED = 8  # claimed work as a multiple of the real work: more than any weight counts

Change = Callable[[Any], Wire]
Spoil = Callable[[bytes], bytes]


def resign(signer: Signer, statement: Statement, change: Change) -> Statement:
    """Return the statement with a changed body in the same context, signed again."""
    model = SIGNED_BODIES[statement.context.kind]
    return make_statement(signer, statement.context, change(statement.read(model)))


def update(**values: Callable[[Any], object]) -> Change:
    """Return a change that replaces these fields by the values computed from the body."""
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
"""By kind of statement, the second version of a two-faced peer: well formed, but different."""

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
"""By kind of statement, a change that a peer makes for everybody: a lie, a malformed body, or a lone vote."""


def altered(signer: Signer, statement: Statement, kinds: Set[str]) -> Statement:
    """Return a statement as a peer that alters these kinds sends it.

    In its redos and proposals, too, it shows its own check in the altered form: two different ones would convict it.
    """
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
    """Return the roster as if its leader had seen one group after another fail."""
    return roster.model_copy(update={"voids": 8})


def slander(statement: Statement, victim: PeerId) -> list[EvidenceNote | ConvictionsNote]:
    """Return false evidence of two statements that the victim never signed, with the note that announces it."""
    forged = [statement.model_copy(update={"sender": victim, "body": body}) for body in (statement.body, b"\x90")]
    evidence = contradiction(forged[0], forged[1])
    news = ConvictionsNote(convictions=(Conviction(peer=victim, evidence=evidence.digest),))
    return [news, EvidenceNote(evidence=evidence.to_wire())]


def false_refutation(action: Inspect) -> Refutation:
    """Return a refutation that refutes nothing."""
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
    """Return the same join from another key, made only for this."""
    boot = digest_of(b"sybil", signer.peer_id.encode())[:16]
    return make_statement(signer, statement.context, statement.read(Join).model_copy(update={"boot": boot}))


# -- bodies changed before the sender signs them


def framing(body: Roster, victims: Set[PeerId]) -> Roster:
    """Return the roster without these peers, listed as convicted without evidence."""
    convictions = tuple(Conviction(peer=peer, evidence=bytes(32)) for peer in sorted(victims))
    return leaving_out(body, victims).model_copy(update={"convictions": convictions})


def leaving_out(body: Roster, victims: Set[PeerId]) -> Roster:
    """Return the roster without the joins of these peers."""
    joins = _without(body.joins, victims)
    return body.model_copy(update={"joins": joins}) if joins else body


def claiming(body: Commit) -> Commit:
    """Return the commitment with CLAIMED times its work, data windows included."""
    more = {name: CLAIMED * getattr(body, name) for name in ("tokens", "steps", "window_count")}
    return body.model_copy(update=more)


def passing_over(body: Bundle, victims: Set[PeerId]) -> Bundle:
    """Return the bundle without the commitments of these peers."""
    commits = _without(body.commits, victims)
    return body.model_copy(update={"commits": commits}) if commits else body


def _without(statements: Sequence[Statement], victims: Set[PeerId]) -> tuple[Statement, ...]:
    return tuple(one for one in statements if one.sender not in victims)


def grinding(body: Proposal, ours: Set[PeerId]) -> Proposal:
    """Return the proposal without checks of accomplices if a smaller coin comes of that and enough checks are left.

    The last peer to reveal its nonce has one bit of choice. A leader picks the checks, so it has one per accomplice.
    """
    checks = list(body.checks)
    for peer in sorted(ours):
        rest = [one for one in checks if one.sender != peer]
        if len(rest) >= votes_needed(len(body.checks)) and _coin(rest) < _coin(checks):
            checks = rest
    return body.model_copy(update={"checks": tuple(checks)})


def _coin(checks: Sequence[Statement]) -> bytes:
    """Return a digest that is as hard to predict as the coin of these checks, with another domain tag."""
    return digest_of(b"coin", *(one.read(Check).nonce or b"" for one in checks))


# -- bytes


def flip(data: bytes) -> bytes:
    """Return other bytes than committed, of the same length."""
    return bytes([data[0] ^ 1]) + data[1:] if data else data


def cut(data: bytes) -> bytes:
    """Return the bytes without the last one."""
    return data[:-1]
