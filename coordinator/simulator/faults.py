"""Points of a round at which a test can kill a peer, by the names that `muster chaos` and tests use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from coordinator.core.actions import Action, Adopt, RecordVote, Reduce, Send
from coordinator.wire.messages import PartNote
from dht.statement import Statement


def _sends(kind: str) -> Callable[[Action], bool]:
    def strikes(action: Action) -> bool:
        message = action.message if isinstance(action, Send) else None
        return isinstance(message, Statement) and message.context.kind == kind

    return strikes


FAULT_POINTS: Mapping[str, Callable[[Action], bool]] = MappingProxyType(
    {
        "join": _sends("join"),
        "roster": _sends("roster"),
        "commit": _sends("commit"),
        "bundle": _sends("bundle"),
        "scatter": lambda action: isinstance(action, Send) and isinstance(action.message, PartNote),
        "reduce": lambda action: isinstance(action, Reduce),
        "result": _sends("result"),
        "check": _sends("check"),
        "proposal": _sends("proposal"),
        "record": lambda action: isinstance(action, RecordVote),
        "vote": _sends("vote"),  # the vote is on disk, and sent to none or some of the peers
        "adopt": lambda action: isinstance(action, Adopt),
    }
)
"""By name, the test whether an action reaches the point. The peer dies before the action is carried out."""
