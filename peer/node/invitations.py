"""The means to let others in: the invites of an organiser, and the ticket of this peer's own (docs/adr/0061)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from coordinator.chain.used_invites import uses_of
from coordinator.core.context import Core
from coordinator.views.members import InviteView
from dht.admission import Grant, Role, Ticket
from dht.errors import UsageError
from dht.identity import SEED_BYTES, Identity, PeerId
from peer.machine.text import plain
from peer.node.organiser_rights import OrganiserRights
from peer.storage.invite_file import NOTE_CHARACTERS_MAX, GivenInvite, keep_invite, read_invites

DURATION_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
KEYS = ("uses", "expires", "role", "peer", "note")
ENDING_CHARACTERS_MIN = 6  # of an id, as shown by `muster members`
ROLES: tuple[Role, ...] = ("trainer", "observer")  # a host needs no invite: it begins a run


@dataclass(frozen=True, slots=True)
class WantedInvite:
    """The invite that an organiser asks for. If `peer` is set, no other peer can use it."""

    uses: int | None = None
    expires_seconds: int | None = None
    role: Role = "trainer"
    peer: PeerId | None = None
    note: str = ""

    @classmethod
    def parse(cls, words: Sequence[str]) -> WantedInvite:
        """Parse words of the form `KEY=VALUE`; raises UsageError."""
        given = dict(word.partition("=")[::2] for word in words)
        if unknown := given.keys() - set(KEYS):
            raise UsageError(f"{min(unknown)!r} is nothing that an invite has")
        role = next((one for one in ROLES if one == given.get("role", "trainer")), None)
        if role is None:
            raise UsageError(f"--role {given['role']} is none; choose one of {', '.join(ROLES)}")
        if role == "observer" and "uses" in given:
            raise UsageError(
                "--uses counts peers that train, so it does not bound who looks; bound an invite for observers with "
                "--expires, or name who may use it with --peer"
            )
        return cls(
            uses=_number(given["uses"]) if "uses" in given else None,
            expires_seconds=_seconds(given["expires"]) if "expires" in given else None,
            role=role,
            peer=PeerId(given["peer"]) if "peer" in given else None,
            note=plain(given.get("note", ""), NOTE_CHARACTERS_MAX),
        )


class Invitations:
    """The invites of one peer in one run. `own_ticket` is the ticket of the invite with which it came."""

    def __init__(self, core: Core, organiser_rights: OrganiserRights, folder: Path, own_ticket: Ticket | None) -> None:
        self._core = core
        self._organiser_rights = organiser_rights
        self._folder = folder
        self._own_ticket = own_ticket

    def ticket(self, words: Sequence[str], now: float) -> Ticket | None:
        """Return the ticket for the next invite: as asked for, or the usual one; None where the run needs no pass.

        Raises UsageError if this peer may not give it.
        """
        if not self._core.admission.is_closed:
            if words:
                raise UsageError("anybody may take part in this run, so its invites have no limits")
            return None
        if words:
            self._organiser_rights.require()
            return self._mint(WantedInvite.parse(words), now)
        if self._organiser_rights.may_give():
            return self._usual(now)
        if self._own_ticket is None or self._own_ticket.seed is None:
            raise UsageError(
                f"the invite by which this peer came is for it alone; ask the organiser, {self._core.rules.organiser}"
            )
        return self._own_ticket

    def find(self, ending: str) -> PeerId | None:
        """Return the key of the one invite made here that ends like this, or has this note; else None.

        An ending counts if it has `ENDING_CHARACTERS_MIN` letters. An invite without a note is not found by one.
        """
        given = read_invites(self._folder) if ending else ()
        enough = len(ending) >= ENDING_CHARACTERS_MIN
        found = {one.key for one in given if enough and one.key.endswith(ending)} or {
            one.key for one in given if one.note == ending
        }
        return found.pop() if len(found) == 1 else None

    def own_keys(self) -> frozenset[PeerId]:
        """Return the keys of the invites made here, where they have keys of their own."""
        return frozenset(one.key for one in read_invites(self._folder) if one.content.seed is not None)

    def views(self) -> tuple[InviteView, ...]:
        """Return the invites made here, for `muster members`."""
        return tuple(self._view(one) for one in read_invites(self._folder))

    def _view(self, given: GivenInvite) -> InviteView:
        grant, key = given.content.grant, given.key
        return InviteView(
            key=key,
            note=given.note,
            role=grant.role,
            uses=grant.uses,
            used=len(uses_of(self._core.admission.used_invites, key)) if grant.is_limited else None,
            expires_unix_seconds=grant.expires_unix_seconds,
            made_unix_seconds=given.made_unix_seconds,
            revoked=self._core.bans.orders.is_revoked(key),
        )

    def _usual(self, now: float) -> Ticket:
        """Return a ticket without limits, the same until it is revoked; raises UsageError where a list names peers."""
        spec = self._core.rules.admission
        if spec is not None and spec.mode == "list":
            raise UsageError("this run lets in only peers that are named; name one: muster invite --peer ID")
        for given in reversed(read_invites(self._folder)):
            grant = given.content.grant
            plain_one = not grant.is_limited and grant.role == "trainer" and given.content.seed is not None
            if plain_one and not given.note and not self._core.bans.orders.is_revoked(given.key):
                return given.content
        return self._mint(WantedInvite(), now)

    def _mint(self, wanted: WantedInvite, now: float) -> Ticket:
        spec = self._core.rules.admission
        if wanted.peer is None and spec is not None and spec.mode == "list":
            raise UsageError("this run lets in only peers that are named; add --peer ID")
        unix_seconds = self._core.unix_seconds(now)
        seed = None if wanted.peer is not None else os.urandom(SEED_BYTES)
        key = wanted.peer if wanted.peer is not None else Identity(seed or b"").peer_id
        expires = None if wanted.expires_seconds is None else int(unix_seconds) + wanted.expires_seconds
        try:
            grant = Grant(key=key, role=wanted.role, uses=wanted.uses, expires_unix_seconds=expires)
        except ValidationError as error:
            raise UsageError(f"no such invite can be made: {error.errors()[0]['msg'].lower()}") from None
        ticket = Ticket(word=self._organiser_rights.grant(grant), seed=seed)
        given = GivenInvite(ticket=ticket.to_wire().hex(), note=wanted.note, made_unix_seconds=int(unix_seconds))
        keep_invite(self._folder, given)
        return ticket


def _number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise UsageError(f"--uses {text!r} is no number")
    return int(text)


def _seconds(text: str) -> int:
    """Parse a duration like `7d`, `12h`, `30m` or `2w` into seconds; raises UsageError."""
    found = re.fullmatch(r"([0-9]{1,4})([mhdw])", text)
    if found is None or not int(found[1]):
        raise UsageError(f"--expires {text!r} is no time; say 30m, 12h, 7d or 2w")
    return int(found[1]) * DURATION_SECONDS[found[2]]
