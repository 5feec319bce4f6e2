"""The script of the demo: joins, crashes, a partition, and a peer that contradicts itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from coordinator.run.manifest import PaceSpec
from coordinator.simulator.network import LinkFaults
from coordinator.simulator.observer import EventCounter
from coordinator.simulator.peer import VirtualPeer
from coordinator.wire.messages import Commit
from dashboard.demo.people import Person
from dashboard.demo.recorder import Happened, RecordedWorld, Recorder
from dht.identity import PeerId
from dht.statement import Statement, digest_of, make_statement

CORE_PEERS_MIN, CORE_PEERS_MAX = 4, 8  # simulated in full; the others are the crowd
FOUNDERS = 4  # besides the host, which does not train
STEPS_PER_SECOND = 2.0  # for a device of speed 1
PACE = PaceSpec(fragments=6, steps_per_version=24, overlap=2, quorum=3, min_group=2, round_seconds=8.0)
LINKS = LinkFaults(delay_min_seconds=0.02, delay_max_seconds=0.15)

HOST = 0
JOIN_SECONDS = 7.0  # between two late joins
FIRST_CRASH_SECONDS, CRASH_EVERY_SECONDS = 40.0, 60.0
DOWN_SECONDS = (14.0, 30.0)
FIRST_PARTITION_SECONDS, PARTITION_EVERY_SECONDS, PARTITION_SECONDS = 72.0, 240.0, 20.0
BAN_SECONDS = 85.0
BAN_REASON = "signed two different commitments in one group"


@dataclass(frozen=True)
class Caught:
    """A peer that contradicted itself by two signed statements that cannot both be honest."""

    number: int
    at: float
    evidence: tuple[Statement, Statement]


@dataclass
class Story:
    """A simulated swarm with scripted events."""

    people: Sequence[Person]
    seed: int
    recorder: Recorder = field(default_factory=Recorder)
    world: RecordedWorld = field(init=False)
    draw: Random = field(init=False)
    caught: Caught | None = None

    def __post_init__(self) -> None:
        self.draw = Random(f"story {self.seed}")
        rates = [STEPS_PER_SECOND * one.speed for one in self.people]
        founders = range(min(FOUNDERS + 1, len(self.people)))
        self.world = RecordedWorld(PACE, rates, founders, self.seed, LINKS, frozenset({HOST}))
        self.world.watcher = EventCounter()  # nothing is judged here
        self.world.recorder = self.recorder
        for number in range(len(self.people)):
            late = max(0, number - FOUNDERS)
            self._at(0.2 + JOIN_SECONDS * late + 0.2 * number, partial(self._start, number))
        self._at(FIRST_CRASH_SECONDS, self._crash_somebody)
        if len(self.people) > FOUNDERS + 2:
            self._at(FIRST_PARTITION_SECONDS, self._partition)
        if len(self.people) > FOUNDERS:
            self._at(BAN_SECONDS, self._catch)

    @property
    def now(self) -> float:
        return self.world.clock.now

    @property
    def attacker(self) -> int:
        return len(self.people) - 1

    def _at(self, seconds: float, call: Callable[[], None]) -> None:
        self.world.clock.after(seconds - self.now, call)

    def _tell(self, event: str, number: int, detail: str = "") -> None:
        self.recorder.hear(Happened(self.now, event, self.world.peers[number].me, detail=detail))

    def _start(self, number: int) -> None:
        peer = self.world.peers[number]
        if not peer.alive and (self.caught is None or self.caught.number != number):
            peer.start()
            self._tell("peer_joined" if peer.life == 1 else "peer_returned", number)

    def _learners(self) -> list[int]:
        """Return the live learners that a fault may hit, never the peer that will be caught."""
        return [n for n, peer in enumerate(self.world.peers) if peer.alive and n not in (HOST, self.attacker)]

    def _crash_somebody(self) -> None:
        """Crash a peer in the middle of a round that it leads; it comes back after a while."""
        leading = {one.leader for one in self.recorder.rounds() if one.outcome == "running" and one.members}
        dying = [number for number in self._learners() if self.world.peers[number].me in leading]
        if not dying or len(self._learners()) < 3:
            self._at(self.now + 0.5, self._crash_somebody)
            return
        self.world.peers[dying[0]].checkpoint()
        self.world.crash(self.world.peers[dying[0]])
        self._tell("peer_gone", dying[0])
        self._at(self.now + self.draw.uniform(*DOWN_SECONDS), partial(self._start, dying[0]))
        self._at(self.now + CRASH_EVERY_SECONDS, self._crash_somebody)

    def _partition(self) -> None:
        apart = self.draw.sample(self._learners(), 2)
        for number in apart:
            self.world.network.sides[self.world.peers[number].me] = 1
        self._tell("partition", apart[0], "two peers cannot reach the others")
        self._at(self.now + PARTITION_SECONDS, self._heal)
        self._at(self.now + PARTITION_EVERY_SECONDS, self._partition)

    def _heal(self) -> None:
        self.world.network.heal()
        self.recorder.hear(Happened(self.now, "partition_healed", PeerId("")))

    def _catch(self) -> None:
        """Make the last peer sign a second commitment beside its newest one."""
        peer = self.world.peers[self.attacker]
        said = self.recorder.commits.get(peer.me)
        if said is None or not peer.alive:
            self._at(self.now + 5.0, self._catch)
            return
        self.caught = Caught(self.attacker, self.now, contradiction(self.people[self.attacker], said))
        self._tell("peer_banned", self.attacker, BAN_REASON)
        self.world.crash(peer)

    def is_heard(self, peer: VirtualPeer) -> bool:
        """Whether the host's side can hear this peer now."""
        return peer.alive and self.world.network.sides.get(peer.me, 0) == 0


def contradiction(person: Person, said: Statement) -> tuple[Statement, Statement]:
    """Return a commitment signed by this person, and another one for the same group."""
    commit = said.read(Commit)
    other = commit.model_copy(update={"part_roots": tuple(digest_of(b"another", root) for root in commit.part_roots)})
    first, second = (make_statement(person.identity, said.context, body) for body in (commit, other))
    return first, second
