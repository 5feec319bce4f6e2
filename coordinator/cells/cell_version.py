"""Versions that hold work from cells: the route of their state to us, and our own part in them (docs/adr/0011)."""

from __future__ import annotations

from dataclasses import replace

from coordinator.cells.assignment import is_included
from coordinator.cells.cell import Cell
from coordinator.cells.cell_rounds import CellRounds
from coordinator.chain.certificate import Certificate, Contributor
from coordinator.core.actions import Adopt, Included, RoundKey
from coordinator.wire.messages import CellYield
from dht.identity import PeerId


def state_route(rounds: CellRounds) -> tuple[PeerId | None, tuple[PeerId, ...]]:
    """Return the peer that gives us the version's state and those that we tell then: our work's way, in reverse."""
    led, upstream = rounds.leading, rounds.joined.group.leader if rounds.joined is not None and rounds.told else None
    return upstream, () if led is None else tuple(one for one in led.group.members if one != rounds.core.me)


def adoption(rounds: CellRounds, certificate: Certificate, own: Adopt | None) -> Adopt | None:
    """Return how to adopt a version that may hold our work through cells; `own` is our group's answer without cells."""
    snapshot, outcome = _snapshot_in(rounds, certificate), certificate.outcome
    if snapshot is None:
        return own
    counted = outcome.included_in(rounds.head or rounds.core.me)
    frozen = tuple(partition is None for partition in outcome.partitions)
    return replace(own or Adopt(certificate, applied=None), ours=Included(snapshot, counted), frozen=frozen)


def _snapshot_in(rounds: CellRounds, certificate: Certificate) -> RoundKey | None:
    """Return the round of our cell snapshot that this version holds, if any."""
    led, joined = rounds.leading, rounds.joined
    listed = certificate.outcome.included()
    above: tuple[PeerId, ...] = ()
    if joined is not None and rounds.told:
        above = (joined.group.leader, joined.group.head)[-len(rounds.told) :]
    ways: list[tuple[Cell, tuple[PeerId, ...], tuple[CellYield, ...]]] = []
    if led is not None and led.cell_input is not None:
        ways.append((led, (rounds.core.me, *above), (led.cell_input.cell, *rounds.told)))
    if joined is not None and joined.from_cell is None:
        ways.append((joined, above, rounds.told))
    for cell, leaders, cells in ways:
        encoded = cell.exchange.encoded
        if encoded is None:
            continue
        own = Contributor(peer=rounds.core.me, tokens=encoded.tokens, steps=encoded.steps)
        if is_included(own, leaders, cells, listed):
            return cell.group.key
    return None
