"""The invites that an organiser has given out, in its run's folder. Readable only by it, because each has a key."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from dht.admission import Ticket
from dht.errors import LocalError, PeerError
from dht.files import write_whole
from dht.identity import PeerId

INVITES_FILE = "invites.json"
INVITES_MAX = 1024
NOTE_CHARACTERS_MAX = 120


class GivenInvite(BaseModel):
    """One invite. Its note is private, so it is in no grant."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ticket: str  # encoded, in hexadecimal
    note: str = ""
    made_unix_seconds: int

    @property
    def content(self) -> Ticket:
        return Ticket.from_wire(bytes.fromhex(self.ticket))

    @property
    def key(self) -> PeerId:
        """The key by which this invite is revoked."""
        return PeerId(self.content.grant.key)


_INVITES = TypeAdapter(tuple[GivenInvite, ...])


def read_invites(folder: Path) -> tuple[GivenInvite, ...]:
    """Return the invites, oldest first; raises LocalError if the file is damaged."""
    path = folder / INVITES_FILE
    try:
        found = _INVITES.validate_json(path.read_bytes())
        for one in found:
            one.content  # noqa: B018 - raises
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, ValidationError, PeerError) as error:
        raise LocalError(
            f"{path} cannot be read ({type(error).__name__}); restore it from a backup, or move it away: invites that "
            "were given out stay valid, but can only be revoked by their keys"
        ) from None
    return found


def keep_invite(folder: Path, given: GivenInvite) -> None:
    """Add an invite; raises LocalError if the disk refuses it."""
    path = folder / INVITES_FILE
    kept = (*read_invites(folder), given)[-INVITES_MAX:]
    try:
        write_whole(path, _INVITES.dump_json(kept, indent=1), 0o600)
    except OSError as error:
        raise LocalError(f"{path} cannot be written: {error.strerror}; make room, and ask again") from None
