"""The proof behind exported weights, checked without a network (design §9, a checkpoint proves itself). Pure.

A proof holds, for each fragment, certificates that lead to its version, and the momentum's Merkle root. Together with
the root of the weights, that gives the state digest which the newest certificate signs. Certificates that go back to
version 1 begin with the founders in the manifest; in a long run a few of them stand for all
(`coordinator.chain.skipping`). A peer that came later has only those that determine the active set before the newest
one. The proof then does not show whether these belong to the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import Field

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import CHAIN_KEPT, Chain, Rules, linked
from coordinator.chain.packed_history import PackedHistory
from coordinator.chain.skipping import skipping, vouches_for
from coordinator.run.manifest import FRAGMENTS_MAX, Manifest
from dht.errors import LocalError, PeerError
from dht.identity import PeerId, Verifier
from dht.statement import Digest
from dht.wire import Wire, items_of

PROOF_BYTES_MAX = 1 << 30
FIELDS_MAX = 16  # of a proof or of its fragments, including those of later minor versions
ONE_FIELD = b"\x91"  # start of the encoding of a model with one field


class _Momentum(Wire):
    momentum: Digest


class FragmentProof(Wire):
    """The proof of one fragment: the Merkle root of its momentum, and certificates up to its version, oldest first."""

    momentum: Digest
    certificates: tuple[Certificate, ...] = Field(min_length=1, max_length=CHAIN_KEPT)


class Proof(Wire):
    """The proof of a whole model."""

    fragments: tuple[FragmentProof, ...] = Field(min_length=1, max_length=FRAGMENTS_MAX)

    @classmethod
    def from_wire(cls, data: bytes, bytes_max: int = PROOF_BYTES_MAX) -> Self:
        """Decode one certificate at a time; raises PeerError.

        Decoded as a whole, data that is no proof would take thirty times its bytes before it is refused.
        """
        if len(data) > bytes_max:
            raise PeerError(f"Proof of {len(data)} bytes is over the limit of {bytes_max}")
        (fragments,) = _first_fields(data, 1)
        found = [_read_fragment(one) for one in items_of(fragments, FRAGMENTS_MAX)]
        if not found:
            raise PeerError("Proof of no fragments")
        return cls(fragments=tuple(found))


def _read_fragment(data: bytes) -> FragmentProof:
    momentum, certificates = _first_fields(data, 2)
    found = [Certificate.from_wire(one) for one in items_of(certificates, CHAIN_KEPT)]
    if not found:
        raise PeerError("Proof without certificates")
    return FragmentProof(momentum=_Momentum.from_wire(ONE_FIELD + momentum).momentum, certificates=tuple(found))


def _first_fields(data: bytes, count: int) -> list[bytes]:
    fields = items_of(data, FIELDS_MAX)
    if len(fields) < count:
        raise PeerError("Proof lacks a part")
    return fields[:count]


@dataclass(frozen=True, slots=True)
class ProvenFragment:
    """The facts that a fragment's certificates prove."""

    version: int
    head: bytes  # digest of this version
    first_version: int  # of the oldest certificate; 1: back to the founders
    minor_versions: tuple[int, ...]
    head_voters: frozenset[PeerId]
    signed: Counter[PeerId]  # versions that each key has signed, of those shown
    shown: int  # certificates

    @property
    def from_founders(self) -> bool:
        """Whether only the founders, and peers that they and their successors let in, can have made this version."""
        return self.first_version == 1 and not self.minor_versions


def proving(passed: Sequence[Certificate], certificates: Sequence[Certificate], memory: int) -> tuple[Certificate, ...]:
    """Return the certificates of a fragment that an export carries, oldest first; raises LocalError if too few exist.

    `passed` stand for the ones before `certificates`; `memory` is how many decide about the next one (`Rules.memory`).
    """
    few = skipping(passed, certificates)
    if few and certificates and few[-1].digest == certificates[-1].digest:
        return tuple(few)
    if certificates and certificates[0].version == 1:
        return tuple(certificates)
    if len(certificates) <= memory:
        raise LocalError(
            f"this peer holds only {len(certificates)} certificates of one of the fragments, too few to prove it; "
            "wait for some more versions"
        )
    return tuple(certificates[-memory - 1 :])


def check_fragment(
    manifest: Manifest, fragment: int, certificates: Sequence[Certificate], state: bytes, verifier: Verifier
) -> ProvenFragment:
    """Raise PeerError unless the newest certificate signs this state and follows from the others."""
    _check_chain(manifest, fragment, certificates, verifier)
    if certificates[-1].state != state:
        raise PeerError(f"the weights of fragment {fragment} are not those that its certificate signs")
    signed: Counter[PeerId] = Counter()
    for certificate in certificates:
        signed.update(certificate.voters)
    return ProvenFragment(
        version=certificates[-1].version,
        head=certificates[-1].digest,
        first_version=certificates[0].version,
        minor_versions=tuple(one.version for one in certificates if one.outcome.minor),
        head_voters=certificates[-1].voters,
        signed=signed,
        shown=len(certificates),
    )


def _check_chain(manifest: Manifest, fragment: int, certificates: Sequence[Certificate], verifier: Verifier) -> None:
    rules = Rules.of(manifest, verifier)
    from_founders = certificates[0].version == 1
    skips = from_founders and certificates[-1].version > len(certificates)
    known = 0 if from_founders else rules.memory
    if len(certificates) <= known:
        raise PeerError(f"the certificates of fragment {fragment} are too few to check the newest")
    start = PackedHistory(linked(rules, fragment, certificates[:known]))
    chain = Chain(rules, fragment, manifest.genesis[fragment], start)
    for place, certificate in enumerate(certificates[known:], known):
        if skips and place:
            reason = _unvouched(certificates[place - 1], certificate) or rules.refusal(certificate)
        else:
            reason = chain.refusal(certificate)
            chain.append(certificate)
        if reason is not None:
            raise PeerError(f"the certificate of version {certificate.version} of fragment {fragment} {reason}")


def _unvouched(older: Certificate, newer: Certificate) -> str | None:
    if vouches_for(older, newer):
        return None
    return f"is not signed by most of the group of version {older.version}"
