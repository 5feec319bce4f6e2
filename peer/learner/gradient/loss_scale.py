"""Steps whose numbers are not finite: what float16 is multiplied by so that they are few, and how many are too many.

A step that overflows changes nothing but is counted, since its window is read. With float16 that is how the scale is
found (Micikevicius et al. 1710.03740): small gradients vanish in it unless the loss is multiplied, and large ones
overflow if it is multiplied by too much. In other types it may be one odd window; many in a row are a model that has
diverged.
"""

from __future__ import annotations

FIRST_SCALE = 2.0**16
SCALE_MAX = 2.0**24
SHRINKS_BY = 4.0
GROWS_BY = 2.0
GROWS_AFTER_STEPS = 1000
SKIPPED_IN_A_ROW_MAX = 10  # so many shrink the first scale to a sixteenth; no sound gradient needs less


class LossScale:
    """The factor on the loss, always a power of two, and 1 where nothing is scaled."""

    def __init__(self, scales: bool) -> None:
        self._scales = scales
        self.factor = FIRST_SCALE if scales else 1.0
        self.skipped = 0
        self._in_a_row = 0
        self._good_steps = 0  # since the factor has changed

    @property
    def is_hopeless(self) -> bool:
        """Whether so many steps in a row were skipped that the next ones will be, too."""
        return self._in_a_row >= SKIPPED_IN_A_ROW_MAX

    def follow(self, finite: bool) -> None:
        """A step had finite numbers, or was skipped."""
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
