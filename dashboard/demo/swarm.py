"""The demo as an observer would show it at one virtual time: a simulated story and an invented crowd."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from coordinator.views.network_view import (
    EVALUATIONS_MAX,
    HISTORY_MAX,
    PEER_HISTORY_MAX,
    BanView,
    CreditView,
    FragmentView,
    HistoryPoint,
    NetworkView,
    RoundView,
    RunFacts,
    TapeEvent,
)
from dashboard.demo.cast import Cast
from dashboard.demo.crowd import DemoCrowd, make_crowd
from dashboard.demo.ledger import PARAMETERS, TOKENS_PER_STEP, DemoLedger
from dashboard.demo.people import Person, make_people
from dashboard.demo.story import BAN_REASON, CORE_PEERS_MAX, CORE_PEERS_MIN, PACE, Story
from dht.errors import UsageError
from dht.identity import PeerId

PEERS_MIN, PEERS_MAX = CORE_PEERS_MIN, 2000
SIMULATION_EPOCH = 1e9  # Unix seconds of virtual time 0 inside `coordinator.simulator`
TICK_SECONDS = 1.0
HISTORY_TICKS = 2
VERSIONS_TARGET = 600
ROUNDS_SHOWN = 64
SAMPLE = (
    "Once there was a small boat that wanted to see the other side of the lake. "
    "It asked the wind, and the wind said yes."
)


@dataclass
class DemoSwarm:
    """One seed of the demo. Virtual time 0 is `epoch` in Unix seconds."""

    seed: int
    count: int
    epoch: float
    people: tuple[Person, ...] = field(init=False)
    story: Story = field(init=False)
    crowd: DemoCrowd = field(init=False)
    ledger: DemoLedger = field(init=False)
    cast: Cast = field(init=False)
    history: deque[HistoryPoint] = field(default_factory=lambda: deque(maxlen=HISTORY_MAX))
    _ticks: int = 0

    def __post_init__(self) -> None:
        if not PEERS_MIN <= self.count <= PEERS_MAX:
            raise UsageError(f"a demo has {PEERS_MIN} to {PEERS_MAX} peers, not {self.count}")
        self.people = make_people(self.count, self.seed)
        core = self.people[: max(CORE_PEERS_MIN, min(self.count * 3 // 4, CORE_PEERS_MAX))]
        self.story = Story(core, self.seed)
        self.crowd = make_crowd(self.people[len(core) :], self.seed)
        names = {peer.me: one.peer_id for peer, one in zip(self.story.world.peers, core, strict=True)}
        self.ledger = DemoLedger(names, self.crowd, self.epoch)
        self.cast = Cast(self.story, self.crowd, self.ledger)
        self._tick()

    def advance(self, until: float) -> None:
        """Let virtual time pass up to `until`; the number of calls makes no difference."""
        self.story.world.run(max(0.0, until - self.story.now))

    def _tick(self) -> None:
        """Observe the story, once a virtual second."""
        now = self.story.now
        rounds = self.story.recorder.rounds()
        for one in rounds[-ROUNDS_SHOWN:]:
            self.crowd.assign(one.fragment, one.version, now)
        leaders = {one.digest: PeerId(one.leader) for one in rounds if one.digest}
        for heard in self.story.recorder.take_new():
            leader = leaders.get(heard.certificate.digest.hex(), PeerId(heard.certificate.outcome.roster[0]))
            self.ledger.add(heard, self.ledger.names[leader])
        self.cast.look(now)
        if self._ticks % HISTORY_TICKS == 0:
            self.history.append(self._point(now))
        self._ticks += 1
        self.story.world.clock.after(TICK_SECONDS, self._tick)

    def _point(self, now: float) -> HistoryPoint:
        sent = self.ledger.sent.total()
        speeds = self.cast.speeds(now)
        return HistoryPoint(
            unix_seconds=self.epoch + now,
            versions=self.ledger.versions,
            tokens_certified=self.ledger.tokens,
            tokens_per_second=self.ledger.tokens_per_second(now),
            trained_tokens_per_second=speeds.training * TOKENS_PER_STEP,
            capacity_tokens_per_second=speeds.known * TOKENS_PER_STEP,
            peers_live=speeds.peers_live,
            peers_known=speeds.peers_known,
            bytes_sent=sent,
            bytes_received=sent,
            learners_live=speeds.learners_live,
        )

    # -- the view

    def view(self) -> NetworkView:
        """Return the view of the whole demo at the present virtual time."""
        now = self.story.now
        rounds = self._rounds()
        return NetworkView(
            run_id=self.story.world.manifest.run_id.hex(),
            name="demo",
            demo=True,
            note="a simulated network: nothing here is real",
            taken_unix_seconds=self.epoch + now,
            network_seen_unix_seconds=self.epoch + now,
            run=_facts(),
            peers=self.cast.views(now, rounds, min(PEER_HISTORY_MAX, max(12, 20_000 // self.count))),
            fragments=self._fragments(),
            evaluations=tuple(self.ledger.evaluations[-EVALUATIONS_MAX:]),
            evaluator=self.people[0].peer_id,
            sample=SAMPLE,
            history=tuple(self.history),
            certificates=tuple(self.ledger.certificates)[-128:],
            rounds=rounds,
            bans=self._bans(),
            credit=self._credit(),
            events=dict(sorted(self.story.recorder.events.items())),
            tape=self._tape(),
        )

    def _fragments(self) -> tuple[FragmentView, ...]:
        newest = {one.fragment: one for one in self.ledger.certificates}
        return tuple(
            FragmentView(version=one.version, head=one.digest, certified_unix_seconds=one.unix_seconds)
            if (one := newest.get(index)) is not None
            else FragmentView()
            for index in range(PACE.fragments)
        )

    def _rounds(self) -> tuple[RoundView, ...]:
        """Return the newest rounds with shown names instead of simulated keys, and with the crowd."""
        names, shift = self.ledger.names, self.epoch - SIMULATION_EPOCH
        shown = []
        for one in self.story.recorder.rounds()[-ROUNDS_SHOWN:]:
            extras = tuple(extra.person.peer_id for extra in self.crowd.members(one.fragment, one.version))
            phases = tuple(
                phase.model_copy(
                    update={
                        "start_unix_seconds": phase.start_unix_seconds + shift,
                        "end_unix_seconds": None if phase.end_unix_seconds is None else phase.end_unix_seconds + shift,
                    }
                )
                for phase in one.phases
            )
            changed = {
                "leader": names[PeerId(one.leader)],
                "reporter": names[PeerId(one.reporter)],
                "members": (*(names[PeerId(member)] for member in one.members), *(extras if one.members else ())),
                "late": tuple(names[PeerId(member)] for member in one.late),
                "phases": phases,
            }
            shown.append(one.model_copy(update=changed))
        return tuple(shown)

    def _bans(self) -> tuple[BanView, ...]:
        caught = self.story.caught
        if caught is None:
            return ()
        return (
            BanView(
                peer_id=self.people[caught.number].peer_id,
                reason=BAN_REASON,
                evidence=tuple(statement.to_wire().hex() for statement in caught.evidence),
                verified=True,
                unix_seconds=self.epoch + caught.at,
            ),
        )

    def _credit(self) -> tuple[CreditView, ...]:
        people = {one.peer_id: one for one in self.people}
        found = [
            CreditView(
                peer_id=peer,
                name=people[peer].name,
                team=team_of(people[peer], self.seed),
                tokens=self.ledger.credit(peer),
                versions=self.ledger.included[peer],
                last_unix_seconds=self.ledger.last_at[peer],
            )
            for peer in self.ledger.credited
        ]
        return tuple(sorted(found, key=lambda one: (-one.tokens, one.peer_id)))

    def _tape(self) -> tuple[TapeEvent, ...]:
        names = self.ledger.names
        return tuple(
            TapeEvent(
                unix_seconds=self.epoch + one.at,
                event=one.event,
                peer_id=names.get(one.peer, ""),
                fragment=one.fragment,
                version=one.version,
                detail=one.detail[:240],
            )
            for one in self.story.recorder.tape
        )


def team_of(person: Person, seed: int) -> str:
    """Return a person's invented team; a third have none."""
    return Random(f"team {person.peer_id} of {seed}").choice(("", "night shift", "university lab"))


def _facts() -> RunFacts:
    return RunFacts(
        fragments=PACE.fragments,
        steps_per_version=PACE.steps_per_version,
        versions_target=VERSIONS_TARGET,
        parameters=PARAMETERS,
        tokens_per_step=TOKENS_PER_STEP,
        contribution_codec="int4",
        merge="rda",
        presence_lifetime_seconds=PACE.presence_lifetime_seconds,
        about=(
            ("about", "A model of short stories"),
            ("purpose", "to show what a run looks like; none of it is real"),
            ("run by", "Ann, ann@example.org"),
        ),
        admission="invite",
    )
