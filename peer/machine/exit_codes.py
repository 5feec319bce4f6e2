"""Exit codes of commands: 0 success, 1 failure, 2 wrong usage."""

from __future__ import annotations

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
