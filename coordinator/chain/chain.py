"""One fragment's chain of certificates, and what follows from it alone (design §6.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace

from coordinator.chain.certificate import Certificate, chain_mismatch, refusal
from coordinator.chain.newcomer_limits import most_newcomers
from coordinator.chain.packed_history import PackedHistory
from coordinator.chain.used_invites import NONE_USED, UsedInvites, extends
from coordinator.run.admission_spec import AdmissionSpec
from coordinator.run.manifest import Manifest, TrustSpec
from dht.admission import AdmissionAuthority
from dht.errors import PeerError
from dht.identity import PeerId, Verifier
from dht.statement import digest_of

NOBODY = PeerId("")
ACTIVE_CERTIFICATES = 4  # the active set: voters in the rosters of this many newest certificates
TOKENS_PER_STEP_MAX = 1 << 36  # the most that a manifest can ask for; it has the real number
ABSENCES = 4  # certificates a key may miss, beyond one for each with its work, before it is on probation again
CHAIN_KEPT = 1024  # certificates kept per fragment: a peer that missed no more than these can still follow
UNSETTLED_VERSIONS = CHAIN_KEPT // 2  # the newest ones, whose branch may still be abandoned


@dataclass(frozen=True, slots=True)
class Rules:
    """The part of a manifest that decides which certificates and commitments are valid, and how much chain we keep."""

    run_id: bytes
    founders: frozenset[PeerId]
    min_share: float
    verifier: Verifier
    tokens_per_step: int = TOKENS_PER_STEP_MAX
    chain_kept: int = CHAIN_KEPT
    trust: TrustSpec = field(default_factory=TrustSpec)
    organiser: PeerId = NOBODY
    admission: AdmissionSpec | None = None

    @classmethod
    def of(cls, manifest: Manifest, verifier: Verifier, chain_kept: int = CHAIN_KEPT) -> Rules:
        """Return the rules of a run."""
        config = manifest.config
        return cls(
            manifest.run_id,
            manifest.founder_ids,
            config.pace.min_share,
            verifier,
            config.tokens_per_step,
            chain_kept,
            config.trust,
            PeerId(manifest.organiser),
            config.admission,
        )

    @property
    def authority(self) -> AdmissionAuthority:
        """The organiser whose passes count in this run."""
        return AdmissionAuthority(self.run_id, self.organiser, self.verifier)

    @property
    def keyholders(self) -> frozenset[PeerId]:
        """Peers that need no pass: the founders and the organiser."""
        return self.founders | {self.organiser}

    @property
    def memory(self) -> int:
        """Number of a fragment's newest certificates, which decide everything about the next version."""
        return max(ACTIVE_CERTIFICATES, 2 * self.trust.probation_rounds + ABSENCES)

    def electors_min(self, members: int) -> int:
        """Return how many of so many members vote if as many as allowed are on probation."""
        return members - (most_newcomers(self.trust.newcomers_share, members) if self.trust.probation_rounds else 0)

    def refusal(self, certificate: Certificate) -> str | None:
        """Return what is wrong with a certificate, whatever it follows; None if nothing is."""
        members = len(certificate.outcome.roster_ids)
        return refusal(certificate, self.run_id, self.electors_min(members), self.verifier)


@dataclass(frozen=True, slots=True)
class MinorityBranch:
    """A minor version since which no more than half of the peers active before it have signed anything."""

    since: int  # the version before it
    active: frozenset[PeerId]
    signers: frozenset[PeerId] = frozenset()

    def joined_by(self, voters: Set[PeerId]) -> MinorityBranch | None:
        """Return this with the voters of one more version; None once more than half have signed."""
        signers = self.signers | (voters & self.active)
        return None if 2 * len(signers) > len(self.active) else replace(self, signers=signers)


@dataclass(slots=True)
class Chain:
    """The certificates of one fragment; a long run drops the oldest. It grows by verified certificates only."""

    rules: Rules
    fragment: int
    genesis: bytes
    certificates: PackedHistory = field(default_factory=PackedHistory)
    version: int = field(init=False)
    _active: frozenset[PeerId] | None = field(init=False, default=None)
    _leaders: tuple[PeerId, ...] | None = field(init=False, default=None)
    _convicted: frozenset[PeerId] | None = field(init=False, default=None)
    _established: frozenset[PeerId] | None = field(init=False, default=None)
    _beacon: bytes | None = field(init=False, default=None)
    _minority: MinorityBranch | None = field(init=False, default=None)

    @classmethod
    def holding(cls, rules: Rules, fragment: int, genesis: bytes, certificates: Sequence[Certificate]) -> Chain:
        """Build a chain from certificates that were verified before.

        If they begin after version 1, the active set of the first `Rules.memory` of them is unknown. Minor versions
        among these make no `MinorityBranch`.
        """
        unknown = 0 if not certificates or certificates[0].version == 1 else rules.memory
        chain = cls(rules, fragment, genesis, PackedHistory(certificates[:unknown]))
        for certificate in certificates[unknown:]:
            chain.append(certificate)
        return chain

    def __post_init__(self) -> None:
        self.version = self.certificates[-1].version if self.certificates else 0

    @property
    def digest(self) -> bytes:
        """Digest of the newest version; the genesis state digest at version 0."""
        return self.certificates.digests[-1] if self.certificates else self.genesis

    @property
    def state(self) -> bytes:
        """Digest of the newest state's bytes."""
        return self.certificates[-1].state if self.certificates else self.genesis

    def active_set(self) -> frozenset[PeerId]:
        """Return the voters in the rosters of the newest certificates, back to and including the last minor one.

        Peers that these certificates convict are left out, and so are peers on probation. A convicted peer is in no
        later roster, so a certificate leaves the window only after every roster that still has the key (docs/adr/0009).
        """
        if self._active is None:
            self._active = self._recent() - self.convicted()
            self._active -= self.on_probation(self._active)
        return self._active

    def _recent(self) -> frozenset[PeerId]:
        """Return the members of the newest certificates' rosters; the founders at version 0."""
        if not self.certificates:
            return self.rules.founders
        return frozenset[PeerId]().union(*(certificate.outcome.roster_ids for certificate in self._window()))

    def on_probation(self, peers: Set[PeerId]) -> frozenset[PeerId]:
        """Return the keys among these that neither vote on the next version nor have weight in it.

        See docs/adr/0017 and 0056.
        """
        return frozenset(peers - self._counted()) if self.rules.trust.probation_rounds else frozenset()

    def _counted(self) -> frozenset[PeerId]:
        """Return the founders and the peers that took part often enough lately.

        If none of the newest members is among them, all the newest members are added.
        """
        if self._established is None:
            newest = self.certificates[-self.rules.memory :]
            rounds = Counter(one.peer for certificate in newest for one in certificate.outcome.included())
            often = {PeerId(peer) for peer, count in rounds.items() if count >= self.rules.trust.probation_rounds}
            recent, counted = self._recent(), self.rules.founders | often
            self._established = counted if counted & recent - self.convicted() else counted | recent
        return self._established

    def known(self) -> frozenset[PeerId]:
        """Return the peers that are no newcomers (`coordinator.chain.newcomer_limits`)."""
        return self.active_set() | self.rules.founders

    def convicted(self) -> frozenset[PeerId]:
        """Return the keys that the newest certificates convict: no roster of the next version may name them."""
        if self._convicted is None:
            listed = (one.peer for certificate in self._window() for one in certificate.convictions)
            self._convicted = frozenset(PeerId(peer) for peer in listed)
        return self._convicted

    def _window(self) -> list[Certificate]:
        window: list[Certificate] = []
        for certificate in reversed(self.certificates[-ACTIVE_CERTIFICATES:]):
            window.append(certificate)
            if certificate.outcome.minor:
                break
        return window

    def newest_roster(self) -> frozenset[PeerId]:
        """Return the members of the newest certificate's roster; the founders at version 0."""
        return self.certificates[-1].outcome.roster_ids if self.certificates else self.rules.founders

    def used_invites(self) -> UsedInvites:
        """Return the peers that came by an invite with limits, as the newest certificate of fragment 0 lists them."""
        return (self.certificates[-1].outcome.used_invites if self.certificates else None) or NONE_USED

    def beacon(self) -> bytes:
        """Return the public randomness that orders leaders and reducers of the next version."""
        if self._beacon is None:
            self._beacon = self.certificates[-1].beacon() if self.certificates else self._first_beacon()
        return self._beacon

    def _first_beacon(self) -> bytes:
        return digest_of(b"muster-beacon-genesis", self.rules.run_id, self.fragment.to_bytes(4, "big"), self.genesis)

    def leaders(self) -> tuple[PeerId, ...]:
        """Return the active set in beacon order; attempt k belongs to the k-th, cyclically."""
        if self._leaders is None:
            self._leaders = beacon_order(self.beacon(), self.active_set())
        return self._leaders

    def refusal(self, certificate: Certificate) -> str | None:
        """Return why `certificate` is not the next version of this chain; None if it is."""
        if certificate.fragment != self.fragment or certificate.version != self.version + 1:
            return "is not the next version of this fragment"
        if certificate.outcome.roster_ids & self.convicted():
            return "names a member that this chain has convicted"
        roster, rules = certificate.outcome.roster_ids, self.rules
        if len(roster - self.known()) > most_newcomers(rules.trust.newcomers_share, len(roster)):
            return "has too many newcomers"
        if not extends(certificate.outcome.used_invites or NONE_USED, self.used_invites()):
            return "forgets who came by which invite"
        electors = roster - self.on_probation(roster)
        unfit = chain_mismatch(certificate, self.digest, electors, self.active_set(), rules.min_share)
        return unfit or rules.refusal(certificate)

    def append(self, certificate: Certificate) -> None:
        """Add a certificate that the caller has checked with `refusal`."""
        if self._minority is None and certificate.outcome.minor:
            self._minority = MinorityBranch(self.version, self.active_set())
        if self._minority is not None:
            self._minority = self._minority.joined_by(certificate.voters)
        self.certificates.append(certificate)
        self.version, self._active, self._leaders = certificate.version, None, None
        self._convicted, self._established, self._beacon = None, None, None
        self.certificates.keep(self.rules.chain_kept)

    def truncated(self, version: int) -> Chain:
        """Return a copy of this chain that ends at `version`; raises ValueError if that is not kept."""
        if version < self.first_version or version > self.version:
            raise ValueError(f"version {version} is not kept")
        kept = len(self.certificates) - (self.version - version)
        found = Chain(self.rules, self.fragment, self.genesis, self.certificates.first(kept))
        found._minority = None if self._minority is None or self._minority.since >= version else self._minority
        return found

    @property
    def minority_since(self) -> int | None:
        """The last version that most of the active set signed, if few went on alone and most have not come back yet.

        None also if that is settled by now, or can no longer be told.
        """
        if self._minority is None or self._minority.since < max(self.first_version, self.version - UNSETTLED_VERSIONS):
            return None
        return self._minority.since

    @property
    def _oldest(self) -> int:
        """The version of the oldest certificate kept, or of the next one if none is."""
        return self.version - len(self.certificates) + 1

    @property
    def first_version(self) -> int:
        """The oldest version to which `truncated` can go back."""
        return 0 if self._oldest == 1 else self._oldest + self.rules.memory - 1

    def digest_at(self, version: int) -> bytes | None:
        """Return the digest of an older version; None if it is not kept."""
        if version == 0 and self.first_version == 0:
            return self.genesis
        index = version - self._oldest
        return self.certificates.digests[index] if 0 <= index < len(self.certificates) else None

    def between(self, version: int, end: int) -> tuple[Certificate, ...]:
        """Return the kept certificates of the versions after `version`, up to and including `end`."""
        first = max(version, self._oldest - 1)
        return self.after(first, max(0, end - first))

    def after(self, version: int, count: int) -> tuple[Certificate, ...]:
        """Return at most `count` certificates that follow `version`, oldest first; empty if they are not kept."""
        start = version + 1 - self._oldest
        return tuple(self.certificates[start : start + count]) if start >= 0 else ()


def beacon_order(beacon: bytes, peers: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """Return the peers sorted by `H(beacon ‖ peer id)`."""
    return tuple(sorted(peers, key=lambda peer: digest_of(beacon, peer.encode())))


def active_sets(chains: Iterable[Chain]) -> frozenset[PeerId]:
    """Return all peers in the active set of any of these chains."""
    return frozenset[PeerId]().union(*(chain.active_set() for chain in chains))


def linked(
    rules: Rules, fragment: int, certificates: Sequence[Certificate], parent: bytes | None = None
) -> list[Certificate]:
    """Check certificates with an unknown active set before the first, and return them as the start of a `Chain`.

    Raises PeerError unless they are consecutive versions, each names the one before it (the first `parent`, if that is
    known), and its roster signed it.
    """
    for version, certificate in enumerate(certificates, certificates[0].version if certificates else 0):
        reason = rules.refusal(certificate)
        if (certificate.fragment, certificate.version) != (fragment, version):
            reason = "is not the next version of this fragment"
        elif parent is not None and certificate.outcome.parent != parent:
            reason = "names another parent"
        if reason is not None:
            raise PeerError(f"the certificate of version {certificate.version} of fragment {fragment} {reason}")
        parent = certificate.digest
    return list(certificates)
