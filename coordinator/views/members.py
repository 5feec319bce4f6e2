"""The members of a run that one peer knows, for `muster members`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Role = Literal["organiser", "co-organiser", "founder", "observer", "trainer", "newcomer"]


class RunMember(BaseModel):
    """One key. `live`: seen within a presence lifetime. `out`: why it was banned or removed, else empty."""

    model_config = ConfigDict(frozen=True)

    peer_id: str
    name: str = ""
    role: Role  # an observer only looks; a newcomer has no certified share yet
    live: bool
    since_unix_seconds: float | None = None  # since when it has been live without a break; None if it is not live
    tokens: int = 0  # certified, by the certificates that this peer holds
    out: str = ""
    invite: str = ""  # the key of the invite by which it came, if this peer has seen its pass


class InviteView(BaseModel):
    """An invite that this peer has given out. `used` is counted only if the invite has limits."""

    model_config = ConfigDict(frozen=True)

    key: str
    note: str = ""
    role: str
    uses: int | None = None
    used: int | None = None
    expires_unix_seconds: int | None = None
    made_unix_seconds: int
    revoked: bool = False


class MemberList(BaseModel):
    """All members that this peer knows; those that are banned or removed come last."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    members: tuple[RunMember, ...]
    invites: tuple[InviteView, ...] = ()
