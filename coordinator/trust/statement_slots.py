"""Slots: in each, an honest peer makes one statement at most, however often it crashes and restarts (design §9).

Two different statements of one key in one slot are a contradiction (`coordinator.trust.evidence`). A peer starts a new
life with each restart. Each slot holds something that a later life of the same peer does not share:

* A *join* holds the boot nonce of its sender's life, and its context the base. Within a life `OwnJoins.said` keeps the
  joins; an attempt forgotten there is used up, even if we leave the base and come back (`VoteLocks`).
* A *roster* belongs to the life whose join as leader it holds; without such a join it convicts no key. A life issues
  each revision once, only for attempts that it has joined, and takes no join of an earlier life of its own for its own
  (`RosterBuilder.add`).
* *Statements in a group* (commit, bundle, vote, abstention) name the roster, whose digest covers the boot nonce of
  every member. A peer only signs under a roster that names its present life (`VersionRound._on_roster`), once in each
  kind. It does not later enter a group that it has left or declined (`OwnJoins.is_behind`).
* *Statements in a cell* name its roster, which holds a nonce of every member, the leader included. A member draws one
  for each stay at a base, and enters no cell without it (`CellRounds.nonce`): each stay assigns the wards anew.
* *Statements about an input set* (result, check, redo, proposal) name the bundle, whose digest covers the roster's:
  one result for each partition and turn, one check for each phase, one redo, one proposal.
* *A vote and an abstention* share a slot: a peer never gives both (`Voting.abstain`, `VersionRound._decline`).

Kinds that are not listed (presence, and any later ones) may be sent any number of times. The simulator holds every
honest peer to this over all of its lives (`coordinator.simulator.invariants`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from coordinator.wire.messages import STATEMENT_BODIES, Check, Join, Result, Roster
from dht.errors import PeerError
from dht.statement import Statement

Slot = tuple[object, ...]
"""The name of a slot, in which an honest peer makes one statement at most."""


def slot_of(statement: Statement) -> Slot | None:
    """Return the slot of a statement; None if its kind has none, or if it cannot be read."""
    context = statement.context
    detail = _SLOTS.get(context.kind)
    if detail is None:
        return None
    try:
        known = detail(statement)
    except PeerError:
        return None
    if known is None:
        return None
    return (
        context.run_id,
        kind_of(statement),
        context.fragment,
        context.version,
        context.group,
        statement.sender,
        *known,
    )


def kind_of(statement: Statement) -> str:
    """Return the kind of a statement's slot, which votes and abstentions share."""
    return "ballot" if statement.context.kind in ("vote", "abstain") else statement.context.kind


def nested(statement: Statement) -> tuple[Statement, ...]:
    """Return the statements of others that a leader's statement holds; empty if it cannot be read."""
    model = STATEMENT_BODIES.get(statement.context.kind)
    field = _NESTED.get(statement.context.kind)
    if model is None or field is None:
        return ()
    try:
        found: tuple[Statement, ...] = getattr(statement.read(model), field)
    except PeerError:
        return ()
    return found


def _nothing_more(statement: Statement) -> Slot:
    return ()


def _join(statement: Statement) -> Slot:
    join = statement.read(Join)
    return (join.attempt, join.boot)


def _roster(statement: Statement) -> Slot | None:
    roster = statement.read(Roster)
    own = [join for join in roster.joins if join.sender == statement.sender]
    return (roster.attempt, roster.revision, own[0].read(Join).boot) if len(own) == 1 else None


def _result(statement: Statement) -> Slot:
    result = statement.read(Result)
    return (result.partition, result.turn)


def _check(statement: Statement) -> Slot:
    return (statement.read(Check).phase,)


_SLOTS: Mapping[str, Callable[[Statement], Slot | None]] = MappingProxyType(
    {
        "join": _join,
        "roster": _roster,
        "commit": _nothing_more,
        "bundle": _nothing_more,
        "result": _result,
        "check": _check,
        "redo": _nothing_more,
        "proposal": _nothing_more,
        "vote": _nothing_more,
        "abstain": _nothing_more,
    }
)

_NESTED: Mapping[str, str] = MappingProxyType(
    {"roster": "joins", "bundle": "commits", "redo": "checks", "proposal": "checks"}
)
