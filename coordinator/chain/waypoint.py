"""Waypoints: where a newcomer begins if no peer keeps the run's oldest certificates (design §8). Pure functions.

A waypoint is one version of every fragment, certified and held by the issuer of an invite. The invite carries a hash
over the digests of these versions, the invite's heads. Any holder of the chains can give the heads, and the tail of
certificates that ends at each. A head names its outcome, which names the version before. So the hash vouches for the
whole tail except the signatures, and these are checked. From there on a newcomer follows certificates as all peers do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import Chain, linked
from coordinator.chain.lineage import LINEAGE_DEPTH_MAX
from coordinator.chain.packed_history import PackedHistory
from dht.errors import PeerError
from dht.statement import digest_of

SETTLED_VERSIONS = 4  # the newest versions may still be abandoned, so a waypoint is this much older


@dataclass(frozen=True, slots=True)
class Waypoint:
    """One version of every fragment; `digest` is `heads_digest` over the digests of that version."""

    version: int
    digest: bytes


def heads_digest(run_id: bytes, version: int, heads: Sequence[bytes]) -> bytes:
    """Return the hash that an invite carries; `heads` are the digests of this version, by fragment."""
    return digest_of(b"muster-heads", run_id, version.to_bytes(8, "big"), *heads)


def heads_at(chains: Sequence[Chain], version: int) -> tuple[bytes, ...] | None:
    """Return the digests of this version of all fragments; None if one of them, or what led to it, is not kept."""
    if not all(chain.first_version <= version <= chain.version for chain in chains):
        return None
    return tuple(digest for chain in chains if (digest := chain.digest_at(version)) is not None)


def newest_waypoint(held: Sequence[Chain]) -> Waypoint | None:
    """Return the waypoint for an invite, from chains that end at what its issuer holds; None at the start of a run.

    It lies before every branch that a healing partition may still make us leave. Such a branch begins with a minor
    version, and lies within the depth at which lineages are compared, or within what few made until most come back.
    """
    version = min(_settled(chain) for chain in held)
    heads = heads_at(held, version) if version > 0 else None
    return None if heads is None else Waypoint(version, heads_digest(held[0].rules.run_id, version, heads))


def _settled(chain: Chain) -> int:
    recent = chain.certificates[-LINEAGE_DEPTH_MAX:]
    fork = next((one.version - 1 for one in recent if one.outcome.minor), chain.version)
    if chain.minority_since is not None:
        fork = min(fork, chain.minority_since)
    return min(fork, chain.version - SETTLED_VERSIONS)


def knows(chains: Sequence[Chain], waypoint: Waypoint) -> bool | None:
    """Whether these chains contain the waypoint; None if they end before it or no longer go back to it."""
    heads = heads_at(chains, waypoint.version)
    return None if heads is None else heads_digest(chains[0].rules.run_id, waypoint.version, heads) == waypoint.digest


def tail(chain: Chain, version: int) -> tuple[Certificate, ...]:
    """Return the certificates that determine the active set at this version, oldest first; empty if not kept."""
    if not chain.first_version <= version <= chain.version:
        return ()
    count = min(version, chain.rules.memory)
    return chain.after(version - count, count)


def chain_of_tail(empty: Chain, waypoint_version: int, head: bytes, certificates: Sequence[Certificate]) -> Chain:
    """Build the chain that ends at `head` with these certificates; `empty` is the chain at version 0.

    Raises PeerError unless they are the tail of that version: linked, signed by their rosters, ending at the head.
    """
    first = waypoint_version - min(waypoint_version, empty.rules.memory) + 1
    if not certificates or (certificates[0].version, certificates[-1].version) != (first, waypoint_version):
        raise PeerError("a tail of other versions than those asked for")
    if certificates[-1].digest != head:
        raise PeerError("a tail that ends at another head than the invite's")
    kept = linked(empty.rules, empty.fragment, certificates, empty.digest if first == 1 else None)
    return Chain(empty.rules, empty.fragment, empty.genesis, PackedHistory(kept))
