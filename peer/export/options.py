"""What a host exports by itself, and where to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Exports that a host makes by itself: into `folder` at the end of the run, and every so many versions before."""

    folder: Path
    every_versions: int | None = None
    repository: str | None = None  # of the Hugging Face Hub, for a copy of each
    licence: str = ""

    @property
    def place(self) -> str:
        """Where to find them, for everybody: of a folder its name only."""
        if self.repository is not None:
            return f"{self.repository} on the Hugging Face Hub"
        return f"the folder {self.folder.name} of its host"
