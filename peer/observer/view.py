"""Views of the verified facts of a run: the manifest, certificates and their sums, and peers' reports of audits."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from coordinator.run.manifest import Manifest
from coordinator.trust.bans import Ban
from coordinator.views.credit import ContributorName, credit_views
from coordinator.views.network_view import (
    AUDITS_MAX,
    BANS_MAX,
    AuditView,
    BanView,
    CertificateView,
    ContributorView,
    CreditView,
    FragmentView,
    RunFacts,
)
from coordinator.wire.presence import PEERS_KNOWN_MAX
from dht.identity import PeerId
from peer.machine.text import plain
from peer.model.build import parameter_specs
from peer.observer.chains import Chains, SeenCertificate, SeenCredit
from peer.observer.peers import KnownPeers
from peer.rounds.public_status import PublicStatus

CERTIFICATES_SHOWN = 256
STATEMENT_SHOWN_BYTES_MAX = 64 << 10
EVIDENCE_SHOWN_CHARS_MAX = 4 << 20  # for all bans in one view: readers refuse a view of more than 32 MiB


def run_facts(manifest: Manifest) -> RunFacts:
    """Return the facts that the manifest fixes."""
    config = manifest.config
    pace, outer = config.pace, config.outer
    return RunFacts(
        fragments=pace.fragments,
        steps_per_version=pace.steps_per_version,
        versions_target=config.versions,
        parameters=sum(tensor.elements for tensor in parameter_specs(config.model)),
        tokens_per_step=config.tokens_per_step,
        contribution_codec=outer.contribution_codec,
        merge=outer.merge,
        presence_lifetime_seconds=pace.presence_lifetime_seconds,
        about=() if config.about is None else tuple(config.about.rows()),
        admission="" if config.admission is None else config.admission.mode,
    )


def fragment_views(manifest: Manifest, chains: Chains) -> tuple[FragmentView, ...]:
    """Return the newest certified version of each fragment."""
    return tuple(
        FragmentView(
            version=seen[-1].certificate.version,
            head=seen[-1].certificate.digest.hex(),
            certified_unix_seconds=seen[-1].unix_seconds,
        )
        if seen
        else FragmentView(head=genesis.hex())
        for seen, genesis in zip(chains.seen, manifest.genesis, strict=True)
    )


def certificate_views(chains: Chains) -> tuple[CertificateView, ...]:
    """Return the newest certificates over all fragments, in the order first seen."""
    newest = [one for seen in chains.seen for one in islice(reversed(seen), CERTIFICATES_SHOWN)]
    newest.sort(key=lambda one: (one.unix_seconds, one.certificate.version, one.certificate.fragment))
    return tuple(map(certificate_view, newest[-CERTIFICATES_SHOWN:]))


def certificate_view(seen: SeenCertificate) -> CertificateView:
    """Return the view of a verified certificate."""
    certificate, outcome = seen.certificate, seen.certificate.outcome
    credited = outcome.credited()
    return CertificateView(
        fragment=outcome.fragment,
        version=outcome.version,
        digest=certificate.digest.hex(),
        parent=outcome.parent.hex(),
        state=certificate.state.hex(),
        minor=outcome.minor,
        attempt=outcome.attempt,
        leader=seen.leader or "",
        roster=outcome.roster,
        voters=tuple(sorted(certificate.voters)),
        contributors=tuple(
            ContributorView(
                peer_id=one.peer,
                tokens=credited.get(one.peer, one.tokens),
                steps=one.steps,
                included=one.peer in credited,
            )
            for one in outcome.contributors
        ),
        tokens=outcome.tokens,
        steps=max((one.steps for one in outcome.included()), default=0),
        unix_seconds=seen.unix_seconds,
        verified=True,
    )


def seen_credit(credit: SeenCredit, known: KnownPeers) -> tuple[CreditView, ...]:
    """Return the contributors by certified tokens, most first; some may have left long ago."""
    ranked = credit.ranked()[:PEERS_KNOWN_MAX]
    heard = ((one, peer.presence) for one in ranked if (peer := known.peers.get(PeerId(one))) is not None)
    claims = {one: ContributorName(plain(said.name), plain(said.team)) for one, said in heard}
    views = credit_views(credit, ranked, claims, credit.last_unix_seconds)
    return tuple(one.model_copy(update={"days": credit.days_of(one.peer_id)}) for one in views)


def ban_view(ban: Ban, with_evidence: bool = False) -> BanView:
    """Return the view of a ban whose evidence was verified here.

    `with_evidence` adds the statements that the banned key signed, unless one is too long to show.
    """
    own = [one for one in ban.evidence.statements if one.sender == ban.guilt.peer]
    statements = [one.to_wire() for one in own] if with_evidence else []
    short = all(len(one) <= STATEMENT_SHOWN_BYTES_MAX for one in statements)
    return BanView(
        peer_id=ban.guilt.peer,
        reason=ban.guilt.reason,
        evidence=tuple(one.hex() for one in statements) if short else (),
        verified=True,
        unix_seconds=ban.unix_seconds,
        digest=ban.evidence.digest.hex(),
    )


def ban_views(bans: Collection[Ban]) -> tuple[BanView, ...]:
    """Return bans, oldest first; the newest come with evidence, as much as fits into EVIDENCE_SHOWN_CHARS_MAX.

    The bound is needed because keys cost nothing, and may convict themselves with very long statements.
    """
    room, views = EVIDENCE_SHOWN_CHARS_MAX, []
    for ban in reversed(list(bans)[-BANS_MAX:]):
        view = ban_view(ban, with_evidence=room > 0)
        room -= sum(map(len, view.evidence))
        views.append(view if room >= 0 else ban_view(ban))
    return tuple(reversed(views))


def told_audits(peers: KnownPeers) -> tuple[AuditView, ...]:
    """Return the newest audits and complaints, each with the peer that reports it."""
    told = [
        one.model_copy(update={"by": peer, "reason": plain(one.reason)})
        for peer, status in _told(peers)
        for one in status.audits
    ]
    return tuple(sorted(told, key=lambda one: one.unix_seconds)[-AUDITS_MAX:])


def _told(peers: KnownPeers) -> list[tuple[PeerId, PublicStatus]]:
    """Return the known statuses with their peers."""
    return [(peer, known.status) for peer, known in peers.peers.items() if known.status is not None]
