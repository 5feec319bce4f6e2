"""Files that this machine's owner lets a run read. A manifest opens none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """File patterns separated by commas, and a `tokenizer.json`; empty where the run needs none."""

    corpus: str = ""
    tokenizer: str = ""


NO_FILES = LocalFiles()
