"""The risk of groups drawn at random: the table of the threat analysis, and what must hold for any numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.plan.risk import HEADS, at_least, capture, capture_cells, tiers

TABLE = {  # hostile share: n=4 third, n=8 third and half, n=16 third and half (BTARD's setting, independent draws)
    0.05: (1.4e-2, 5.8e-3, 3.7e-4, 8.1e-5, 3.5e-7),
    0.10: (5.2e-2, 3.8e-2, 5.0e-3, 3.3e-3, 6.1e-5),
    0.20: (1.8e-1, 2.0e-1, 5.6e-2, 8.2e-2, 7.0e-3),
    0.30: (3.5e-1, 4.5e-1, 1.9e-1, 3.4e-1, 7.4e-2),
}


@pytest.mark.parametrize("share", TABLE)
def test_the_table_of_group_composition(share) -> None:
    eight, sixteen = capture(8, share), capture(16, share)
    found = (capture(4, share).third, eight.third, eight.half, sixteen.third, sixteen.half)
    assert [f"{one:.1e}" for one in found] == [f"{one:.1e}" for one in TABLE[share]]


def test_a_small_swarm_is_drawn_without_putting_back() -> None:
    assert capture(4, 0.25, peers=4).third == 0.0  # one hostile peer of four is never two
    assert capture(8, 0.5, peers=8).half == 1.0
    assert at_least(16, 6, 0.1, peers=100_000) == pytest.approx(at_least(16, 6, 0.1), rel=0.01)


@given(st.integers(1, 32), st.integers(0, 60), st.floats(0, 0.9))
def test_a_draw_is_a_probability_and_falls_with_what_is_asked(members, more, share) -> None:
    peers = members + more
    chances = [at_least(members, k, share, peers) for k in range(members + 1)]
    assert chances[0] == pytest.approx(1.0)
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(chances))


def test_a_head_is_steered_by_itself_or_by_its_cell() -> None:
    found = capture_cells(33, 0.1)  # cells of a head and one ward: either is half of it
    assert found.cell == pytest.approx(1 - 0.9**2)
    assert found.head == pytest.approx(0.1 + 0.9 * found.cell)
    assert found.group == pytest.approx(at_least(HEADS, HEADS // 2, found.head))


def test_two_tiers_can_be_steered_at_both() -> None:
    assert tiers(896) == 1
    assert tiers(897) == 2
    found = capture_cells(10_000, 0.1)
    leaders = 0.1 + 0.9 * capture(20, 0.1).half
    assert found.cell == capture(20, 0.1).half
    assert found.head == pytest.approx(0.1 + 0.9 * capture(19, leaders).half)


@given(st.integers(33, 20_000), st.floats(0, 0.5), st.floats(0, 0.4))
def test_more_hostile_peers_steer_more(peers, share, more) -> None:
    less, found = capture_cells(peers, share), capture_cells(peers, share + more)
    for name in ("cell", "head", "group"):
        assert -1e-12 <= getattr(less, name) <= getattr(found, name) + 1e-9 <= 1 + 2e-9
    assert found.head >= share + more
