"""Passes: proof that a peer may take part in a run that is not open to everybody, checked without a server. Pure.

The organiser or a co-organiser signs a *grant* for a key, with its limits. The key is one peer's or an invite's; the
holder of an invite's key signs with it the ids of the peers it lets in. A *pass* is the grant with that signature.
Anybody who knows the run and its organiser can verify it. A *ticket* is the part of an invite that holds the grant and
the key to sign with.

A pass does not tell how often its invite was used or which peers were removed. `coordinator.core.admission_control`
keeps track of both.
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

Role = Literal["trainer", "witness", "observer"]  # `witness` is no longer given out, but old passes may name it


class Grant(Wire):
    """Permission for a key to take part in a role, or to let in others. Without limits it holds until revoked."""

    OMITS_NONE: ClassVar[bool] = True

    key: PeerIdText  # a peer's, or an invite's
    role: Role = "trainer"
    uses: int | None = Field(None, ge=1, le=USES_MAX)  # how many keys an invite lets in
    expires_unix_seconds: int | None = Field(None, ge=0, le=UNIX_SECONDS_MAX)  # no new peer is let in after this

    @property
    def is_limited(self) -> bool:
        """Whether it has a limit, so that it matters which peers it has let in before."""
        return self.uses is not None or self.expires_unix_seconds is not None


class SignedGrant(Wire):
    """A signed grant. A co-organiser adds its id as `issuer`, and the organiser's signature that appoints it."""

    OMITS_NONE: ClassVar[bool] = True

    grant: bytes = Field(max_length=GRANT_BYTES_MAX)
    signature: bytes = Field(max_length=64)
    issuer: PeerIdText | None = None
    delegation: bytes | None = Field(None, max_length=64)


class Pass(Wire):
    """A peer's proof that it may come in. `admission` is an invite's signature, None if the grant names the peer."""

    OMITS_NONE: ClassVar[bool] = True

    word: SignedGrant
    admission: bytes | None = Field(None, max_length=64)


class Ticket(Wire):
    """The part of an invite that lets its holder in. `seed` is the invite's key, None if the grant names one peer."""

    OMITS_NONE: ClassVar[bool] = True

    word: SignedGrant
    seed: bytes | None = Field(None, min_length=SEED_BYTES, max_length=SEED_BYTES)

    @property
    def grant(self) -> Grant:
        return Grant.from_wire(self.word.grant)


class Delegation(Wire):
    """The organiser's statement that another key may give orders and let others in, too."""

    deputy: PeerIdText


@dataclass(frozen=True, slots=True)
class AdmissionAuthority:
    """The organiser of a run, whose grants count there, and the verifier for its signatures."""

    run_id: bytes
    organiser: PeerId
    verifier: Verifier


@dataclass(frozen=True, slots=True)
class ProvenPass:
    """The content of a pass whose signatures are verified. `invite` is the key of the invite that was used, if any."""

    grant: Grant
    issuer: PeerId
    invite: PeerId | None = None


def place(run_id: bytes, kind: str, group: bytes = b"") -> Context:
    """Return the context of statements about the run as a whole."""
    return Context(run_id=run_id, kind=kind, fragment=0, version=0, group=group)


def sign_grant(issuer: Signer, run_id: bytes, grant: Grant, delegation: bytes | None = None) -> SignedGrant:
    """Sign a grant as the organiser or, with the organiser's `delegation`, as a co-organiser."""
    body = grant.to_wire()
    signature = issuer.sign(signed_bytes(place(run_id, "grant"), issuer.peer_id, body))
    return SignedGrant(
        grant=body,
        signature=signature,
        issuer=None if delegation is None else issuer.peer_id,
        delegation=delegation,
    )


def admit(invite: Signer, run_id: bytes, word: SignedGrant, peer: PeerId) -> Pass:
    """Make the pass of a peer that an invite's key lets in."""
    return Pass(word=word, admission=invite.sign(_admission(run_id, word, invite.peer_id, peer)))


def pass_of(ticket: Ticket, run_id: bytes, peer: PeerId) -> Pass:
    """Return the pass of a peer that holds this ticket."""
    if ticket.seed is None:
        return Pass(word=ticket.word)
    return admit(Identity(ticket.seed), run_id, ticket.word, peer)


@lru_cache(maxsize=READ_KEPT)  # read with every call and join; errors are not cached
def read_pass(data: bytes, peer: PeerId, authority: AdmissionAuthority) -> ProvenPass:
    """Verify the pass that a peer shows, cheapest checks first; raises PeerError if it proves nothing.

    Does not check whether its limits are reached or anything in it was revoked.
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
    """Whether this is the organiser's signature that makes a key a co-organiser."""
    body = Delegation(deputy=deputy).to_wire()
    return authority.verifier.verify(
        authority.organiser, signed_bytes(place(authority.run_id, "delegate"), authority.organiser, body), signature
    )
