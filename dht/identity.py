"""One Ed25519 key per peer: it authenticates the transport and signs every statement (design §5).

The libp2p peer id of an Ed25519 key *contains* the public key, so anyone verifies a signature from the peer id alone.
"""

from __future__ import annotations

import hashlib
import os
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NewType, Protocol

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dht.errors import LocalError, PeerError, UsageError

PeerId = NewType("PeerId", str)
"""Base58 text of a libp2p peer id (`12D3Koo…`)."""

SEED_BYTES = 32
PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64
VERIFIED_KEPT = 4096  # digests of verified statements: several rounds of a full group
# libp2p protobuf PublicKey{type: Ed25519, data: 32 bytes}, wrapped in an identity multihash
_PEER_ID_PREFIX = b"\x00\x24\x08\x01\x12\x20"
# libp2p protobuf PrivateKey{type: Ed25519, data: 64 bytes}
_PRIVATE_KEY_PREFIX = b"\x08\x01\x12\x40"


class Signer(Protocol):
    """The signing port: real keys in production, keyed hashes in the simulator."""

    @property
    def peer_id(self) -> PeerId: ...

    def sign(self, data: bytes) -> bytes:
        """Return a signature over `data` that `Verifier` accepts for `peer_id`."""
        ...


class Verifier(Protocol):
    """The verifying half of the signing port."""

    def verify(self, peer_id: PeerId, data: bytes, signature: bytes) -> bool:
        """True if `peer_id` signed `data`; never raises on hostile input."""
        ...


class Identity:
    """A peer's key pair. Immutable; the seed never leaves it except through `save` and `libp2p_private_key`."""

    def __init__(self, seed: bytes, is_new: bool = False) -> None:
        if len(seed) != SEED_BYTES:
            raise ValueError(f"an Ed25519 seed has {SEED_BYTES} bytes, not {len(seed)}")
        self._seed = seed
        self.is_new = is_new  # made just now, so it cannot be in use elsewhere
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self._public = self._key.public_key().public_bytes_raw()
        self._peer_id = peer_id_of(self._public)

    @property
    def peer_id(self) -> PeerId:
        return self._peer_id

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)

    def libp2p_private_key(self) -> bytes:
        """Return the key as the protobuf that libp2p reads from an identity file."""
        return _PRIVATE_KEY_PREFIX + self._seed + self._public

    def save(self, path: Path) -> None:
        """Write the libp2p identity file, readable by its owner only; never overwrites an existing key."""
        temporary = path.with_name(f"{path.name}.{os.getpid()}")  # a crash must not leave half a key under its name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(self.libp2p_private_key())
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)
        except OSError as error:
            if path.is_file():
                raise UsageError(f"{path} already holds a key; remove it or choose another file") from None
            raise LocalError(
                f"the key {path} cannot be written: {error.strerror}; make room or give rights there, "
                "or choose another folder (--data)"
            ) from None
        finally:
            with suppress(OSError):
                temporary.unlink()

    @classmethod
    def load(cls, path: Path) -> Identity:
        """Read a libp2p identity file; raises UsageError if it is not an Ed25519 key."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise UsageError(f"there is no key file at {path}; give the right path or let muster create one") from None
        except OSError as error:
            raise UsageError(
                f"the key {path} cannot be read: {error.strerror}; make it readable for this user"
            ) from None
        if not data.startswith(_PRIVATE_KEY_PREFIX) or len(data) != len(_PRIVATE_KEY_PREFIX) + 64:
            raise UsageError(f"{path} is not an Ed25519 libp2p key; move it away and let muster create one")
        identity = cls(data[len(_PRIVATE_KEY_PREFIX) :][:SEED_BYTES])
        if identity.libp2p_private_key() != data:
            raise UsageError(f"{path} is damaged: its two halves do not belong together; restore it from a backup")
        return identity

    @classmethod
    def load_or_create(cls, path: Path) -> Identity:
        """Return the key in `path`, which is created on first use."""
        if path.exists():
            return cls.load(path)
        identity = cls(os.urandom(SEED_BYTES), is_new=True)
        identity.save(path)
        return identity


class KeyVerifier:
    """Verifies Ed25519 signatures from the peer id alone.

    The same statement is verified many times: in the search for contradictions, in its round, in the roster or bundle
    around it, in a certificate. Valid signatures are remembered, so each costs one Ed25519 check. Forgeries are not
    remembered: they cost nothing to make, and would displace the statements of honest peers.
    """

    def __init__(self) -> None:
        self._verified: dict[bytes, None] = {}  # oldest first
        self._lock = threading.Lock()  # a starting peer checks its chains in another thread

    def verify(self, peer_id: PeerId, data: bytes, signature: bytes) -> bool:
        if len(signature) != SIGNATURE_BYTES:
            return False
        signer = peer_id.encode("utf-8", "surrogatepass")  # each part has a known length, so no two claims share a name
        name = hashlib.sha256(b"".join((signature, len(signer).to_bytes(8, "big"), signer, data))).digest()
        if name in self._verified:
            return True
        try:
            public_key_of(peer_id).verify(signature, data)
        except (InvalidSignature, PeerError):
            return False
        with self._lock:
            self._verified[name] = None
            if len(self._verified) > VERIFIED_KEPT:
                del self._verified[next(iter(self._verified))]
        return True


def peer_id_of(public_key: bytes) -> PeerId:
    """Return the libp2p peer id that contains this 32-byte public key."""
    return PeerId(base58.b58encode(_PEER_ID_PREFIX + public_key).decode())


@lru_cache(maxsize=4096)
def public_key_of(peer_id: PeerId) -> Ed25519PublicKey:
    """Return the public key inside a peer id; raises PeerError if it holds none."""
    try:
        raw = base58.b58decode(peer_id)
    except ValueError:
        raise PeerError("peer id is not base58") from None
    if len(raw) != len(_PEER_ID_PREFIX) + PUBLIC_KEY_BYTES or not raw.startswith(_PEER_ID_PREFIX):
        raise PeerError("not an Ed25519 peer id")
    if base58.b58encode(raw).decode() != peer_id:  # the decoder strips white space: one key would have many ids
        raise PeerError("a peer id that is written otherwise than its key")
    try:
        return Ed25519PublicKey.from_public_bytes(raw[len(_PEER_ID_PREFIX) :])
    except ValueError:
        raise PeerError("peer id holds no valid Ed25519 key") from None
