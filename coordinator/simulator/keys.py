"""Keyed-hash signatures for simulations: as unforgeable inside one process as Ed25519, and much cheaper."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from dht.identity import PeerId, peer_id_of


@dataclass(frozen=True, slots=True)
class KeyedSigner:
    """A signer with a secret that only the simulation's verifier knows."""

    peer_id: PeerId
    secret: bytes

    def sign(self, data: bytes) -> bytes:
        return _mac(self.secret, self.peer_id, data)


@dataclass(frozen=True, slots=True)
class KeyedVerifier:
    """A verifier of signatures by `KeyedSigner`s with the same secret."""

    secret: bytes

    def verify(self, peer_id: PeerId, data: bytes, signature: bytes) -> bool:
        return signature == _mac(self.secret, peer_id, data)


def virtual_peer_id(number: int, seed: int) -> PeerId:
    """Return a well-formed peer id for the `number`-th virtual peer."""
    return peer_id_of(hashlib.sha256(f"virtual peer {number} of {seed}".encode()).digest())


def _mac(secret: bytes, peer_id: PeerId, data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32, key=secret, person=peer_id[-16:].encode()).digest()
