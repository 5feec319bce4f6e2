"""Checks this machine's clock against those of some other peers, from time to time.

Rounds run on monotonic time, but joins and records are dated. A peer whose clock is off by more than
`CLOCK_TOLERANCE_SECONDS` is invisible to others, sees none of them, and waits. The answers of other peers affect only
the advice to this machine's owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

import structlog

from dht.identity import PeerId
from dht.validation import CLOCK_TOLERANCE_SECONDS
from peer.machine.clock import Clock
from peer.net.frames import ProbeAnswer, ProbeAsk
from peer.net.probe import rotating_subset

if TYPE_CHECKING:
    from peer.rounds.driver import RoundDriver

log = structlog.get_logger(__name__)

ASKED_MAX = 3  # at each look; other peers if these do not answer
ANSWER_SECONDS = 3.0  # a slower answer is too inaccurate
LOOK_SECONDS = 5.0  # between two looks
FIRST_TICKET = 1 << 31  # `peer.node.reachability` uses lower ones
ADVICE_WRONG_CLOCK = "set the clock: timedatectl set-ntp true"

Post = Callable[[PeerId, ProbeAsk, bytes], None]


class ClockCheck:
    """Asks some of the peers from `whom` for the time; `clock` is ours, in Unix seconds."""

    def __init__(self, me: PeerId, whom: Callable[[], Iterable[PeerId]], post: Post, clock: Clock) -> None:
        self._me = me
        self._whom = whom
        self._post = post
        self._clock = clock
        self._looks = self._turns = 0
        self._asked: set[PeerId] = set()
        self._asked_unix_seconds = 0.0
        self._ahead_seconds: list[float] = []  # one entry for each answer

    def ask(self) -> None:
        """Ask a few peers, the same ones as long as most of them answer, because a new peer costs a new connection."""
        self._turns += len(self._ahead_seconds) < len(self._asked)
        self._asked = rotating_subset(set(self._whom()) - {self._me}, self._me, self._turns, ASKED_MAX)
        self._ahead_seconds = []
        self._looks += 1
        self._asked_unix_seconds = self._clock()
        for peer in sorted(self._asked):
            self._post(peer, ProbeAsk(ticket=self._ticket), b"")

    def hear(self, sender: PeerId, answer: ProbeAnswer) -> None:
        """Take an answer; ignore what we did not ask for."""
        if sender in self._asked and answer.ticket == self._ticket:
            self._asked.discard(sender)
            self._ahead_seconds.append(ahead_of(answer, self._asked_unix_seconds, self._clock()))

    def ahead_seconds(self) -> float | None:
        """Return how far our clock is ahead of most that answered, or of the nearest half; None without answers."""
        found = sorted(self._ahead_seconds, key=abs)
        return found[(len(found) - 1) // 2] if found else None

    @property
    def _ticket(self) -> int:
        return FIRST_TICKET + self._looks % FIRST_TICKET


def ahead_of(answer: ProbeAnswer, asked_unix_seconds: float, heard_unix_seconds: float) -> float:
    """Return by how many seconds our clock is ahead of the sender's, which is assumed to answer half way in between."""
    return (asked_unix_seconds + heard_unix_seconds) / 2 - answer.unix_milliseconds / 1000


def is_wrong(ahead_seconds: float) -> bool:
    """Whether the error is so large that our records are rejected, and we reject those of others."""
    return abs(ahead_seconds) > CLOCK_TOLERANCE_SECONDS


def clock_words(ahead_seconds: float) -> str:
    """Describe the difference in words."""
    return f"{abs(ahead_seconds):.1f} s {'ahead of' if ahead_seconds > 0 else 'behind'} other peers"


async def watch_clock(clock: Clock, driver: RoundDriver, invited_by: Collection[PeerId]) -> None:
    """Check the clock until cancelled, count the results, and log when it turns out wrong or right."""
    core, counters = driver.engine.core, driver.counters

    def whom() -> Iterable[PeerId]:
        """Return the peers to ask; with a wrong clock no peer looks live, or none ever did."""
        return core.presence.live(driver.now) or core.presence.sightings.keys() or invited_by

    watch = ClockCheck(core.me, whom, driver.post, clock)
    driver.requests.hear_probes(watch.hear)
    while True:
        core.unix_offset_seconds = clock() - driver.now  # a clock may be set, and monotonic time stops during sleep
        watch.ask()
        await asyncio.sleep(ANSWER_SECONDS)
        found = watch.ahead_seconds()
        if found is not None:
            if is_wrong(found) != is_wrong(counters.clock_ahead_seconds):
                event = "clock_wrong" if is_wrong(found) else "clock_right"
                counters.events[event] += 1
                log.warning(event, ahead_seconds=round(found, 1), peers_asked=ASKED_MAX)
            counters.clock_ahead_seconds = found
        await asyncio.sleep(LOOK_SECONDS)
