"""How `muster top` and `muster dashboard` reach a run: by an invite, or through the peer running here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from coordinator.views.control import ask
from dht.identity import Identity
from dht.invite import Invite
from peer.machine import paths


@dataclass(frozen=True, slots=True)
class ObserverAccess:
    """The run's invite, and the path of the key that an observer shows. A new key is in the observer's folder."""

    invite: Invite
    key: Path

    @classmethod
    def by_invite(cls, text: str, data_directory: Path, folder: Path) -> Self:
        """Use a new key; if the invite names one peer, the key of the peer here."""
        invite = Invite.parse(text)
        named = data_directory / paths.IDENTITY_NAME
        return cls(invite, folder / paths.OBSERVER_KEY_NAME if invite.named is None else named)

    @classmethod
    def at_own_run(cls, data_directory: Path, folder: Path) -> Self:
        """Look at the run of the peer here, which is told the new key; raises what `ask` does."""
        key = folder / paths.OBSERVER_KEY_NAME
        answer = ask(data_directory, "look", changes=(Identity.load_or_create(key).peer_id,))
        return cls(Invite.parse(answer["invite"]), key)
