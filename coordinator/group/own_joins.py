"""What one peer has said in the attempts at one base, and keeps to (design §6.2 step 1)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from coordinator.group.group import Group
from dht.statement import Statement

JOINS_KEPT_MAX = 12


@dataclass(slots=True)
class OwnJoins:
    """Our joins, and the rosters under which we spoke. A forgotten attempt is used up: we never join it anew."""

    first_attempt: int  # earlier ones are used up
    said: dict[int, tuple[float, Statement]] = field(default_factory=dict)  # per attempt, when it expires and our join
    spoken: dict[int, int] = field(default_factory=dict)  # per attempt, the newest revision under which we spoke

    def open_from(self, attempt: int, now: float) -> int:
        """This attempt or the first one after it that is not behind us, and where our join, if we said one, counts."""
        attempt = max(attempt, self.first_attempt)
        while attempt in self.spoken or (attempt in self.said and now >= self.said[attempt][0]):
            attempt += 1  # no roster there can have us any more, or nobody takes our join, which another contradicts
        return attempt

    def forget_oldest(self, now: float) -> None:
        """Oldest attempts of which there are too many, or in which our word has expired, cannot be entered any more."""
        while self.said and (len(self.said) >= JOINS_KEPT_MAX or now >= self.said[min(self.said)][0]):
            self.use_up(min(self.said))

    def use_up(self, attempt: int) -> None:
        """This attempt and earlier ones are over for good: we no longer remember what we said there."""
        self.first_attempt = max(self.first_attempt, attempt + 1)
        for remembered in (self.said, self.spoken):
            for old in [one for one in remembered if one < self.first_attempt]:
                del remembered[old]

    def is_behind(self, group: Group) -> bool:
        """Whether we have left this group, or passed it by: it must not be entered again, though its roster is shown.

        There we may have committed, voted or abstained, and would do so again in other words.
        """
        return group.attempt < self.first_attempt or group.revision <= self.spoken.get(group.attempt, -1)

    def speak(self, group: Group) -> None:
        """We say something under this roster: it is behind us from now on, with all earlier ones of its attempt."""
        self.spoken[group.attempt] = group.revision

    def only_asked(self) -> Set[int]:
        """The attempts in which we have said nothing but our join."""
        return self.said.keys() - self.spoken.keys()

    def used(self) -> int:
        """The first attempt in which we have said nothing: rosters and votes come after a join."""
        return max(self.first_attempt, max(self.said, default=-1) + 1)
