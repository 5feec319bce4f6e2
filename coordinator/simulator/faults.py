"""Points of a round at which a peer can be made to die, under the names that `muster chaos` and tests use."""

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
        "vote": _sends("vote"),  # the vote is on disk, and sent to nobody or to some
        "adopt": lambda action: isinstance(action, Adopt),
    }
)
"""What an action must be for the point to be reached. A peer dies before the action is carried out."""
