"""Sixty-four peers in one swarm, of which only the learners are stand-ins: groups, cells, and what killing some costs.

Each peer is a whole node with its own key, daemon, folder and streams; eight of them live in one process. A group has
room for 32, so the others bring their work through cells (docs/adr/0011). Two fragments have two groups at a time.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from tests.real.light.town import Line, Place, Town, Version

HOUSES, PEERS_EACH = 8, 8
PEERS = HOUSES * PEERS_EACH
FRAGMENTS = 2
WITH_CELLS = 2  # versions, before some are killed
GO_ON = 4  # versions at least, after that
MEGABYTES_PER_PEER_MAX = 150  # its daemon included
RUN_FILE = Path(__file__).parent / "light" / "run.toml"

# Not in `make test-slow`: on two cores with other work, sixty-four peers have not been seen to come to the end.
pytestmark = [pytest.mark.hours, pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(900)]


@dataclass(frozen=True, slots=True)
class Lived:
    """A swarm that has come to its end. `killed`: who led a cell at the time; `before`: what there was until then."""

    town: Town
    killed: Line
    before: frozenset[Place]

    @property
    def dead(self) -> frozenset[str]:
        """With the leader of that cell."""
        return frozenset(next(names for names in self.town.peers if self.killed["name"] in names))

    def versions(self, before: bool) -> dict[Place, Version]:
        return {place: one for place, one in self.town.versions.items() if (place in self.before) == before}


def show(lived: Lived) -> None:
    """What came of it, in order."""
    town = lived.town
    for place, one in sorted(town.versions.items(), key=lambda item: item[1].at):
        print(
            f"\n{one.at:6.1f} s {place}: roster {len(one.roster)}, cells {len(one.heads)}, "
            f"work of {len(one.workers)}, held by {len(one.holders)}{'' if place in lived.before else ', after'}",
            end="",
        )
    seconds = sum(town.usage.seconds.values())
    print(f"\nkilled: {lived.killed}; processor {seconds:.0f} s, memory {town.usage.memory_bytes / 1e9:.1f} GB")
    ends, count = town.ended.values(), len(town.versions)
    for what, total in (
        ("sent in rounds", sum(one["sent"] - one["answered"] for one in ends)),
        ("received", sum(one["received"] for one in ends)),
        ("answered of the DHT", sum(one["answered"] for one in ends)),
    ):
        print(f"{what}, per peer and version: {total / len(ends) / count / 1e3:.0f} KB")
    print("void:", [(one["fragment"], one["version"], one["attempt"], one["reason"]) for one in voids(town)])


def voids(town: Town) -> list[Line]:
    """Attempts that failed, each once."""
    found = {(one["fragment"], one["version"], one["attempt"]): one for one in town.logged("round_void")}
    return [found[key] for key in sorted(found)]


@pytest.fixture(scope="module")
def lived() -> Iterator[Lived]:
    with tempfile.TemporaryDirectory() as name:  # pytest's own is too long for sockets
        shutil.copy(RUN_FILE, Path(name) / RUN_FILE.name)
        town = Town(Path(name), HOUSES, PEERS_EACH)
        try:
            town.start()
            town.wait_until(lambda: sum(bool(one.heads) for one in town.versions.values()) >= WITH_CELLS)
            house, killed = town.wait("leads")
            town.kill(house)
            before = frozenset(town.versions)
            town.wait_until(lambda: town.ended.keys() >= set(town.living))
            found = Lived(town, killed, before)
            show(found)
            yield found
        finally:
            town.close()


def test_all_work_is_in_though_a_group_has_no_room_for_it(lived: Lived) -> None:
    for fragment in range(FRAGMENTS):
        whole = [one for place, one in lived.versions(before=True).items() if place[0] == fragment and one.heads]
        assert max(len(one.workers) for one in whole) > PEERS_PER_GROUP_MAX
        assert all(len(one.roster) <= PEERS_PER_GROUP_MAX for one in whole)


def test_all_hold_the_same(lived: Lived) -> None:
    assert all(len(one.digests) == 1 for one in lived.town.versions.values())
    ends = lived.town.ended
    assert ends.keys() == set(lived.town.living)
    assert len({(tuple(one["versions"]), tuple(one["digests"])) for one in ends.values()}) == 1


def test_versions_go_on_without_those_who_were_killed(lived: Lived) -> None:
    after = lived.versions(before=False)
    assert len(after) >= GO_ON
    last = max(after.values(), key=lambda one: one.at)
    assert len(last.workers) > PEERS_PER_GROUP_MAX
    assert not last.workers & lived.dead
    assert not any(one.minor for one in lived.town.versions.values())


def test_rounds_fail_only_while_peers_come_and_after_some_were_killed(lived: Lived) -> None:
    bases = {(fragment, version - 1) for fragment, version in lived.before if version > 1}
    assert not [one for one in voids(lived.town) if (one["fragment"], one["version"]) in bases]


def test_a_peer_takes_little_memory(lived: Lived) -> None:
    assert lived.town.usage.memory_bytes < MEGABYTES_PER_PEER_MAX * 1e6 * (PEERS + 1)
