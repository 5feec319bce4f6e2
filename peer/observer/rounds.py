"""Merges members' reports of rounds: every round once, and none that certificates contradict."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable

from coordinator.views.network_view import PHASE_WORDS, ROUNDS_MAX, RoundView
from dht.identity import PeerId
from dht.validation import CLOCK_TOLERANCE_SECONDS
from peer.observer.chains import Chains

ROUNDS_KEPT = 4 * ROUNDS_MAX
AGE_SECONDS_MAX = 3600.0
LEVELS_BACK_MAX = 64  # rounds more versions back are ignored as old
FRESH_SECONDS = 10.0  # a round counts as running for so long after its last report
_PEER_ID = re.compile(r"[1-9A-HJ-NP-Za-km-z]{1,64}")

Key = tuple[int, int, int]
"""Fragment, version, attempt."""


class ReportedRounds:
    """The newest rounds, each as its leader reports it, else as the first reporter does."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains
        self._rounds: OrderedDict[Key, tuple[RoundView, float]] = OrderedDict()  # with the time of the report

    def hear(self, sender: PeerId, rounds: Iterable[RoundView], unix_seconds: float) -> list[RoundView]:
        """Take over a peer's reports of rounds; returns those that are newly void."""
        voided = []
        for told in rounds:
            if not _well_formed(told, unix_seconds) or not self._possible(told):
                continue
            key = (told.fragment, told.version, told.attempt)
            known = self._rounds.get(key)
            if known is not None and known[0].reporter not in ("", sender) and sender != told.leader:
                continue
            if told.outcome == "void" and (known is None or known[0].outcome != "void"):
                voided.append(told)
            self._rounds[key] = (told.model_copy(update={"reporter": sender}), unix_seconds)
        while len(self._rounds) > ROUNDS_KEPT:
            self._rounds.popitem(last=False)
        return voided

    def _possible(self, told: RoundView) -> bool:
        """Whether our chains allow this round."""
        versions = self._chains.versions
        if told.fragment >= len(versions):
            return False
        newest = versions[told.fragment]
        if not newest - LEVELS_BACK_MAX <= told.version <= newest + 2:  # we may be a little behind
            return False
        if self._chains.leader(told.fragment, told.version, told.attempt) not in (None, told.leader):
            return False
        certified = self._chains.digest_of(told.fragment, told.version)
        return told.outcome != "certified" or certified is None or certified.hex() == told.digest

    def newest(self, unix_seconds: float) -> tuple[RoundView, ...]:
        """Return the newest rounds by their start, newest last; running ones only while their reports are fresh."""
        found = [
            one
            for one, told_at in self._rounds.values()
            if one.outcome != "running" or unix_seconds <= told_at + FRESH_SECONDS
        ]
        return tuple(sorted(found, key=lambda one: one.phases[0].start_unix_seconds)[-ROUNDS_MAX:])


def activities(rounds: Iterable[RoundView]) -> dict[str, str]:
    """Return what members of running rounds are doing, in words, by peer; training alone is left out."""
    words: dict[str, str] = {}
    for one in rounds:
        word = PHASE_WORDS.get(one.phases[-1].name) if one.outcome == "running" else None
        if word is not None:
            words |= dict.fromkeys(one.members or (one.reporter,), word)
    return words


def _well_formed(told: RoundView, unix_seconds: float) -> bool:
    """Whether its names can be peer ids, and its times are plausible now by any peer's clock."""
    times = [phase.start_unix_seconds for phase in told.phases]
    times += [phase.end_unix_seconds for phase in told.phases if phase.end_unix_seconds is not None]
    if not times or not all(_PEER_ID.fullmatch(one) for one in (told.leader, *told.members, *told.late)):
        return False
    return unix_seconds - AGE_SECONDS_MAX <= min(times) and max(times) <= unix_seconds + CLOCK_TOLERANCE_SECONDS
