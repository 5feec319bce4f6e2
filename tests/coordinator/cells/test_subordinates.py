"""A head's wards, and how it deals them out to cells, with a limit on each network's share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.cells.assignment import WARDS_MAX, CellAssignment, assign_cells, assign_within_limits
from coordinator.cells.subordinates import Subordinates
from coordinator.core.actions import Send
from coordinator.run.manifest import RunConfig, TrustSpec
from coordinator.simulator.keys import virtual_peer_id
from coordinator.wire.messages import CellRoster, WardNote
from dht.identity import PeerId
from dht.statement import Statement
from tests.coordinator.builders import Club, boot

NAMES = [virtual_peer_id(number, 1) for number in range(WARDS_MAX + 40)]
HEAD = virtual_peer_id(0, 2)
CROWD, OTHERS = 300, 40  # keys of one network, and keys with a network each
CLUB = Club.of(4 + CROWD + OTHERS, founders=4, trust=TrustSpec(network_share=0.25))
CHAIN = CLUB.chain(0, [CLUB.certify(CLUB.chain(), range(4))])
ASKED = WardNote(fragment=0, base=CHAIN.digest, boot=boot(0), dialable=True)
ONE, FIRST, OTHER = b"one network", range(4, 4 + CROWD), range(4 + CROWD, 4 + CROWD + OTHERS)


def cells_of(assigned: CellAssignment) -> Iterable[tuple[PeerId, ...]]:
    """Yield the members of each cell, without the head of the uppermost."""
    yield assigned.own
    yield from ((leader, *wards) for leader, wards in assigned.below.items())


@given(
    st.lists(st.integers(0, 6), max_size=140),
    st.sampled_from([0.1, 0.25, 0.5, 0.9]),
    st.integers(0, 6),
)
def test_no_cell_has_more_than_its_share_of_one_network(networks: list[int], share: float, of_head: int) -> None:
    """0 stands for no public network, which has no limit."""
    order = NAMES[: len(networks)]
    known = {peer: frozenset({bytes([one])} if one else ()) for peer, one in zip(order, networks, strict=True)}
    known[HEAD] = frozenset({bytes([of_head])} if of_head else ())
    assigned = assign_within_limits(order, HEAD, share, known)
    for index, members in enumerate(cells_of(assigned)):
        whole = (HEAD, *members) if index == 0 else members
        count = Counter(network for peer in whole for network in known[peer])
        assert all(number <= max(1, share * len(whole)) for number in count.values())
    kept = {peer for members in cells_of(assigned) for peer in members}
    assert {peer for peer in order if not known[peer]} <= kept


@given(st.integers(0, len(NAMES)))
def test_without_a_bound_everybody_is_dealt_a_cell(count: int) -> None:
    networks = dict.fromkeys((HEAD, *NAMES), frozenset({b"one"}))
    assert assign_within_limits(NAMES[:count], HEAD, 1.0, networks) == assign_cells(NAMES[:count])


def wards_of(*numbers: int) -> Subordinates:
    """Make the wards of head 0, asked by these peers in order."""
    core = CLUB.core(0)
    core.origins = dict.fromkeys(CLUB.peers(FIRST), ONE) | {peer: peer.encode() for peer in CLUB.peers(OTHER)}
    wards = Subordinates(core, CHAIN)
    for number in numbers:
        wards.add(CLUB.ids[number], ASKED)
    return wards


def test_many_keys_of_one_network_leave_room_to_others() -> None:
    wards = wards_of(*FIRST, *OTHER)
    assert len(wards.gathered) == WARDS_MAX // 4 + OTHERS
    rosters = [
        one.message for one in wards.assign(ASKED) if isinstance(one, Send) and isinstance(one.message, Statement)
    ]
    cells = [[ward.peer for ward in one.read(CellRoster).wards] for one in rosters]
    assert {peer for cell in cells for peer in cell} >= CLUB.peers(OTHER)
    assert all(len(CLUB.peers(FIRST).intersection(cell)) <= max(1, (1 + len(cell)) // 4) for cell in cells)
    assert wards.gathered == {}


def test_a_ward_that_asks_again_takes_no_second_place() -> None:
    wards = wards_of(*FIRST, FIRST[0])
    assert len(wards.gathered) == WARDS_MAX // 4


@pytest.mark.parametrize(
    ("text", "uses"),
    [("", True), ("[trust]\nnewcomers_share = 0.25", False), ('[data]\norder = "passes"', False)],
)
def test_cells_are_for_runs_in_which_nobody_has_to_know_who_is_new_or_whose_work_it_is(text: str, uses: bool) -> None:
    assert RunConfig.parse(text, "run.toml").uses_cells is uses


def test_whether_a_run_has_cells_is_not_for_its_file_to_say() -> None:
    """The setting stays in the bytes of runs that have it, and so in their ids."""
    said = RunConfig.parse("[pace]\ncells = true", "run.toml")
    assert said.uses_cells
    assert said.to_wire() != RunConfig().to_wire()
    assert RunConfig.from_wire(said.to_wire()) == said
