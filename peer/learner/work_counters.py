"""How much work each fragment holds that no certified version has yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.chain.passes import next_window


@dataclass(frozen=True, slots=True)
class Counters:
    """Work in a fragment that no certified version holds yet; its data are the last `window_count` windows."""

    steps: int
    tokens: int
    window_first: int
    window_count: int
    at_step: int = field(default=0, compare=False)  # how many steps there were, in all


class LocalCount:
    """Steps, tokens and data windows of one model replica, in all and since what was last counted per fragment."""

    def __init__(self, fragments: int) -> None:
        self.steps = 0
        self.tokens = 0
        self.window = 0
        self.counted_from = [[0, 0] for _ in range(fragments)]  # steps and tokens at the last counted snapshot

    def step(self, tokens: int) -> None:
        """One more step was made, on one more window."""
        self.steps += 1
        self.tokens += tokens
        self.window += 1

    def read_from(self, first: int) -> None:
        """Go on with the lane that begins at this window, unless it is the one that is being read."""
        self.window = next_window(self.window, first)

    def of(self, fragment: int) -> Counters:
        """Steps and tokens in this fragment since what was last counted, and the data windows behind them."""
        steps_before, tokens_before = self.counted_from[fragment]
        steps = self.steps - steps_before
        return Counters(steps, self.tokens - tokens_before, self.window - steps, steps, self.steps)

    def count(self, fragment: int, steps: int, tokens: int) -> None:
        """So much of the fragment's work is in a certified version now."""
        steps_before, tokens_before = self.counted_from[fragment]
        self.counted_from[fragment] = [min(steps_before + steps, self.steps), min(tokens_before + tokens, self.tokens)]

    def restart(self, fragment: int) -> None:
        """The fragment holds no work of ours any more."""
        self.counted_from[fragment] = [self.steps, self.tokens]
