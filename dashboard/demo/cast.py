"""The peers of the demo as an observer sees them: simulated ones by their acts, the crowd by its script."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from coordinator.views.network_view import PEER_HISTORY_MAX, PHASE_WORDS, PeerPoint, PeerView, RoundView
from dashboard.demo.crowd import DemoCrowd, Extra
from dashboard.demo.ledger import TOKENS_PER_STEP, DemoLedger, loss_after
from dashboard.demo.people import Person
from dashboard.demo.story import HOST, PACE, Story

POINT_SECONDS = 5.0


@dataclass(frozen=True)
class TotalSpeeds:
    """Sums over all peers: inner steps per second of live and of known ones, the numbers of both, and of learners."""

    training: float
    known: float
    peers_live: int
    peers_known: int
    learners_live: int


@dataclass
class Sight:
    """The last observation of a simulated peer."""

    at: float
    steps: int = 0
    versions: tuple[int, ...] = (0,) * PACE.fragments
    catching_up: bool = False
    points: deque[PeerPoint] = field(default_factory=lambda: deque(maxlen=PEER_HISTORY_MAX))


@dataclass
class Cast:
    """Observes the story once a second, and makes the views of its peers."""

    story: Story
    crowd: DemoCrowd
    ledger: DemoLedger
    sights: dict[int, Sight] = field(default_factory=dict)

    def look(self, now: float) -> None:
        """Note the steps and versions of every peer that can be heard."""
        for number, peer in enumerate(self.story.world.peers):
            if self.story.is_heard(peer) and peer.engine is not None:
                sight = self.sights.setdefault(number, Sight(now))
                sight.at, sight.steps = now, peer.tensors.learner.steps(now)
                sight.versions = tuple(machine.held_chain.version for machine in peer.engine.machines)
                sight.catching_up = any(not machine.ready for machine in peer.engine.machines)
        if now % POINT_SECONDS == 0:
            for number, sight in self.sights.items():
                sight.points.append(self._point(number, sight, now))

    def is_live(self, number: int, now: float) -> bool:
        """Whether a peer was seen within the presence lifetime, and is not banned."""
        return not self.is_banned(number) and now - self.sights[number].at <= PACE.presence_lifetime_seconds

    def is_banned(self, number: int) -> bool:
        return self.story.caught is not None and self.story.caught.number == number

    def rate(self, number: int) -> float:
        """Return a simulated peer's inner steps per second; 0 for a host and a banned peer."""
        return 0.0 if number == HOST or self.is_banned(number) else self.story.world.rates[number]

    def speeds(self, now: float) -> TotalSpeeds:
        """Sum the speeds of all peers that are known and not banned."""
        core = [number for number in self.sights if not self.is_banned(number)]
        live = [number for number in core if self.is_live(number, now)]
        shown = [(one, one.appearance(now)) for one in self.crowd.extras]
        return TotalSpeeds(
            sum(map(self.rate, live)) + sum(one.steps_per_second for one, seen in shown if seen.trains),
            sum(map(self.rate, core)) + sum(one.steps_per_second for one, _ in shown),
            len(live) + sum(seen.live for _, seen in shown),
            len(core) + len(shown),
            sum(number != HOST for number in live) + sum(seen.live for _, seen in shown),
        )

    # -- views

    def views(self, now: float, rounds: Sequence[RoundView], points: int) -> tuple[PeerView, ...]:
        """Return the views of all known peers, each with at most `points` points of history."""
        states = _states(rounds)
        heads = [max((s.versions[p] for s in self.sights.values()), default=0) for p in range(PACE.fragments)]
        core = [self._core_view(number, now, heads, states, points) for number in sorted(self.sights)]
        return (*core, *(self._extra_view(extra, now, heads, points) for extra in self.crowd.extras))

    def _core_view(
        self, number: int, now: float, heads: Sequence[int], states: dict[str, str], points: int
    ) -> PeerView:
        person, sight, rate = self.story.people[number], self.sights[number], self.rate(number)
        banned = self.is_banned(number)
        state = "catching up" if sight.catching_up else states.get(person.peer_id, "training")
        newest = sight.points[-1] if sight.points else None
        return PeerView(
            **self._common(person),
            role="host" if number == HOST else "learner",
            state="hosting" if number == HOST else "banned" if banned else state,
            note="signed two different commitments" if banned else "",
            steps=sight.steps,
            steps_per_second=rate,
            tokens=sight.steps * TOKENS_PER_STEP,
            loss=None if newest is None else newest.loss,
            versions=sight.versions,
            versions_behind=sum(heads) - sum(sight.versions),
            last_seen_seconds=now - sight.at,
            live=self.is_live(number, now),
            trust="banned" if banned else "in good standing",
            history=tuple(sight.points)[-points:],
        )

    def _extra_view(self, extra: Extra, now: float, heads: Sequence[int], points: int) -> PeerView:
        seen, steps = extra.appearance(now), extra.steps(now)
        last = int(now / POINT_SECONDS)
        moments = [POINT_SECONDS * moment for moment in range(max(0, last - points + 1), last + 1)]
        history = tuple(self._extra_point(extra, moment) for moment in moments)
        return PeerView(
            **self._common(extra.person),
            role="learner",
            state=seen.state,
            note=seen.note,
            steps=steps,
            steps_per_second=extra.steps_per_second if seen.trains else 0.0,
            tokens=steps * TOKENS_PER_STEP,
            loss=history[-1].loss,
            versions=tuple(max(0, head - seen.behind) for head in heads),
            versions_behind=seen.behind,
            last_seen_seconds=seen.silent_seconds,
            live=seen.live,
            history=history,
        )

    def _common(self, person: Person) -> dict[str, object]:
        number = int.from_bytes(person.peer_id.encode()[-2:], "big")
        return {
            "peer_id": person.peer_id,
            "name": person.name,
            "device": person.device,
            "software": person.software,
            "addresses": (f"/ip4/203.0.113.{number % 254 + 1}/tcp/{31000 + number % 1000}",),  # RFC 5737
            "dialable": person.dialable,
            "credited_tokens": self.ledger.credit(person.peer_id),
            "bytes_sent": self.ledger.sent[person.peer_id],
            "bytes_received": self.ledger.sent[person.peer_id],
        }

    def _point(self, number: int, sight: Sight, now: float) -> PeerPoint:
        live, rate = self.is_live(number, now), self.rate(number)
        draw = Random(f"loss of {number} at {now} in {self.story.seed}")
        return PeerPoint(
            unix_seconds=self.ledger.epoch + now,
            live=live,
            steps=sight.steps,
            steps_per_second=rate * draw.uniform(0.95, 1.0) if live else 0.0,
            loss=round(loss_after(self.ledger.tokens, draw) + draw.gauss(0.05, 0.03), 3) if rate and live else None,
            versions=sum(sight.versions),
        )

    def _extra_point(self, extra: Extra, at: float) -> PeerPoint:
        seen = extra.appearance(at)
        return PeerPoint(
            unix_seconds=self.ledger.epoch + at,
            live=seen.live,
            steps=extra.steps(at),
            steps_per_second=extra.steps_per_second if seen.trains else 0.0,
            loss=None,
            versions=0,
        )


def _states(rounds: Sequence[RoundView]) -> dict[str, str]:
    """Return what members of running rounds are doing, in words, by peer."""
    words: dict[str, str] = {}
    for one in rounds:
        if one.outcome == "running" and one.phases:
            word = PHASE_WORDS.get(one.phases[-1].name)
            words |= dict.fromkeys(one.members or (one.leader,), word) if word else {}
    return words
