"""Waiting for a file descriptor, of whatever number: a peer has two sockets for each peer that it talks to.

`select.select` knows those below 1024 only. Standard library only: a learner needs this before it imports all else.
"""

from __future__ import annotations

import select


def wait_for(descriptor: int, seconds: float | None, writable: bool = False) -> None:
    """Return when it can be read, or written where that is wanted, or after so long; None: however long it takes."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | (select.POLLOUT if writable else 0))
    poll.poll(None if seconds is None else 1000 * seconds)
