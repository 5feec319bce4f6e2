"""The rate at which a run certifies tokens, measured over the time that an observer really looked."""

from __future__ import annotations

from collections import deque

RATE_SECONDS = 30.0
RATE_SECONDS_MIN = 10.0  # what a shorter look shows is chance: rounds take seconds at least


class CertifiedRate:
    """Certified tokens per second, of the last RATE_SECONDS. It is unknown until the observer has caught up."""

    def __init__(self, fragments: int) -> None:
        self._fragments = fragments
        self._since: float | None = None  # when it caught up
        self._found: deque[tuple[float, int]] = deque()  # the time and tokens × fragments of certificates since then

    def add(self, tokens: int, now: float) -> None:
        """Count a certificate that was made shortly before `now`."""
        if self._since is not None:
            self._found.append((now, tokens))

    def look(self, lacking: int | None, lacking_max: int, now: float) -> None:
        """Note how many certificates we lack, None if nobody says. Lacking none begins the look; too many end it."""
        if lacking is None or lacking > lacking_max:
            self._since = None
            self._found.clear()
        elif self._since is None and lacking <= 0:
            self._since = now

    def tokens_per_second(self, now: float) -> float | None:
        """Return the rate; None if it is not known."""
        while self._found and self._found[0][0] < now - RATE_SECONDS:
            self._found.popleft()
        seconds = 0.0 if self._since is None else min(RATE_SECONDS, now - self._since)
        if seconds < RATE_SECONDS_MIN:
            return None
        return sum(tokens for _, tokens in self._found) / self._fragments / seconds
