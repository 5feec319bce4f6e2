"""An invite: everything a volunteer needs to take part, in one line of text (design §2, §8)."""

from __future__ import annotations

import base64
import binascii
import re
from contextlib import suppress
from dataclasses import dataclass

from pydantic import Field

from dht.addresses import PeerAddress
from dht.admission import Ticket, pass_of
from dht.errors import PeerError, UsageError
from dht.identity import PeerId, peer_id_of, public_key_of
from dht.statement import Digest, digest_of
from dht.wire import Wire

INVITE_VERSION = 1
ADDRESSES_MAX = 8
TOKEN_BYTES_MAX = 512
INVITE_BYTES_MAX = 2000  # below 2048 the first base32 letter is always `a`, which ends the version number
_PREFIX = "muster"
_LABEL = "invite:"  # `muster host` prints it before the invite, and people paste the whole line
_LENGTH_BYTES = 2
_CHECKSUM_BYTES = 4
_CUT_SHORT = "the invite is cut short; copy the whole line again"
_DAMAGED = "the invite is damaged; copy the whole line again"


class _InviteBody(Wire):
    """The content of the text. An address that ends in the organiser's peer id leaves that out."""

    run_id: Digest
    organiser_key: bytes = Field(min_length=32, max_length=32)
    addresses: tuple[str, ...] = Field(min_length=1, max_length=ADDRESSES_MAX)
    token: bytes | None = Field(None, max_length=TOKEN_BYTES_MAX)  # an encoded `Ticket`, unless everybody may join
    heads_digest: Digest | None = None
    heads_version: int | None = Field(None, ge=0, le=2**53)


@dataclass(frozen=True, slots=True)
class Invite:
    """A run, its organiser, addresses to call, the heads that the issuer vouches for, and a ticket for its holder.

    `heads_version` is one version of every fragment, `heads_digest` a hash over the digests of the heads.
    `str(invite)` is the line of text; raises UsageError if it would not fit.
    """

    run_id: bytes
    organiser: PeerId
    addresses: tuple[PeerAddress, ...]
    heads_digest: bytes | None = None
    heads_version: int | None = None
    ticket: Ticket | None = None

    def __str__(self) -> str:
        if not 1 <= len(self.addresses) <= ADDRESSES_MAX:
            raise UsageError(f"an invite names 1 to {ADDRESSES_MAX} addresses, not {len(self.addresses)}")
        body = _InviteBody(
            run_id=self.run_id,
            organiser_key=public_key_of(self.organiser).public_bytes_raw(),
            addresses=tuple(address.text.removesuffix(self.organiser) for address in self.addresses),
            token=None if self.ticket is None else self.ticket.to_wire(),
            heads_digest=self.heads_digest,
            heads_version=self.heads_version,
        ).to_wire()
        if len(body) > INVITE_BYTES_MAX:
            raise UsageError("the invite is too long; name fewer addresses")
        return f"{_PREFIX}{INVITE_VERSION}{_encode(_framed(body))}"

    @property
    def named(self) -> PeerId | None:
        """The only peer that may use it; None if any holder may."""
        return PeerId(self.ticket.grant.key) if self.ticket is not None and self.ticket.seed is None else None

    def check_named(self, peer: PeerId | None) -> None:
        """Raise UsageError if the invite is for another peer than `peer`, which is None if it has no key yet."""
        if self.named not in (None, peer):
            raise UsageError(
                f"this invite is for the peer {self.named} alone, whose key is not in the folder here; name its folder "
                "with --data, or ask the organiser for another invite"
            )

    @property
    def peers(self) -> frozenset[PeerId]:
        """The peers at its addresses."""
        return frozenset(address.peer_id for address in self.addresses)

    def pass_for(self, peer: PeerId) -> bytes:
        """Return the pass that this peer shows to be let in; empty if the invite holds no ticket."""
        return b"" if self.ticket is None else pass_of(self.ticket, self.run_id, peer).to_wire()

    @classmethod
    def parse(cls, text: str) -> Invite:
        """Read an invite, however it was wrapped or capitalised on its way; raises UsageError."""
        try:
            body = _InviteBody.from_wire(_unframed(_data_of(_bare(text))))
        except PeerError:  # the checksum is right, so its maker got it wrong
            raise UsageError("the invite holds something this version cannot read; ask for a new one") from None
        organiser = peer_id_of(body.organiser_key)
        addresses = tuple(_address_of(address, organiser) for address in body.addresses)
        return cls(body.run_id, organiser, addresses, body.heads_digest, body.heads_version, _ticket(body))


def looks_like_invite(text: str) -> bool:
    """Whether a text is meant as an invite, not as the path of a file."""
    return _bare(text).startswith(_PREFIX)


def _bare(text: str) -> str:
    """Strip blanks, capitals and the label from a pasted invite."""
    return "".join(text.split()).lower().removeprefix(_LABEL)


def _ticket(body: _InviteBody) -> Ticket | None:
    """Decode the ticket; None if there is none, or the token is something else, as in early invites."""
    if body.token is None:
        return None
    with suppress(PeerError):
        ticket = Ticket.from_wire(body.token)
        ticket.grant  # noqa: B018 - raises
        return ticket
    return None


def _address_of(address: str, organiser: PeerId) -> PeerAddress:
    return PeerAddress.parse(address + organiser if address.endswith("/p2p/") else address)


def _data_of(text: str) -> str:
    """Return the base32 text after the prefix and the version number; raises UsageError."""
    if not text.startswith(_PREFIX):
        if text and _PREFIX.startswith(text):
            raise UsageError(_CUT_SHORT)
        raise UsageError(f"this is not an invite; one begins with {_PREFIX}{INVITE_VERSION}")
    match = re.fullmatch(r"([0-9]{1,4})(a.*)?", text.removeprefix(_PREFIX))
    if match is None:
        raise UsageError(_CUT_SHORT if text == _PREFIX else _DAMAGED)
    if int(match[1]) > INVITE_VERSION:
        raise UsageError("the invite is for a newer Muster; update Muster here")
    if int(match[1]) < INVITE_VERSION:
        raise UsageError(_DAMAGED)
    return match[2] or ""


def _framed(body: bytes) -> bytes:
    """Add a length and a checksum to the body, which tell a truncated invite from a damaged one."""
    framed = len(body).to_bytes(_LENGTH_BYTES, "big") + body
    return framed + _checksum(framed)


def _unframed(data: str) -> bytes:
    raw = _decode(data)
    if len(raw) < _LENGTH_BYTES:
        raise UsageError(_CUT_SHORT)
    end = _LENGTH_BYTES + int.from_bytes(raw[:_LENGTH_BYTES], "big")
    if len(raw) < end + _CHECKSUM_BYTES:
        raise UsageError(_CUT_SHORT)
    if len(raw) > end + _CHECKSUM_BYTES or _encode(raw) != data:
        raise UsageError("there is something after the end of the invite; copy only the invite itself")
    if _checksum(raw[:end]) != raw[end:]:
        raise UsageError(_DAMAGED)
    return raw[_LENGTH_BYTES:end]


def _checksum(framed: bytes) -> bytes:
    return digest_of(b"muster-invite", framed)[:_CHECKSUM_BYTES]


def _encode(raw: bytes) -> str:
    return base64.b32encode(raw).decode().lower().rstrip("=")


def _decode(data: str) -> bytes:
    """Decode the whole bytes in base32 text of any length, so that the beginning of a truncated one can be read."""
    try:
        whole = data[: len(data) - (len(data) % 8 in (1, 3, 6))]  # these lengths end within a byte
        return base64.b32decode(whole.upper() + "=" * (-len(whole) % 8))
    except (binascii.Error, ValueError):
        raise UsageError(_DAMAGED) from None
