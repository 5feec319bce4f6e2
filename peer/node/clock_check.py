"""Whether this machine's clock is right: now and then it is compared with those of some other peers.

Rounds run on monotonic time, but joins and records are dated: a peer that is off by more than `CLOCK_TOLERANCE_SECONDS`
is seen by nobody, sees nobody, and waits for others. Nothing but the words for this machine's owner depends on what
others say.
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
from peer.net.probe import some_of

if TYPE_CHECKING:
    from peer.rounds.driver import RoundDriver

log = structlog.get_logger(__name__)

ASKED_MAX = 3  # at each look; others if they do not answer
ANSWER_SECONDS = 3.0  # an answer that takes longer tells too little
LOOK_SECONDS = 5.0  # between two looks
FIRST_TICKET = 1 << 31  # what `peer.node.reachability` asks has lower ones
ADVICE_WRONG_CLOCK = "set the clock: timedatectl set-ntp true"

Post = Callable[[PeerId, ProbeAsk, bytes], None]


class ClockCheck:
    """Asks some of `whom` for the time; `clock` is ours, in Unix seconds."""

    def __init__(self, me: PeerId, whom: Callable[[], Iterable[PeerId]], post: Post, clock: Clock) -> None:
        self._me = me
        self._whom = whom
        self._post = post
        self._clock = clock
        self._looks = self._turns = 0
        self._asked: set[PeerId] = set()
        self._asked_unix_seconds = 0.0
        self._ahead_seconds: list[float] = []  # by all who have answered

    def ask(self) -> None:
        """Ask a few: the same ones as long as most of them answer, for a call to somebody new is a new connection."""
        self._turns += len(self._ahead_seconds) < len(self._asked)
        self._asked = some_of(set(self._whom()) - {self._me}, self._me, self._turns, ASKED_MAX)
        self._ahead_seconds = []
        self._looks += 1
        self._asked_unix_seconds = self._clock()
        for peer in sorted(self._asked):
            self._post(peer, ProbeAsk(ticket=self._ticket), b"")

    def hear(self, sender: PeerId, answer: ProbeAnswer) -> None:
        """Somebody tells the time; what nobody was asked for counts for nothing."""
        if sender in self._asked and answer.ticket == self._ticket:
            self._asked.discard(sender)
            self._ahead_seconds.append(ahead_of(answer, self._asked_unix_seconds, self._clock()))

    def ahead_seconds(self) -> float | None:
        """How far our clock is ahead of most that have answered, or of the nearest half; None if nobody has."""
        found = sorted(self._ahead_seconds, key=abs)
        return found[(len(found) - 1) // 2] if found else None

    @property
    def _ticket(self) -> int:
        return FIRST_TICKET + self._looks % FIRST_TICKET


def ahead_of(answer: ProbeAnswer, asked_unix_seconds: float, heard_unix_seconds: float) -> float:
    """Seconds that our clock is ahead of the sender's, who is taken to have answered half way between these two."""
    return (asked_unix_seconds + heard_unix_seconds) / 2 - answer.unix_milliseconds / 1000


def is_wrong(ahead_seconds: float) -> bool:
    """Whether others believe no record that is dated by such a clock, or we none of theirs."""
    return abs(ahead_seconds) > CLOCK_TOLERANCE_SECONDS


def clock_words(ahead_seconds: float) -> str:
    """How a clock compares."""
    return f"{abs(ahead_seconds):.1f} s {'ahead of' if ahead_seconds > 0 else 'behind'} other peers"


async def watch_clock(clock: Clock, driver: RoundDriver, invited_by: Collection[PeerId]) -> None:
    """Look until cancelled, count what is found, and say when the clock has turned out wrong or right."""
    core, counters = driver.engine.core, driver.counters

    def whom() -> Iterable[PeerId]:
        """Whose clock is wrong sees nobody live any more, or never did."""
        return core.presence.live(driver.now) or core.presence.sightings.keys() or invited_by

    watch = ClockCheck(core.me, whom, driver.post, clock)
    driver.requests.hear_probes(watch.hear)
    while True:
        core.unix_offset_seconds = clock() - driver.now  # a clock may be set, and monotonic time stands while we sleep
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
