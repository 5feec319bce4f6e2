"""Options for the exports that a host makes by itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Where and when a host exports by itself: at the end of the run, and before that every so many versions."""

    folder: Path
    every_versions: int | None = None
    repository: str | None = None  # on the Hugging Face Hub, for a copy of each export
    licence: str = ""

    @property
    def place(self) -> str:
        """Where everybody can find the exports, in words; of a folder only the name."""
        if self.repository is not None:
            return f"{self.repository} on the Hugging Face Hub"
        return f"the folder {self.folder.name} of its host"
