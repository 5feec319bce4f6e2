"""Cells below a planned group: which peers are dealt to which cells, and what they cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.cells import assignment as protocol
from coordinator.cells.subordinates import GATHER_SHARE
from coordinator.run.manifest import PEERS_PER_GROUP_MAX, OuterSpec, PaceSpec
from coordinator.simulator.keys import virtual_peer_id
from peer.plan.cells import CellRound, CellWork, assign_cells
from peer.plan.cost import Workload
from peer.plan.population import Population

WORK = Workload(8e6, 1024, PaceSpec(round_seconds=20.0), OuterSpec())
FRAGMENT = WORK.result_bits


def people(count: int, mbit: float = 100.0) -> Population:
    lines = np.full(count, mbit * 1e6)
    return Population(lines, lines, np.full(count, 0.01), np.ones(count), np.ones(count, dtype=bool))


@given(st.integers(0, 1100), st.integers(1, 28), st.integers(0, 9))
@settings(max_examples=30)
def test_wards_are_dealt_out_as_the_protocol_does(wards: int, heads: int, seed: int) -> None:
    names = np.arange(heads, heads + wards)
    own, below, head_of = assign_cells(np.arange(heads), names, np.random.default_rng(seed))
    in_cells = [peer for peer in (*own.member, *below.member) if peer >= heads]
    assert set(in_cells) == {ward for ward, head in zip(names, head_of, strict=True) if head >= 0}
    assert set(below.leader) <= set(own.member)  # the leader of a cell below is in one above, too
    assert max(*own.members, *below.members, 0) <= PEERS_PER_GROUP_MAX
    for head in range(heads):
        mine = names[head_of == head]
        dealt = protocol.assign_cells([virtual_peer_id(int(one), 1) for one in mine])
        assert own.members[head] == 1 + len(dealt.own)
        assert sum(np.isin(below.leader, mine)) == len(dealt.below)


def played(peers: int, heads: int = 1, gone: int | None = None) -> CellWork:
    until = np.full(peers, np.inf)
    if gone is not None:
        until[gone] = 0.0
    cells = CellRound(WORK, people(peers), 1.0, until)
    return cells.play(np.arange(heads), np.arange(heads, peers), np.random.default_rng(1))


@pytest.mark.parametrize("wards", [5, 31, 32, 300])
def test_sent_bits_are_received_except_for_statements_to_all(wards: int) -> None:
    found = played(1 + wards)
    assert len(found.wards) == wards
    assert found.sent_bits.sum() == pytest.approx(found.received_bits.sum(), rel=0.02)
    assert found.received_bits.max() < 6 * FRAGMENT
    assert found.sent_bits[1:].max(initial=0.0) < (4 + 31) * FRAGMENT  # a leader gives the step to all of its cell


def test_a_second_tier_takes_another_exchange_and_gives_the_step_on_sooner() -> None:
    few, many = played(32), played(33)
    assert few.ready_seconds[0] > GATHER_SHARE * WORK.pace.round_seconds
    assert few.ready_seconds[0] + FRAGMENT / 100e6 < many.ready_seconds[0] < 3 * few.ready_seconds[0]
    assert many.supplied_seconds.max() < few.supplied_seconds.max()  # 2 and 15 steps up one line, not 31


def test_a_peer_that_is_gone_makes_its_cell_late_and_no_more() -> None:
    all_there, found = played(21), played(21, gone=7)
    assert set(all_there.wards) - set(found.wards) == {7}
    assert all_there.ready_seconds[0] < found.ready_seconds[0] < all_there.ready_seconds[0] + WORK.pace.round_seconds


def test_work_goes_through_heads_that_are_in_the_version() -> None:
    found = played(60, heads=4)
    through = found.through(np.array([0, 2]))
    assert set(through.head) == {0, 2}
    assert 0 < len(through.wards) < len(found.wards)
    assert set(through.wards) == {ward for ward, head in zip(found.wards, found.head, strict=True) if head in (0, 2)}
