"""Signed statements of peers, each bound to the one context in which it may be made (design §5).

The signature covers `domain ‖ run id ‖ kind ‖ fragment ‖ version ‖ group ‖ sender ‖ body` in canonical encoding, so
a statement cannot be replayed in another run, round or group. The body stays as the bytes that were signed: a reader
that does not know a newer field still verifies and forwards it unchanged.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Annotated, TypeVar

import msgpack
from pydantic import Field

from dht.errors import PeerError
from dht.identity import PeerId, Signer, Verifier
from dht.wire import MESSAGE_BYTES_MAX, PROTOCOL_MAJOR, Wire

DOMAIN = f"muster/{PROTOCOL_MAJOR}"
DIGEST_BYTES = 32
READ_KEPT_BYTES_MAX = 16 << 10  # longer bodies take too much memory to be kept decoded

Digest = Annotated[bytes, Field(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
PeerIdText = Annotated[str, Field(min_length=40, max_length=64, pattern=r"^[1-9A-HJ-NP-Za-km-z]+$")]
Kind = Annotated[str, Field(min_length=1, max_length=16, pattern=r"^[a-z_]+$")]

Body = TypeVar("Body", bound=Wire)


def digest_of(*parts: bytes) -> bytes:
    """SHA-256 over length-prefixed parts, so that no two lists of parts share a digest."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big"))
        hasher.update(part)
    return hasher.digest()


class Context(Wire):
    """The context in which a statement is made. `group` is empty before a group exists."""

    run_id: Digest
    kind: Kind
    fragment: int = Field(ge=0, le=0xFFFF)
    version: int = Field(ge=0, le=2**53)
    group: bytes = Field(max_length=DIGEST_BYTES)


class Statement(Wire):
    """A signed body in its context."""

    context: Context
    sender: PeerIdText
    body: bytes = Field(max_length=MESSAGE_BYTES_MAX)
    signature: bytes = Field(max_length=64)

    @cached_property
    def digest(self) -> bytes:
        """Digest that names this statement, without its signature, which the signer could grind."""
        return digest_of(signed_bytes(self.context, PeerId(self.sender), self.body))

    def read(self, model: type[Body]) -> Body:
        """Decode the body; raises PeerError if it is not a `model`. A body that is not large is decoded only once."""
        body, found = self.__dict__.get("_read", (None, None))  # kept beside the model's fields, as `digest` is
        if body is not self.body or type(found) is not model:  # `model_copy` copies it, too
            found = model.from_wire(self.body)
            if len(self.body) <= READ_KEPT_BYTES_MAX:
                self.__dict__["_read"] = (self.body, found)
        return found

    def verify(self, verifier: Verifier) -> bool:
        """True if `sender` signed this body for this context."""
        return verifier.verify(
            PeerId(self.sender), signed_bytes(self.context, PeerId(self.sender), self.body), self.signature
        )


def signed_bytes(context: Context, sender: PeerId, body: bytes) -> bytes:
    """Return exactly the bytes that a signature covers."""
    return bytes(
        msgpack.packb(
            [DOMAIN, context.run_id, context.kind, context.fragment, context.version, context.group, sender, body],
            use_bin_type=True,
        )
    )


def make_statement(signer: Signer, context: Context, body: Wire) -> Statement:
    """Sign `body` for `context`."""
    encoded = body.to_wire()
    if len(encoded) > MESSAGE_BYTES_MAX:
        raise PeerError(f"a {context.kind} statement of {len(encoded)} bytes is over the limit")
    signature = signer.sign(signed_bytes(context, signer.peer_id, encoded))
    return Statement(context=context, sender=signer.peer_id, body=encoded, signature=signature)
