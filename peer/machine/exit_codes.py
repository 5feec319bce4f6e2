"""Exit codes of commands: 0 it worked, 1 it failed, 2 it was used wrongly."""

from __future__ import annotations

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
