"""Passes: who may take part in a run that is not open to everybody, shown and checked without any server. Pure.

The organiser, or a co-organiser, signs a *grant* about a key, with its limits. The key is one peer's, or that of an
invite: the holder of an invite's key signs with it whom it lets in. A *pass* is the grant with that signature. It
proves itself to anybody who knows the run and its organiser. A *ticket* is what an invite carries: the grant, and the
key to sign with.

How often an invite was used, and who was shown out, does not follow from a pass: `coordinator.core.admission_control`
knows that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

from pydantic import Field

from dht.errors import PeerError
from dht.identity import SEED_BYTES, Identity, PeerId, Signer, Verifier
from dht.statement import Context, PeerIdText, digest_of, signed_bytes
from dht.wire import Wire

PASS_BYTES_MAX = 512
GRANT_BYTES_MAX = 128
USES_MAX = 256
READ_KEPT = 4096
UNIX_SECONDS_MAX = 2**40

Role = Literal["trainer", "witness", "observer"]  # nobody gives out `witness` any more; passes may say it


class Grant(Wire):
    """«This key may take part as that», or let in others who may. Without limits it holds until it is revoked."""

    OMITS_NONE: ClassVar[bool] = True

    key: PeerIdText  # a peer's, or an invite's
    role: Role = "trainer"
    uses: int | None = Field(None, ge=1, le=USES_MAX)  # how many keys an invite lets in
    expires_unix_seconds: int | None = Field(None, ge=0, le=UNIX_SECONDS_MAX)  # nobody new is let in afterwards

    @property
    def is_limited(self) -> bool:
        """Whether it matters who was let in by it before."""
        return self.uses is not None or self.expires_unix_seconds is not None


class SignedGrant(Wire):
    """A signed grant. A co-organiser names itself as `issuer`, with the organiser's signature that it is one."""

    OMITS_NONE: ClassVar[bool] = True

    grant: bytes = Field(max_length=GRANT_BYTES_MAX)
    signature: bytes = Field(max_length=64)
    issuer: PeerIdText | None = None
    delegation: bytes | None = Field(None, max_length=64)


class Pass(Wire):
    """What a peer shows at every door; `admission` is an invite's signature, None where the grant names the peer."""

    OMITS_NONE: ClassVar[bool] = True

    word: SignedGrant
    admission: bytes | None = Field(None, max_length=64)


class Ticket(Wire):
    """What an invite carries; `seed` is the invite's key, None where the grant names one peer."""

    OMITS_NONE: ClassVar[bool] = True

    word: SignedGrant
    seed: bytes | None = Field(None, min_length=SEED_BYTES, max_length=SEED_BYTES)

    @property
    def grant(self) -> Grant:
        return Grant.from_wire(self.word.grant)


class Delegation(Wire):
    """«This key may give orders as I may, and let others in», said by the organiser."""

    deputy: PeerIdText


@dataclass(frozen=True, slots=True)
class AdmissionAuthority:
    """Whose word counts in a run."""

    run_id: bytes
    organiser: PeerId
    verifier: Verifier


@dataclass(frozen=True, slots=True)
class ProvenPass:
    """What a pass says, its signatures verified. `invite` is the key of the invite by which the peer came, if any."""

    grant: Grant
    issuer: PeerId
    invite: PeerId | None = None


def place(run_id: bytes, kind: str, group: bytes = b"") -> Context:
    """Where what is said once for the whole run is said."""
    return Context(run_id=run_id, kind=kind, fragment=0, version=0, group=group)


def sign_grant(issuer: Signer, run_id: bytes, grant: Grant, delegation: bytes | None = None) -> SignedGrant:
    """The organiser's word, or with its `delegation` that of a co-organiser."""
    body = grant.to_wire()
    signature = issuer.sign(signed_bytes(place(run_id, "grant"), issuer.peer_id, body))
    return SignedGrant(
        grant=body,
        signature=signature,
        issuer=None if delegation is None else issuer.peer_id,
        delegation=delegation,
    )


def admit(invite: Signer, run_id: bytes, word: SignedGrant, peer: PeerId) -> Pass:
    """The pass of a peer whom an invite's key lets in."""
    return Pass(word=word, admission=invite.sign(_admission(run_id, word, invite.peer_id, peer)))


def pass_of(ticket: Ticket, run_id: bytes, peer: PeerId) -> Pass:
    """What this peer shows who was given this ticket."""
    if ticket.seed is None:
        return Pass(word=ticket.word)
    return admit(Identity(ticket.seed), run_id, ticket.word, peer)


@lru_cache(maxsize=READ_KEPT)  # met with every call and join; what proves nothing is not kept
def read_pass(data: bytes, peer: PeerId, authority: AdmissionAuthority) -> ProvenPass:
    """What a pass says of the peer that shows it; raises PeerError if it proves nothing. The cheapest is checked first.

    Whether its limits are reached, or anything in it was revoked, is not asked here.
    """
    shown = Pass.from_wire(data, PASS_BYTES_MAX)
    word = shown.word
    grant = Grant.from_wire(word.grant)
    if shown.to_wire() != data or grant.to_wire() != word.grant:
        raise PeerError("a pass with something in it that nobody here knows")
    key, named = PeerId(grant.key), shown.admission is None
    if named and key != peer:
        raise PeerError("a pass of another peer")
    issuer = authority.organiser if word.issuer is None else PeerId(word.issuer)
    if (word.issuer is None) != (word.delegation is None) or word.issuer == authority.organiser:
        raise PeerError("a pass whose issuer is not clear")
    if word.delegation is not None and not is_deputy(issuer, word.delegation, authority):
        raise PeerError("a pass of somebody who may give none")
    if not authority.verifier.verify(
        issuer, signed_bytes(place(authority.run_id, "grant"), issuer, word.grant), word.signature
    ):
        raise PeerError("a pass that its issuer did not sign")
    if shown.admission is None:
        return ProvenPass(grant, issuer)
    if not authority.verifier.verify(key, _admission(authority.run_id, word, key, peer), shown.admission):
        raise PeerError("a pass of another peer")
    return ProvenPass(grant, issuer, key)


def _admission(run_id: bytes, word: SignedGrant, invite: PeerId, peer: PeerId) -> bytes:
    return signed_bytes(place(run_id, "admit", digest_of(word.grant)), invite, peer.encode())


def is_deputy(deputy: PeerId, signature: bytes, authority: AdmissionAuthority) -> bool:
    """Whether this is the organiser's signature that a key is a co-organiser."""
    body = Delegation(deputy=deputy).to_wire()
    return authority.verifier.verify(
        authority.organiser, signed_bytes(place(authority.run_id, "delegate"), authority.organiser, body), signature
    )
