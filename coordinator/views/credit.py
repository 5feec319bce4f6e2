"""Credit: each contributor's work in certified versions, summed from certificates only, so that all peers agree.

A peer keeps only the newest certificates (`chain.CHAIN_KEPT`), and a record with the sums of the older ones. A record
says from which version on it counts; equal records of two peers have equal digests. A token trains all fragments, so
every fragment's certificates count it once, and sums are divided by the number of fragments at the end. A member's
claim counts within bounds that follow from the certificate (`Outcome.credited`, docs/adr/0035).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field

from coordinator.chain.certificate import Outcome
from coordinator.chain.chain import UNSETTLED_VERSIONS, Chain
from coordinator.run.manifest import FRAGMENTS_MAX
from coordinator.views.network_view import CreditView, Hex
from dht.statement import Digest, PeerIdText, digest_of
from dht.wire import Wire

CONTRIBUTORS_MAX = 1 << 14  # the contributors with the fewest tokens make room
RECORD_BYTES_MAX = 1 << 22
TOKEN_FRAGMENTS_MAX = 1 << 63  # beyond what anybody trains; a record can hold no more
COMPARED_EVERY_VERSIONS = 16  # peers that are this close to each other have a version in common to compare at


@dataclass(slots=True)
class Credit:
    """Sums over certificates."""

    fragments: int
    versions: Counter[str] = field(default_factory=Counter)  # versions that include the contributor's work
    token_fragments: Counter[str] = field(default_factory=Counter)

    def count(self, outcome: Outcome, sign: int = 1) -> None:
        """Add a certified outcome, or take it back (−1) because its branch was left."""
        for peer, tokens in outcome.credited().items():
            self.token_fragments[peer] += sign * tokens
            self.versions[peer] += sign

    def tokens_of(self, contributor: str) -> int:
        """Return a contributor's certified tokens, each counted once."""
        return self.token_fragments[contributor] // self.fragments

    @property
    def tokens(self) -> int:
        """Certified tokens of all contributors, each counted once."""
        return self.token_fragments.total() // self.fragments

    def ranked(self) -> list[str]:
        """Return the contributors, most tokens first, then by id."""
        found = (one for one, versions in self.versions.items() if versions > 0)
        return sorted(found, key=lambda one: (-self.token_fragments[one], one))


class Contributed(Wire):
    """One contributor's sums in a record."""

    peer: PeerIdText
    token_fragments: int = Field(ge=0)
    versions: int = Field(ge=1)


class CreditRange(Wire):
    """The versions of a fragment that a record counts: `first` to `last`, whose digest is `head`; 0 for none yet."""

    first: int = Field(0, ge=0)
    last: int = Field(0, ge=0)
    head: Digest = bytes(32)
    missed: int = Field(0, ge=0)  # versions in between whose certificates this peer never had


class CreditRecord(Wire):
    """The sums over certificates; contributors are ordered by id."""

    reaches: tuple[CreditRange, ...] = Field(min_length=1, max_length=FRAGMENTS_MAX)
    contributors: tuple[Contributed, ...] = Field((), max_length=CONTRIBUTORS_MAX)

    @classmethod
    def empty(cls, fragments: int) -> CreditRecord:
        """Return a record that counts nothing yet."""
        return cls(reaches=(CreditRange(),) * fragments)

    @property
    def digest(self) -> bytes:
        """Digest of the record, equal for equal sums over the same certificates."""
        return digest_of(b"muster-credit", self.to_wire())

    def credit(self) -> Credit:
        """Return the sums, to be added to."""
        credit = Credit(len(self.reaches))
        for one in self.contributors:
            credit.token_fragments[one.peer] = one.token_fragments
            credit.versions[one.peer] = one.versions
        return credit

    def extended(self, chains: Sequence[Chain], ends: Sequence[int]) -> CreditRecord:
        """Return the record with later certificates of these chains added, up to version `ends[p]` of fragment p.

        If the record counts another branch than that of the chains, it begins anew with the chains' certificates.
        """
        pairs = list(zip(self.reaches, chains, strict=True))
        if not all(_continues(chain, reach) for reach, chain in pairs):
            return CreditRecord.empty(len(chains)).extended(chains, ends)
        credit, reaches = self.credit(), []
        for (reach, chain), end in zip(pairs, ends, strict=True):
            new = chain.between(reach.last, end)
            for certificate in new:
                credit.count(certificate.outcome)
            if new:
                first, last = new[0].version, new[-1]
                missed = reach.missed + (first - reach.last - 1 if reach.last else 0)
                reach = CreditRange(first=reach.first or first, last=last.version, head=last.digest, missed=missed)
            reaches.append(reach)
        kept = sorted(credit.ranked()[:CONTRIBUTORS_MAX])
        return CreditRecord(
            reaches=tuple(reaches),
            contributors=tuple(
                Contributed(
                    peer=one,
                    token_fragments=min(credit.token_fragments[one], TOKEN_FRAGMENTS_MAX),
                    versions=credit.versions[one],
                )
                for one in kept
            ),
        )

    def settled(self, chains: Sequence[Chain]) -> CreditRecord:
        """Return the record with all but the newest certificates of these chains added.

        The branch of the newest ones may still be left, and peers compare their sums at them.
        """
        return self.extended(chains, [chain.version - UNSETTLED_VERSIONS for chain in chains])


def _continues(chain: Chain, reach: CreditRange) -> bool:
    """Whether a chain continues the versions that a record counts, as far as can be told."""
    held = chain.digest_at(reach.last)
    if held is None and (oldest := chain.between(reach.last, reach.last + 1)):
        held = oldest[0].outcome.parent
    return not reach.last or held is None or held == reach.head


@dataclass(frozen=True, slots=True)
class ContributorName:
    """A contributor's name for itself and its team: untrusted text; team membership is not checked."""

    name: str = ""
    team: str = ""


class CreditReport(BaseModel):
    """A summary of credit for people."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    run_id: Hex
    from_versions: tuple[int, ...] = Field(description="of each fragment the oldest version counted; 0: none yet")
    to_versions: tuple[int, ...] = Field(description="of each fragment the newest version counted")
    missed: int = Field(ge=0, description="versions in between whose certificates this peer never held")
    tokens: int = Field(ge=0, description="certified, each counted once")
    contributors: tuple[CreditView, ...] = Field(max_length=CONTRIBUTORS_MAX, description="most tokens first")
    compared_version: int = Field(0, ge=0, description="up to which `compared_digest` counts each fragment; 0: none")
    compared_digest: Hex = Field("", description="equal at all peers that count from the same versions on")

    @property
    def complete(self) -> bool:
        """Whether every version since the run began is counted."""
        return set(self.from_versions) <= {0, 1} and not self.missed


def report_of(
    run_id: bytes, settled: CreditRecord, chains: Sequence[Chain], claims: Mapping[str, ContributorName]
) -> CreditReport:
    """Report the credit up to the newest versions of these chains, with the contributors' names."""
    versions = [chain.version for chain in chains]
    record = settled.extended(chains, versions)
    common = min(versions) // COMPARED_EVERY_VERSIONS * COMPARED_EVERY_VERSIONS
    compared = settled.extended(chains, [common] * len(chains))
    agreed = common > 0 and all(reach.last == common for reach in compared.reaches)
    credit = record.credit()
    return CreditReport(
        run_id=run_id.hex(),
        from_versions=tuple(reach.first for reach in record.reaches),
        to_versions=tuple(reach.last for reach in record.reaches),
        missed=sum(reach.missed for reach in record.reaches),
        tokens=credit.tokens,
        contributors=credit_views(credit, credit.ranked(), claims),
        compared_version=common if agreed else 0,
        compared_digest=compared.digest.hex() if agreed else "",
    )


def credit_views(
    credit: Credit,
    ranked: Iterable[str],
    claims: Mapping[str, ContributorName],
    last_at: Mapping[str, float] | None = None,
) -> tuple[CreditView, ...]:
    """Return views of these contributors with their names; `last_at` has the Unix time of their last version."""
    nameless = ContributorName()
    return tuple(
        CreditView(
            peer_id=one,
            name=claims.get(one, nameless).name,
            team=claims.get(one, nameless).team,
            tokens=credit.tokens_of(one),
            versions=credit.versions[one],
            last_unix_seconds=(last_at or {}).get(one, 0.0),
        )
        for one in ranked
    )


def team_tokens(contributors: Iterable[CreditView]) -> list[tuple[str, int]]:
    """Return certified tokens by team, most first, then by name; "" stands for no team. Empty if there are no teams."""
    totals: Counter[str] = Counter()
    for one in contributors:
        totals[one.team] += one.tokens
    return sorted(totals.items(), key=lambda one: (-one[1], one[0])) if set(totals) - {""} else []
