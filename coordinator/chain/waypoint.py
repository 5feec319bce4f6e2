"""Where a newcomer begins in a run that is older than anybody's memory (design §8: the invite's heads). Pure functions.

A waypoint is one version of every fragment that the issuer of an invite holds certified; the invite carries a hash over
the digests of these versions, its heads. Any holder of the chains can say what the heads are, and give the tail of
certificates that ends at each: a head names its outcome, and that the version before, so the hash vouches for all of it
but the signatures, and these are checked. From there on a newcomer follows certificates as everybody does.
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

SETTLED_VERSIONS = 4  # the newest ones may yet turn out to be nobody's, so a waypoint is this much older


@dataclass(frozen=True, slots=True)
class Waypoint:
    """`digest` is `heads_digest` over the digests of this version of every fragment."""

    version: int
    digest: bytes


def heads_digest(run_id: bytes, version: int, heads: Sequence[bytes]) -> bytes:
    """What an invite carries: `heads` are the digests of this version, by fragment."""
    return digest_of(b"muster-heads", run_id, version.to_bytes(8, "big"), *heads)


def heads_at(chains: Sequence[Chain], version: int) -> tuple[bytes, ...] | None:
    """The digests of this version of all fragments; None where one of them, or what led to it, is not kept."""
    if not all(chain.first_version <= version <= chain.version for chain in chains):
        return None
    return tuple(digest for chain in chains if (digest := chain.digest_at(version)) is not None)


def newest_waypoint(held: Sequence[Chain]) -> Waypoint | None:
    """What an invite should carry, from chains that end at what its issuer holds; None at the start of a run.

    It lies before every branch that a healing partition may still make us leave: such a branch begins with a minor
    version, and is no longer than lineages are compared, or what few made until most come back.
    """
    version = min(_settled(chain) for chain in held)
    heads = heads_at(held, version) if version > 0 else None
    return None if heads is None else Waypoint(version, heads_digest(held[0].rules.run_id, version, heads))


def _settled(chain: Chain) -> int:
    recent = chain.certificates[-LINEAGE_DEPTH_MAX:]
    fork = next((one.version - 1 for one in recent if one.outcome.minor), chain.version)
    if chain.few_since is not None:
        fork = min(fork, chain.few_since)
    return min(fork, chain.version - SETTLED_VERSIONS)


def knows(chains: Sequence[Chain], waypoint: Waypoint) -> bool | None:
    """Whether these chains contain the waypoint; None if they do not reach so far, or no longer go so far back."""
    heads = heads_at(chains, waypoint.version)
    return None if heads is None else heads_digest(chains[0].rules.run_id, waypoint.version, heads) == waypoint.digest


def tail(chain: Chain, version: int) -> tuple[Certificate, ...]:
    """The certificates that determine the active set at this version, oldest first; empty where they are not kept."""
    if not chain.first_version <= version <= chain.version:
        return ()
    count = min(version, chain.rules.memory)
    return chain.after(version - count, count)


def chain_of_tail(empty: Chain, waypoint_version: int, head: bytes, certificates: Sequence[Certificate]) -> Chain:
    """The chain that ends at `head` with these certificates; `empty` is the one at version 0.

    Raises PeerError unless they are the tail of that version: linked, signed by their rosters, ending at the head.
    """
    first = waypoint_version - min(waypoint_version, empty.rules.memory) + 1
    if not certificates or (certificates[0].version, certificates[-1].version) != (first, waypoint_version):
        raise PeerError("a tail of other versions than those asked for")
    if certificates[-1].digest != head:
        raise PeerError("a tail that ends at another head than the invite's")
    kept = linked(empty.rules, empty.fragment, certificates, empty.digest if first == 1 else None)
    return Chain(empty.rules, empty.fragment, empty.genesis, PackedHistory(kept))
