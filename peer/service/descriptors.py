"""How many files and sockets this process may have open."""

from __future__ import annotations

import resource
from contextlib import suppress

DESCRIPTORS_MAX = 1 << 16


def allow_more_descriptors() -> None:
    """As many as the system lets us have: a peer has two sockets for each that it talks to, and shells allow 1024."""
    with suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
        if resource.RLIM_INFINITY != soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
