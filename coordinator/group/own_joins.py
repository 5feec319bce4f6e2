"""Our own statements in the attempts at one base, which we must not contradict (design §6.2 step 1)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from coordinator.group.group import Group
from dht.statement import Statement

JOINS_KEPT_MAX = 12


@dataclass(slots=True)
class OwnJoins:
    """Our joins, and the rosters under which we spoke. A forgotten attempt is used up: we never join it again."""

    first_attempt: int  # earlier ones are used up
    said: dict[int, tuple[float, Statement]] = field(default_factory=dict)  # by attempt: expiry time and our join
    spoken: dict[int, int] = field(default_factory=dict)  # by attempt: the newest revision under which we spoke

    def open_from(self, attempt: int, now: float) -> int:
        """Return the first attempt from this one on that is not used up and in which our join, if any, still counts."""
        attempt = max(attempt, self.first_attempt)
        while attempt in self.spoken or (attempt in self.said and now >= self.said[attempt][0]):
            attempt += 1  # we spoke under its roster already, or our join has expired and a new one would contradict it
        return attempt

    def forget_oldest(self, now: float) -> None:
        """Use up the oldest attempts if they are too many or if our joins there have expired."""
        while self.said and (len(self.said) >= JOINS_KEPT_MAX or now >= self.said[min(self.said)][0]):
            self.use_up(min(self.said))

    def use_up(self, attempt: int) -> None:
        """Mark this attempt and earlier ones as over for good, and forget our statements there."""
        self.first_attempt = max(self.first_attempt, attempt + 1)
        for remembered in (self.said, self.spoken):
            for old in [one for one in remembered if one < self.first_attempt]:
                del remembered[old]

    def is_behind(self, group: Group) -> bool:
        """Whether we have left or passed this group: we must not enter it again when its roster is repeated.

        We may have committed, voted or abstained there, and would contradict ourselves.
        """
        return group.attempt < self.first_attempt or group.revision <= self.spoken.get(group.attempt, -1)

    def speak(self, group: Group) -> None:
        """Note that we speak under this roster: from now on we enter neither it nor earlier ones of its attempt."""
        self.spoken[group.attempt] = group.revision

    def only_asked(self) -> Set[int]:
        """Return the attempts in which we have sent only our join."""
        return self.said.keys() - self.spoken.keys()

    def used(self) -> int:
        """Return the first attempt in which we have said nothing: rosters and votes come after a join."""
        return max(self.first_attempt, max(self.said, default=-1) + 1)
