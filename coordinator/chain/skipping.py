"""A few certificates that stand for a long chain: each is signed by most of the group of the one before it. Pure.

Light clients of other chains call this skipping verification (Tendermint's light client, Braithwaite et al., 2020).
Between two certificates it relies on what every version relies on: fewer than half of a group ever sign two histories,
even later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coordinator.chain.certificate import Certificate, more_than_share

VOUCHING_SHARE = 0.5  # of a roster; a full certificate needs the same share of the active set (`PaceSpec.min_share`)


def vouches_for(older: Certificate, newer: Certificate) -> bool:
    """Whether enough of an older certificate's roster signed a newer one. Does not verify the signatures."""
    roster = older.outcome.roster_ids
    if newer.outcome.minor or newer.fragment != older.fragment or newer.version <= older.version:
        return False
    if newer.version == older.version + 1 and newer.outcome.parent != older.digest:
        return False
    return more_than_share(len(newer.voters & roster), len(roster), VOUCHING_SHARE)


def skipping(passed: Sequence[Certificate], newer: Iterable[Certificate]) -> list[Certificate]:
    """Return the few certificates that lead from version 1 to the newest reachable one; empty without version 1.

    `passed` is an earlier return value of this function; `newer` follows it on the same branch, oldest first.
    """
    kept = list(passed)
    for one in newer:
        if not kept:
            if one.version != 1:
                return []
            kept = [one]
        elif one.version <= kept[-1].version:
            continue
        elif len(kept) > 1 and vouches_for(kept[-2], one):
            kept[-1] = one
        elif vouches_for(kept[-1], one):
            kept.append(one)
    return kept
