"""The public names for a user's own script: `from peer import Session, RunConfig, Invite`.

Each name is imported on first use, so that commands start quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator.adversary.mischief import Mischief
    from coordinator.core.actions import Send
    from coordinator.run.data_spec import DataSpec
    from coordinator.run.inner_spec import InnerSpec
    from coordinator.run.manifest import (
        Manifest,
        OuterSpec,
        PaceSpec,
        RunConfig,
        TrustSpec,
    )
    from coordinator.run.model_spec import ModelSpec
    from dht.errors import LocalError, MusterError, NetworkError, PeerError, UsageError
    from dht.invite import Invite
    from dht.statement import Statement
    from peer.attacks.attack import Attack, Scene
    from peer.attacks.messages import MessageAttack
    from peer.session.api import Place, Session

_ROOMS = {
    "peer.session.api": ("Place", "Session"),
    "coordinator.run.data_spec": ("DataSpec",),
    "coordinator.run.manifest": (*("Manifest", "OuterSpec", "PaceSpec", "RunConfig", "TrustSpec"),),
    "coordinator.run.inner_spec": ("InnerSpec",),
    "coordinator.run.model_spec": ("ModelSpec",),
    "dht.invite": ("Invite",),
    "dht.errors": ("LocalError", "MusterError", "NetworkError", "PeerError", "UsageError"),
    "peer.attacks.attack": ("Attack", "Scene"),
    "peer.attacks.messages": ("MessageAttack",),
    "coordinator.adversary.mischief": ("Mischief",),
    "coordinator.core.actions": ("Send",),
    "dht.statement": ("Statement",),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "Attack",
    "DataSpec",
    "InnerSpec",
    "Invite",
    "LocalError",
    "Manifest",
    "MessageAttack",
    "Mischief",
    "ModelSpec",
    "MusterError",
    "NetworkError",
    "OuterSpec",
    "PaceSpec",
    "PeerError",
    "Place",
    "RunConfig",
    "Scene",
    "Send",
    "Session",
    "Statement",
    "TrustSpec",
    "UsageError",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'peer' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
