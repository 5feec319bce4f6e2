"""Cells below a group (docs/adr/0011): the path of every peer's work, its time, and its cost.

All cells of a round are computed at once, as flat arrays. Heads and wards are drawn and assigned as in the protocol,
then every tier commits, scatters, merges and is spot-checked. Left out: the bytes of opened leaves,
and cells whose leader or reducers die meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.cells.assignment import CELL_PEERS, WARDS_MAX, WARDS_PER_CELL_MAX
from coordinator.cells.cell import SLACK_SHARE
from coordinator.cells.subordinates import GATHER_SHARE
from coordinator.core.timeline import BUNDLE_SHARE, RECHECK_SHARE
from peer.plan.cost import (
    ENCODED_PER_SECOND,
    HANDLE_SECONDS,
    MERGED_PER_SECOND,
    PER_ROOT_BYTES,
    STATEMENT_BYTES,
    Peers,
    Workload,
    transfer_seconds,
)
from peer.plan.population import Flags, Floats, Population

LOOKS = 2  # to open a few leaves: a request and an answer


@dataclass(frozen=True, slots=True)
class Tier:
    """Cells of one height. `member[i]` is in cell `cell[i]`, the leader included; cells are numbered from 0."""

    leader: Peers
    member: Peers
    cell: Peers

    @property
    def members(self) -> Peers:
        """Number of members of each cell."""
        return np.bincount(self.cell, minlength=len(self.leader))


@dataclass(frozen=True, slots=True)
class CellWork:
    """The work that heads bring. Seconds count from when the fragment was due; bits are those of every peer."""

    heads: Peers
    ready_seconds: Floats  # per head, until it asks into the group
    wards: Peers  # those whose work is included
    head: Peers  # of each ward
    snapshot_seconds: Floats  # of each ward, until its snapshot
    supplied_seconds: Floats  # of each ward, from the certificate until it has the step
    sent_bits: Floats
    received_bits: Floats

    def through(self, heads: Peers) -> CellWork:
        """Return the work that these heads bring; the other heads have spent their bits in vain."""
        here = np.isin(self.head, heads)
        parts = self.wards[here], self.head[here], self.snapshot_seconds[here], self.supplied_seconds[here]
        return CellWork(self.heads, self.ready_seconds, *parts, self.sent_bits, self.received_bits)


def assign_cells(heads: Peers, wards: Peers, rng: np.random.Generator) -> tuple[Tier, Tier, Peers]:
    """Return the cells of heads and, below heads with many wards, of wards; also each ward's head index or −1."""
    drawn = rng.integers(0, len(heads), len(wards))
    head_of, own, below = np.full(len(wards), -1), [], []
    for index, head in enumerate(heads):
        places = np.flatnonzero(drawn == index)[:WARDS_MAX]
        head_of[places] = index
        mine = wards[places]
        cells = 0
        if len(mine) > WARDS_PER_CELL_MAX:
            cells = min(-(-len(mine) // CELL_PEERS), WARDS_PER_CELL_MAX)
            below += [mine[cell::cells] for cell in range(cells)]
        own.append(np.concatenate([[head], mine[:cells] if cells else mine]))
    return _tier(own), _tier(below), head_of


def _tier(cells: Sequence[Peers]) -> Tier:
    """Return the tier of these cells; each cell's first member leads it."""
    flat = np.concatenate(cells) if cells else np.zeros(0)
    sizes = np.array([len(one) for one in cells], dtype=np.intp)
    leaders = np.array([one[0] for one in cells], dtype=np.intp)
    return Tier(leaders, flat.astype(np.intp), np.repeat(np.arange(len(cells)), sizes))


class CellRound:
    """The cells of one round: call `play`."""

    def __init__(self, work: Workload, people: Population, share: float, until: Floats) -> None:
        """`share` of every line is this round's; `until` is the seconds from now until each peer leaves."""
        self.work, self.people, self.share, self.until = work, people, share, until
        self.sent, self.received = np.zeros(len(people)), np.zeros(len(people))

    def play(self, heads: Peers, wards: Peers, rng: np.random.Generator) -> CellWork:
        """Gather, assign and merge the wards' work."""
        own, below, head_of = assign_cells(heads, wards, rng)
        begins = GATHER_SHARE * self.work.pace.round_seconds
        steps = rng.random(len(self.people)) / self.people.steps_per_second
        encoded = np.full(len(self.people), begins) + steps + self.work.elements / ENCODED_PER_SECOND
        absent = self.until <= encoded
        if len(below.leader):
            merged, here = self._tier_seconds(below, encoded, absent, begins, height=1)
            encoded[below.leader] = merged + self.work.elements / ENCODED_PER_SECOND
            absent[below.member] |= ~here
        ready, here = self._tier_seconds(own, encoded, absent, begins, height=2 if len(below.leader) else 1)
        lost = absent.copy()
        lost[own.member] |= ~here
        lost[below.member] |= lost[below.leader[below.cell]]
        supplied = self._supply(own, below)
        included = (head_of >= 0) & ~lost[wards]
        return CellWork(
            heads,
            ready,
            wards[included],
            heads[head_of[included]],
            begins + steps[wards[included]],
            supplied[wards[included]],
            self.sent,
            self.received,
        )

    def _tier_seconds(
        self, tier: Tier, encoded: Floats, absent: Flags, begins: float, height: int
    ) -> tuple[Floats, Flags]:
        """Return when each cell is merged and checked, and which members' work is included."""
        people, work, cell = self.people, self.work, tier.cell
        hop = people.latency_seconds[tier.member] + people.latency_seconds[tier.leader[cell]]
        committed = encoded[tier.member] + 2 * hop + HANDLE_SECONDS  # the roster comes first
        patient_until = self._patience(tier, committed, begins, height)
        here = ~absent[tier.member] & (committed <= patient_until[cell])
        bundled = _most(cell, np.where(here, committed, 0.0), len(tier.leader))
        missed = np.bincount(cell, weights=~here, minlength=len(tier.leader)) > 0
        bundled = np.where(missed, np.maximum(bundled, patient_until), bundled)
        inputs, own = self._scattered(tier, here)
        merging = inputs[0] * work.elements * own / MERGED_PER_SECOND
        lasts = self._seconds(tier.member, inputs[1], inputs[2], hop, inputs[0])
        merged = _most(cell, np.where(here, lasts + 2 * hop + HANDLE_SECONDS + merging, 0.0), len(tier.leader))
        return bundled + merged + self._returned(tier, own, hop), here

    def _patience(self, tier: Tier, committed: Floats, begins: float, height: int) -> Floats:
        """Return until when each leader waits for silent members (`coordinator.cells.cell.Cell.commit_by`)."""
        whole = self.work.pace.round_seconds
        order = np.lexsort((committed, tier.cell))
        first = np.concatenate([[0], np.cumsum(tier.members)[:-1]])
        two_thirds = committed[order][first + -(-2 * tier.members // 3) - 1]
        steps = _most(tier.cell, 1 / self.people.steps_per_second[tier.member], len(tier.leader))
        patient = np.maximum(2 * two_thirds - begins, begins + steps) + SLACK_SHARE * whole
        return np.minimum(patient, begins + (BUNDLE_SHARE + RECHECK_SHARE * (height - 1)) * whole)

    def _scattered(self, tier: Tier, here: Flags) -> tuple[tuple[Floats, Floats, Floats], Floats]:
        """Return each member's inputs, bits of parts sent and received, and the share of a fragment that it reduces."""
        cells, bits = len(tier.leader), self.work.contribution_bits
        count = np.bincount(tier.cell, weights=here, minlength=cells).astype(float)[tier.cell]
        reduces = here & self.people.dialable[tier.member]
        reducers = np.maximum(np.bincount(tier.cell, weights=reduces, minlength=cells), 1.0)[tier.cell]
        own = reduces / reducers
        up, down = np.where(here, (1 - own) * bits, 0.0), own * np.maximum(count - 1, 0) * bits
        statements = 8 * (STATEMENT_BYTES + PER_ROOT_BYTES * reducers)
        np.add.at(self.sent, tier.member, up + statements)
        np.add.at(self.received, tier.member, down + count * statements)
        np.add.at(self.sent, tier.leader, np.bincount(tier.cell, count * statements, cells))  # all get all statements
        return (count, up, down), own

    def _returned(self, tier: Tier, own: Floats, hop: Floats) -> Floats:
        """Return, per cell, the seconds for results to reach the leader, and for its spot check."""
        bits, leads = self.work.result_bits, tier.member == tier.leader[tier.cell]
        up, down = np.where(leads, 0.0, own * bits), np.where(leads, (1 - own) * bits, 0.0)
        np.add.at(self.sent, tier.member, up)
        np.add.at(self.received, tier.member, down)
        sending = self._seconds(tier.member, up, down, hop, tier.members[tier.cell])
        return _most(tier.cell, sending + (1 + LOOKS) * (hop + HANDLE_SECONDS), len(tier.leader))

    def _supply(self, own: Tier, below: Tier) -> Floats:
        """Return seconds from the certificate until each peer has the step: leaders send it to all members at once."""
        seconds = np.zeros(len(self.people))
        for tier in (own, below):
            others = tier.member != tier.leader[tier.cell]
            leader, member = tier.leader[tier.cell][others], tier.member[others]
            given = (tier.members - 1)[tier.cell][others] * self.work.result_bits
            hop = self.people.latency_seconds[leader] + self.people.latency_seconds[member]
            sending = transfer_seconds(given, self.people.up[leader] * self.share, 2 * hop)
            taking = transfer_seconds(self.work.result_bits, self.people.down[member] * self.share, 2 * hop)
            seconds[member] = seconds[leader] + np.maximum(sending, taking) + 3 * hop + HANDLE_SECONDS
            np.add.at(self.sent, leader, self.work.result_bits)
            np.add.at(self.received, member, self.work.result_bits)
        return seconds

    def _seconds(self, member: Peers, up: Floats, down: Floats, hop: Floats, inputs: Floats | Peers) -> Floats:
        """Return seconds for sending and receiving at once, over a connection to each other member."""
        others = np.maximum(inputs - 1, 1)
        sending = transfer_seconds(up, self.people.up[member] * self.share, 2 * hop, others)
        return np.maximum(sending, transfer_seconds(down, self.people.down[member] * self.share, 2 * hop, others))


def _most(cell: Peers, values: Floats, cells: int) -> Floats:
    """Return the largest value of each cell."""
    found = np.zeros(cells)
    np.maximum.at(found, cell, values)
    return found
