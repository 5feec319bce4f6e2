"""The limit on open files and sockets of this process."""

from __future__ import annotations

import resource
from contextlib import suppress

DESCRIPTORS_MAX = 1 << 16


def allow_more_descriptors() -> None:
    """Raise the limit as far as the system allows: a peer has two sockets per peer it talks to; shells allow 1024."""
    with suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
        if resource.RLIM_INFINITY != soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
