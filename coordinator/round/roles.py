"""Roles in a group: which member may make which statement. Only such statements may take room in memory."""

from __future__ import annotations

from coordinator.round.exchange import Exchange
from coordinator.wire.messages import Result
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement


def may_send(exchange: Exchange, statement: Statement) -> bool:
    """Whether the sender's role in this group allows this statement, as far as we know by now."""
    context, sender, group = statement.context, PeerId(statement.sender), exchange.group
    if context.group == group.key.roster_id:
        leader = frozenset({group.leader})
        before = {"commit": group.contributors, "bundle": leader, "vote": group.voters, "abstain": group.members}
        return sender in before.get(context.kind, ())
    if exchange.inputs is None or context.group != exchange.inputs.digest:
        return False
    if context.kind == "result":
        return _reduces(exchange, statement)
    proposers = frozenset(group.proposers())
    return sender in {"check": group.voters, "redo": proposers, "proposal": proposers}.get(context.kind, ())


def _reduces(exchange: Exchange, statement: Statement) -> bool:
    """Whether the sender reduces this result's partition; nobody does in the second turn before we know of the redo."""
    try:
        result = statement.read(Result)
    except PeerError:
        return False
    due = range(exchange.group.partitions) if result.turn == 0 else exchange.redone
    redone = exchange.redone if result.turn else ()
    return result.partition in due and statement.sender == exchange.group.reducer(result.partition, redone)
