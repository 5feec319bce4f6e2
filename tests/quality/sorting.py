"""`python -m tests.quality.sorting FILE`: the text of a task, lines as `hbpcae>abcehp`: letters, then the same sorted.

Who sorts without a fault predicts the eight bytes after the letters, and of the letters one in sixteen: 59.8 % of all.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

LETTERS, LENGTH, LINES = "abcdefghijklmnop", 6, 100_000


def text(seed: int = 0) -> str:
    """All lines; the same ones for the same seed."""
    draw = random.Random(seed)
    lines = (draw.choices(LETTERS, k=LENGTH) for _ in range(LINES))
    return "".join(f"{''.join(line)}>{''.join(sorted(line))}\n" for line in lines)


def write(path: Path) -> None:
    """The text as a file, whose folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
