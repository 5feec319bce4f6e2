"""Sixty-four peers in one swarm, whose learners alone are stand-ins: groups, cells, and the cost of churn.

Each peer is a whole node with its own key, daemon, folder and streams; up to eight live in one process. A group has
room for 32, so the others bring their work through cells (docs/adr/0011). Two fragments have two groups at a time.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

import pytest

from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from tests.real.light.town import Line, Place, Town, Version

SIZES = (4, 4, 8, 8, 8, 8, 8, 8, 8)  # of houses after the host's; the founders live in the first ones
PEERS = sum(SIZES)
MOVING = {1, 2}  # houses: one is killed, the other leaves, and both come back
FRAGMENTS = 2
WITH_CELLS = 2  # versions, before some are killed
AWAY = 2  # versions without the killed and leaving peers, before they come back
MEGABYTES_PER_PEER_MAX = 180  # its daemon included, and pages that houses share counted in each; 151 on quiet cores
RUN_FILE = Path(__file__).parent / "light" / "run.toml"

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(900)]


@dataclass(frozen=True, slots=True)
class Lived:
    """A swarm that has ended.

    `leads` is the cell whose leader was killed. `killed` and `left` are the peers that were away. `before` and
    `without` are the versions until then, and until they came back.
    """

    town: Town
    leads: Line
    killed: frozenset[str]
    left: frozenset[str]
    before: frozenset[Place]
    without: frozenset[Place]

    @property
    def after(self) -> frozenset[Place]:
        return frozenset(self.town.versions) - self.before - self.without

    def versions(self, places: frozenset[Place]) -> list[Version]:
        """Return these versions in order of time."""
        return sorted((self.town.versions[place] for place in places), key=lambda one: one.at)

    @property
    def workers_after(self) -> frozenset[str]:
        return frozenset[str]().union(*(one.workers for one in self.versions(self.after)))

    def phase(self, place: Place) -> str:
        return "before" if place in self.before else "without" if place in self.without else "after"


def show(lived: Lived) -> None:
    """Print the versions and totals, in order."""
    town = lived.town
    for place, one in sorted(town.versions.items(), key=lambda item: item[1].at):
        print(
            f"\n{one.at:6.1f} s {place}: roster {len(one.roster)}, cells {len(one.heads)}, "
            f"work of {len(one.workers)}, held by {len(one.holders)}, {lived.phase(place)}",
            end="",
        )
    seconds = sum(town.usage.seconds.values())
    print(f"\nkilled: {lived.leads}; processor {seconds:.0f} s, memory {town.usage.memory_bytes / 1e9:.1f} GB")
    ends, count = town.ended.values(), len(town.versions)
    for what, total in (
        ("sent in rounds", sum(one["sent"] - one["answered"] for one in ends)),
        ("received", sum(one["received"] for one in ends)),
        ("answered of the DHT", sum(one["answered"] for one in ends)),
    ):
        print(f"{what}, per peer and version: {total / len(ends) / count / 1e3:.0f} KB")
    print("void:", [(one["fragment"], one["version"], one["attempt"], one["reason"]) for one in voids(town)])


def voids(town: Town) -> list[Line]:
    """Return the failed attempts, each once."""
    found = {(one["fragment"], one["version"], one["attempt"]): one for one in town.logged("round_void")}
    return [found[key] for key in sorted(found)]


def full_without(away: Set[str], town: Town, before: Set[Place]) -> bool:
    """Whether a later version has more peers' work than a group has room for, and none of these in its roster."""
    absent = {town.ids[name] for name in away}
    later = [one for place, one in town.versions.items() if place not in before]
    return any(len(one.workers) > PEERS_PER_GROUP_MAX and not one.roster & absent for one in later)


@pytest.fixture(scope="module")
def lived() -> Iterator[Lived]:
    with tempfile.TemporaryDirectory() as name:  # pytest's own is too long for sockets
        shutil.copy(RUN_FILE, Path(name) / RUN_FILE.name)
        town = Town(Path(name), SIZES)
        try:
            town.start()
            town.wait_until(lambda: sum(bool(one.heads) for one in town.versions.values()) >= WITH_CELLS)
            killed, leads = town.wait("leads", MOVING)
            (left,) = MOVING - {killed}
            town.kill(killed)
            before = frozenset(town.versions)
            town.leave(left)
            away = frozenset(town.peers[killed] + town.peers[left])
            town.wait_until(lambda: full_without(away, town, before))
            without = frozenset(town.versions) - before
            for house in (killed, left):
                town.come_back(house)
            found = Lived(town, leads, frozenset(town.peers[killed]), frozenset(town.peers[left]), before, without)
            town.wait_until(lambda: found.killed & found.workers_after and found.left & found.workers_after)
            town.leave(*range(len(town.peers)))
            show(found)
            yield found
        finally:
            town.close()


def test_all_work_is_in_though_a_group_has_no_room_for_it(lived: Lived) -> None:
    for fragment in range(FRAGMENTS):
        whole = [
            one
            for place, one in lived.town.versions.items()
            if place in lived.before and place[0] == fragment and one.heads
        ]
        assert max(len(one.workers) for one in whole) > PEERS_PER_GROUP_MAX
        assert all(len(one.roster) <= PEERS_PER_GROUP_MAX for one in whole)


def test_all_hold_the_same(lived: Lived) -> None:
    assert all(len(one.digests) == 1 for one in lived.town.versions.values())
    ends = lived.town.ended
    assert ends.keys() == {name for names in lived.town.peers for name in names}
    held = [{*zip(range(FRAGMENTS), one["versions"], one["digests"], strict=True)} for one in ends.values()]
    states = frozenset[tuple[int, int, str]]().union(*held)
    assert len({(fragment, version) for fragment, version, _ in states}) == len(states)


def test_versions_go_on_without_those_who_are_away(lived: Lived) -> None:
    """The fixture has waited for a full one, while they were away."""
    assert full_without(lived.killed | lived.left, lived.town, lived.before | lived.after)
    assert not any(one.minor for one in lived.town.versions.values())


def test_a_peer_that_comes_back_brings_work_again(lived: Lived) -> None:
    assert lived.workers_after & lived.killed
    assert lived.workers_after & lived.left


def test_rounds_fail_only_while_peers_come_and_after_some_are_away(lived: Lived) -> None:
    bases = {(fragment, version - 1) for fragment, version in lived.before if version > 1}
    assert not [one for one in voids(lived.town) if (one["fragment"], one["version"]) in bases]


def test_a_peer_takes_little_memory(lived: Lived) -> None:
    assert lived.town.usage.memory_bytes < MEGABYTES_PER_PEER_MAX * 1e6 * (PEERS + 1)
