"""`python -m tests.quality.sorting FILE`: writes a task's text, lines such as `hbpcae>abcehp`: letters, then sorted.

A model that sorts perfectly predicts the eight bytes after the letters, and one letter in sixteen: 59.8 % of all.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

LETTERS, LENGTH, LINES = "abcdefghijklmnop", 6, 100_000


def text(seed: int = 0) -> str:
    """Return all lines; the same seed gives the same ones."""
    draw = random.Random(seed)
    lines = (draw.choices(LETTERS, k=LENGTH) for _ in range(LINES))
    return "".join(f"{''.join(line)}>{''.join(sorted(line))}\n" for line in lines)


def write(path: Path) -> None:
    """Write the text to a file, and make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
