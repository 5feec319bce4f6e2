"""The loss scale of float16, and the limit on skipped steps.

A step with numbers that are not finite changes nothing but is counted, since its window is read. In float16 such
steps find the scale (Micikevicius et al. 1710.03740): small gradients vanish unless the loss is multiplied, and large
ones overflow if the factor is too large. In other types one odd window may cause a skip. Many in a row mean that the
model has diverged.
"""

from __future__ import annotations

FIRST_SCALE = 2.0**16
SCALE_MAX = 2.0**24
SHRINKS_BY = 4.0
GROWS_BY = 2.0
GROWS_AFTER_STEPS = 1000
SKIPPED_IN_A_ROW_MAX = 10  # as many reduce the first scale to a sixteenth; no sound gradient needs less


class LossScale:
    """The factor on the loss: always a power of two, and 1 where nothing is scaled."""

    def __init__(self, scales: bool) -> None:
        self._scales = scales
        self.factor = FIRST_SCALE if scales else 1.0
        self.skipped = 0
        self._in_a_row = 0
        self._good_steps = 0  # since the last skipped step

    @property
    def is_hopeless(self) -> bool:
        """Whether so many steps in a row were skipped that the next ones will be skipped, too."""
        return self._in_a_row >= SKIPPED_IN_A_ROW_MAX

    def follow(self, finite: bool) -> None:
        """Adjust the factor after a step, which was skipped unless its numbers were `finite`."""
        if not finite:
            self.skipped += 1
            self._in_a_row += 1
            self._good_steps = 0
            self.factor = max(1.0, self.factor / SHRINKS_BY)
            return
        self._in_a_row = 0
        self._good_steps += 1
        if self._scales and self._good_steps % GROWS_AFTER_STEPS == 0:
            self.factor = min(SCALE_MAX, self.factor * GROWS_BY)
