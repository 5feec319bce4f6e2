"""Who is in a run, as one peer knows it: for `muster members`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Role = Literal["organiser", "co-organiser", "founder", "observer", "trainer", "newcomer"]


class RunMember(BaseModel):
    """One key. `live`: seen within a presence lifetime. `out`: why it has no part any more; empty while it has."""

    model_config = ConfigDict(frozen=True)

    peer_id: str
    name: str = ""
    role: Role  # an observer only looks; a newcomer has no certified share yet
    live: bool
    since_unix_seconds: float | None = None  # since when it has been seen without a break, while it is live
    tokens: int = 0  # certified, as far as this peer holds certificates
    out: str = ""
    invite: str = ""  # the key of the invite by which it came, where this peer has seen its pass


class InviteView(BaseModel):
    """An invite that this peer has given out. `used` is counted only where there are limits."""

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
    """All that this peer knows of, those with a part first."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    members: tuple[RunMember, ...]
    invites: tuple[InviteView, ...] = ()
