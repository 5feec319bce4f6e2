"""The settings of hivemind's averager, from which the yardstick was chosen."""

from __future__ import annotations

from dataclasses import dataclass

COMPRESSIONS = ("none", "float16", "blockwise", "uniform8bit")
PART_BYTES = (1 << 17, 1 << 19, 1 << 21)  # hivemind's own is the second


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. The vector is cut into `tensors` equal ones, which are averaged one after the other."""

    compression: str = "none"
    part_bytes: int = 1 << 19
    tensors: int = 1

    def __str__(self) -> str:
        return f"{self.compression}, parts of {self.part_bytes >> 10} KiB, {self.tensors} tensors"


YARDSTICKS = {"plain": Setting("none", 1 << 21), "fastest": Setting("float16", 1 << 19)}
"""The fastest of `--tune` without compression, and of all."""

NARROW_YARDSTICKS = {**YARDSTICKS, "eight_bits": Setting("uniform8bit", 1 << 19)}
"""For narrow links, on which fewer bytes are worth more than the time of their codec."""

ALL = tuple(
    Setting(compression, part_bytes, tensors)
    for compression in COMPRESSIONS
    for part_bytes in PART_BYTES
    for tensors in (1, 16)
)
