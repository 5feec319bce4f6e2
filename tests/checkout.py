"""The checkout that a test or a measurement runs in."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def git(root: Path, *words: str) -> str:
    """What git prints of the repository at `root`; raises CalledProcessError."""
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()
