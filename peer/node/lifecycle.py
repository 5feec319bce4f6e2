"""The stages of a peer in its run, and when it moves on: starting, catching up, training, paused, draining, over.

`peer.node.node` calls this a few times a second and passes the time.
"""

from __future__ import annotations

import math
from collections.abc import Set

import structlog

from coordinator.chain.passes import lane_of
from coordinator.chain.weights import most_hostile
from coordinator.engine.engine import Engine
from coordinator.wire.presence import Presence, State
from dht.identity import PeerId
from peer.learner.client import LearnerClient
from peer.machine.pause_policy import Pause
from peer.net.presence_loop import PresenceLoop
from peer.rounds.driver import RoundDriver

log = structlog.get_logger(__name__)

ROUNDS_OF_PRESENCE_MIN = 2  # reads of the record store before we trust that we know which peers are ahead
BY_HAND = "by its owner, until muster resume"
STRANGERS_LIFETIMES = 3.0  # a peer that meets no peer it knows lets strangers claim for this long that it is behind
AGREEMENT_LIFETIMES = 3.0  # a peer waits this long at the end of a run for the others to hold the same
ALONE_SECONDS = 3.0  # a peer that leaves waits this long for a round without company: none can succeed
AT_REST = ("draining", "hosting")  # states in which a peer opens no rounds for work of its own


def live_presences(engine: Engine, now: float) -> list[Presence]:
    """Return the presence of every live peer."""
    table = engine.core.presence
    return [table.sightings[peer].presence for peer in table.live(now)]


def lagging_fragments(engine: Engine, now: float, hears_strangers: bool) -> set[int]:
    """Return the fragments of which we hold less than others do; one version behind is normal during rounds.

    Versions for which we have no certificate are only claims. So it takes claims of more peers that we know than may be
    hostile, whether live or not. Strangers count, if at all, where none of these peers is live, as after a long
    absence.
    """
    live = engine.core.presence.live(now)
    lagging = set()
    for machine in engine.machines:
        known = machine.chain.known() | {engine.core.me}
        asked, hostile = known & live, most_hostile(len(known))
        if not asked and hears_strangers:
            asked, hostile = live, most_hostile(len(live) + 1)
        said = versions_said(engine, asked, machine.index)
        if not machine.ready or max(said[hostile:], default=0) > machine.chain.version + 1:
            lagging.add(machine.index)
    return lagging


def versions_said(engine: Engine, peers: Set[PeerId], fragment: int) -> list[int]:
    """Return the versions of a fragment that these peers claim to hold, the newest first."""
    said = [engine.core.presence.sightings[peer].presence.versions for peer in peers]
    return sorted((own[fragment] for own in said if fragment < len(own)), reverse=True)


def uncertain_fragments(engine: Engine, now: float) -> set[int]:
    """Return the fragments of which any peer that we know claims to hold more: our work may count there already."""
    live = engine.core.presence.live(now)
    return {
        machine.index
        for machine in engine.machines
        if max(versions_said(engine, machine.chain.known() & live, machine.index), default=0)
        > machine.chain.version + 1
    }


def round_deadline_seconds(engine: Engine) -> float:
    """Return a round's deadline in seconds; of the rounds that we are in, the longest."""
    attempts = [machine.attempt for machine in engine.machines if machine.attempt is not None]
    return max([engine.core.pace.round_seconds, *(one.timeline.deadline_seconds for one in attempts)])


def others_go_on(engine: Engine, now: float) -> bool:
    """Whether a live peer still makes versions, so that there is no last one to agree on."""
    return any(other.state not in AT_REST for other in live_presences(engine, now))


def everyone_agrees(engine: Engine, now: float) -> bool:
    """Whether every live peer holds the versions that we hold and opens no more rounds."""
    heads = engine.heads()
    return all(machine.ready for machine in engine.machines) and all(
        (other.versions, other.heads) == heads and other.state in AT_REST for other in live_presences(engine, now)
    )


def has_company(engine: Engine, now: float) -> bool:
    """Whether a round in flight can still succeed; peers that leave as well finish only rounds that they are in."""
    entered = any(machine.attempt is not None or machine.cells.busy for machine in engine.machines)
    return bool(engine.core.presence.live(now)) and (entered or others_go_on(engine, now))


def versions_certified(engine: Engine) -> int:
    """Return the number of versions, summed over all fragments."""
    return sum(machine.chain.version for machine in engine.machines)


def window_to_read(engine: Engine) -> int | None:
    """Return the data window from which the newest version lets us read; None where each peer draws its own."""
    manifest, newest = engine.core.manifest, engine.machines[0].chain.certificates[-1:]
    if not manifest.config.data.is_in_passes:
        return None
    return lane_of(newest[0] if newest else None, manifest.founder_ids, engine.core.me).first


def certified_progress(engine: Engine) -> tuple[int, int | None]:
    """Return what a learner follows: versions over all fragments, and the first data window to read."""
    return versions_certified(engine), window_to_read(engine)


class Lifecycle:
    """The stage of one peer. `learner` is None on a host, and on a learner until its process is ready."""

    def __init__(self, driver: RoundDriver, presence: PresenceLoop, first: State) -> None:
        self.state: State = first
        self.learner: LearnerClient | None = None
        self.wanted_paused = False  # by the owner
        self._policy_pause: Pause | None = None
        self._driver = driver
        self._presence = presence
        self._looks_since: float | None = None  # since when it has looked for peers that are ahead
        self._drained_at: float | None = None
        self._leaves_by = math.inf  # what is not finished by then is abandoned
        self._alone_since: float | None = None  # during a leave, since when it has had no company
        self._waits_for = ""

    @property
    def reason(self) -> str:
        """Why it pauses, or what it waits for. A host does not train, so it only withdraws."""
        if self._waits_for:
            return self._waits_for
        if self.state == "starting":
            return "looks who else is there" if self.learner is not None else "the learner starts"
        pause = self._policy_pause
        if pause is not None and (pause.silent or self.state == "paused"):
            return pause.reason
        return BY_HAND if self.wanted_paused and self.state == "paused" else ""

    @property
    def trains(self) -> bool:
        """Whether its learner makes steps."""
        return self.state == "training"

    def obey(self, pause: Pause | None) -> None:
        """Follow the pause policy: pause, or go on with None."""
        self._policy_pause = pause
        self._driver.withdraw(pause is not None and pause.silent)
        self.advance(self._driver.now)

    def begin_anew(self) -> None:
        """Go back to "starting", because the learner's process is to be replaced."""
        self.learner = None
        self._enter("starting")

    def leave(self) -> None:
        """Leave the run: open no further rounds, and finish those in flight within a round's deadline."""
        engine = self._driver.engine
        engine.drain()
        self._leaves_by = min(self._leaves_by, self._driver.now + round_deadline_seconds(engine))

    def drain_at_goal(self) -> None:
        """Open no further rounds once the run has all its versions."""
        engine = self._driver.engine
        if versions_certified(engine) >= engine.core.manifest.config.versions:
            engine.drain()

    def advance(self, now: float) -> bool:
        """Move on if it is time. Return True once this peer may end.

        That is when it has drained, and all live peers agree, had enough time to, or go on without it.
        """
        engine = self._driver.engine
        self.drain_at_goal()
        if not engine.core.draining:
            self._advance_training(now)
            return False
        alone = self._leaves_alone(now)
        if engine.in_flight and not alone and now < self._leaves_by:
            return False
        if self.learner is not None:
            self.learner.pause()
        self._drained_at = self._drained_at or now
        self._enter("draining")
        waits = now < self._leaves_by and not (alone and not engine.core.presence.live(now))
        over = not waits or self._has_agreed(engine, self._drained_at, now)
        self._waits_for = "" if over else "waits until the others hold the same versions"
        return over

    def _leaves_alone(self, now: float) -> bool:
        """Whether it leaves and has had no company for a while, so that a brief loss of others does not count."""
        if self._leaves_by == math.inf or has_company(self._driver.engine, now):
            self._alone_since = None
            return False
        self._alone_since = now if self._alone_since is None else self._alone_since
        return now >= self._alone_since + ALONE_SECONDS

    def _has_agreed(self, engine: Engine, since: float, now: float) -> bool:
        """Whether nothing is left to wait for, after waiting since this time."""
        if self._leaves_by < math.inf and others_go_on(engine, now):
            return True
        patience = AGREEMENT_LIFETIMES * engine.core.pace.presence_lifetime_seconds
        return everyone_agrees(engine, now) or now > since + patience

    def _advance_training(self, now: float) -> None:
        if self.learner is None:
            return
        if self.wanted_paused or self._policy_pause is not None:
            self.learner.pause()
            self._looks_since = None
            self._enter("paused")
        elif self.state == "training":
            return  # from here on, rounds keep us up to date
        elif self._presence.rounds >= ROUNDS_OF_PRESENCE_MIN:
            lagging = self._lagging(now)
            self._driver.local_work.doubt(lagging | uncertain_fragments(self._driver.engine, now))
            if lagging:
                self._enter("catching up")
            else:
                self._looks_since = None
                self.learner.resume()
                self._enter("training")

    def _lagging(self, now: float) -> set[int]:
        engine = self._driver.engine
        self._looks_since = now if self._looks_since is None else self._looks_since
        patience = STRANGERS_LIFETIMES * engine.core.pace.presence_lifetime_seconds
        return lagging_fragments(engine, now, hears_strangers=now <= self._looks_since + patience)

    def _enter(self, state: State) -> None:
        if state != self.state:
            log.info("state", before=self.state, now=state)
            self.state = state
            self._presence.hurry()
