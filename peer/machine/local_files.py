"""Files that this machine's owner lets a run read. A manifest cannot open any."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """File patterns separated by commas, a `tokenizer.json`, and the folder of a base; empty where not needed.

    `base_precision` is the precision of the base in memory, where the run leaves it to owners. `cache` is the folder
    that keeps tokens for the next start; without one they are made anew each time.
    """

    corpus: str = ""
    tokenizer: str = ""
    cache: str = ""
    base: str = ""
    base_precision: str = ""


NO_FILES = LocalFiles()
