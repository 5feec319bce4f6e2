"""The roster of a cell: peers without a seat that merge their work and contribute through a leader (docs/adr/0011).

The head that dealt out its wards signs it. Nothing here is certified: for the group above, a leader's contribution is
like any other. A leader that lies about its cell can do no more harm than any contributor.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from coordinator.chain.chain import Chain, beacon_order
from coordinator.core.actions import RoundKey
from coordinator.group.group import Group, OtherBaseError, reducing
from coordinator.wire.messages import CELL_HEIGHT_MAX, CellRoster, Ward
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement


@dataclass(frozen=True)
class CellGroup(Group):
    """A group in which only the leader gets the results, inspects them, and reduces missing or false ones again."""

    height: int = 1

    @cached_property
    def voters(self) -> frozenset[PeerId]:
        """The members that inspect results: only the leader."""
        return frozenset({self.leader})

    @property
    def head(self) -> PeerId:
        return PeerId(self.statement.sender)

    @property
    def tiers(self) -> int:
        """Number of cells that the work passes, this one included: a ward's cell passes it on to the head's cell."""
        return 1 if self.leader == self.head else CELL_HEIGHT_MAX

    def fits(self, other: CellGroup) -> bool:
        """Whether one peer may be in both cells: it leads one below the head's own, and contributes its work there."""
        return {(self.tiers, self.height), (other.tiers, other.height)} == {(1, 2), (2, 1)}

    def inputs_needed(self, left_out: int) -> int:
        """Return 0: a leader that chooses its cell's inputs can do no more harm than any contributor."""
        return 0

    def merged_needed(self, inputs: int, left_out: int) -> int:
        """Return ⌊2n/3⌋ of the input set."""
        return 2 * inputs // 3

    def reducer(self, partition: int, redone: Collection[int] = ()) -> PeerId:
        """Return the partition's reducer, or the leader if it is redone, so that no other reducer can spoil a cell."""
        return self.leader if partition in redone else self.reducers[partition]

    def receivers(self, reducer: PeerId) -> tuple[PeerId, ...]:
        return tuple(dict.fromkeys((self.leader, reducer)))


def _wards_of(roster: CellRoster, chain: Chain) -> dict[PeerId, Ward]:
    wards = {PeerId(ward.peer): ward for ward in roster.wards}
    if len(wards) != len(roster.wards):
        raise PeerError("lists a ward twice")
    if not wards.keys().isdisjoint(chain.convicted()):
        raise PeerError("lists a ward that this chain convicted")
    return wards


def read_cell(statement: Statement, chain: Chain) -> CellGroup:
    """Return the cell that a head's statement defines; raises PeerError with the reason if it is refused.

    Only the head has the requests of its wards. A peer that is listed against its will just does not commit.
    """
    context = statement.context
    if (context.run_id, context.kind) != (chain.rules.run_id, "cell"):
        raise PeerError("is no cell of this run")
    if (context.fragment, context.version) != (chain.fragment, chain.version):
        raise PeerError("is for another version")
    if context.group != chain.digest:
        raise OtherBaseError("is for another base")
    if statement.sender not in chain.newest_roster():
        raise PeerError("comes from nobody's head")
    roster, head = statement.read(CellRoster), PeerId(statement.sender)
    wards = _wards_of(roster, chain)
    if not statement.verify(chain.rules.verifier):
        raise PeerError("is not signed by the head")
    leader = PeerId(roster.leader)
    if leader not in wards:
        raise PeerError("lists no nonce of its leader")
    if roster.height > 1 and leader != head:
        raise PeerError("has others lead cells, but is not the head's own")
    members = beacon_order(chain.beacon(), wards)
    reducers = reducing(members, {one for one in wards if wards[one].dialable})
    if not reducers:
        raise PeerError("has nobody who could reduce")
    return CellGroup(
        key=RoundKey(chain.fragment, chain.version, statement.digest),
        attempt=0,
        revision=0,
        leader=leader,
        members=members,
        contributors=frozenset(wards),
        reducers=reducers,
        boots={peer: ward.boot for peer, ward in wards.items()},
        active=frozenset(),
        min_share=0.0,
        beacon=chain.beacon(),
        parent=chain.digest,
        statement=statement,
        height=roster.height,
    )
