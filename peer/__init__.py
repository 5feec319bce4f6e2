"""Does the work: learner, model, data, merge, transports, checkpoints and the command line.

`from peer import Session` is the door for a loop of one's own; it is imported when asked for, so that commands start
quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peer.session.api import Place, Session

__all__ = ["Place", "Session"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'peer' has no attribute {name!r}")
    from peer.session import api

    return getattr(api, name)
