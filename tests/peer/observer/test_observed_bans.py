"""Bans as an observer shows them: only with evidence that it has verified."""

from __future__ import annotations

from coordinator.adversary.mischief import Mischief
from coordinator.simulator.tensors import VirtualProofChecker
from coordinator.trust.bans import BANS_MAX, Ban
from coordinator.trust.evidence import contradiction, verify
from coordinator.trust.statement_slots import slot_of
from coordinator.views.network_view import BANS_MAX as VIEWED_MAX
from coordinator.views.network_view import VIEW_BYTES_MAX, BanView, NetworkView
from dashboard.frames.trust import check_evidence
from dht.identity import Identity, KeyVerifier
from dht.statement import Context, Statement, digest_of, signed_bytes
from peer.observer.view import ban_views
from peer.rounds.public_status import PublicStatus, encode_status
from tests.coordinator.builders import Club
from tests.peer.observing import UNIX, Observed, world_of


def test_a_ban_is_shown_with_evidence_that_anybody_can_verify() -> None:
    """The observer asks for what peers tell of, verifies it itself, and shows nothing else."""
    world = world_of(5, real_keys=True)
    culprit = world.peers[-1]
    culprit.mischief = Mischief(culprit.signer, frozenset({"check"}))
    world.watcher.hostile.add(culprit.me)  # type: ignore[attr-defined]
    observed = Observed(world)
    for _ in range(120):
        view = observed.run(1)
        if view.bans:
            break
    (ban,) = view.bans
    assert (ban.peer_id, ban.verified) == (culprit.me, True)
    assert "«check»" in ban.reason
    assert UNIX <= ban.unix_seconds <= view.taken_unix_seconds
    assert check_two(ban.evidence)
    (shown,) = [peer for peer in view.peers if peer.peer_id == culprit.me]
    assert (shown.trust, shown.note) == ("banned", ban.reason)
    assert ("peer_banned", culprit.me) in {(line.event, line.peer_id) for line in view.tape}


def test_of_a_false_result_its_reducers_own_statement_is_shown() -> None:
    """The bundle that convicts the reducer is long, and somebody else's."""
    world = world_of(5, real_keys=True)
    culprit = world.peers[-1]
    culprit.mischief = Mischief(culprit.signer, cheats=True)
    world.watcher.hostile.add(culprit.me)  # type: ignore[attr-defined]
    observed = Observed(world)
    observed.observation.chains._engine.core.proof_checker = VirtualProofChecker()
    for _ in range(120):
        view = observed.run(1)
        if view.bans:
            break
    (ban,) = view.bans
    assert ban.reason.startswith("signed a result of partition")
    assert check_evidence(ban, view.run_id) == "signed by this key; checked by the observer"


def test_keys_that_convict_themselves_at_length_make_no_view_that_nobody_can_read() -> None:
    """The newest bans are shown with their proof, older ones without, and the page copes with that."""
    rules = Club.of(2, real_keys=True).rules
    context = Context(run_id=rules.run_id, kind="vote", fragment=0, version=1, group=bytes(32))
    bans = []
    for number in range(BANS_MAX):
        key = Identity(digest_of(b"itself", number.to_bytes(4, "big")))
        pair = []
        for body in (bytes(65_000), bytes([1]) * 65_000):
            signature = key.sign(signed_bytes(context, key.peer_id, body))
            pair.append(Statement(context=context, sender=key.peer_id, body=body, signature=signature))
        evidence = contradiction(*pair)
        bans.append(Ban(verify(evidence, rules, VirtualProofChecker()), evidence, float(number)))
    many = ban_views(bans[:1] * VIEWED_MAX + bans[1:2])  # with orders there may be more than fit into a view
    assert (len(many), many[-1].peer_id) == (VIEWED_MAX, bans[1].guilt.peer)
    view = NetworkView(run_id=rules.run_id.hex(), bans=ban_views(bans))
    assert [ban.peer_id for ban in view.bans] == [ban.guilt.peer for ban in bans]
    assert len(view.model_dump_json()) < VIEW_BYTES_MAX / 4
    assert check_two(view.bans[-1].evidence)
    assert view.bans[0].evidence == ()
    assert check_evidence(view.bans[0], view.run_id) == "none shown; checked by the observer"


def check_two(evidence: tuple[str, ...]) -> bool:
    """Return whether these are two contradicting statements, as anybody who copies them from a page can check."""
    one, other = (Statement.from_wire(bytes.fromhex(text)) for text in evidence)
    signed = one.verify(KeyVerifier()) and other.verify(KeyVerifier())
    return signed and slot_of(one) == slot_of(other) is not None and one.body != other.body


def test_a_ban_of_what_cannot_be_a_peer_is_passed_over() -> None:
    """The peer that reports it is still heard: one strange line must not end an observer."""
    observed = Observed(world_of(3))
    observed.run(10)
    told = PublicStatus(role="learner", note="here", bans=(BanView(peer_id="l0O", digest="ab" * 32),))
    liar = observed.world.peers[1].me
    observed.observation.known.peers[liar].asked = True
    observed.observation.hear(liar, encode_status(told), observed.now)
    shown = {peer.peer_id: peer.note for peer in observed.view().peers}
    assert shown[liar] == "here"


def test_a_ban_that_nobody_proves_is_not_shown() -> None:
    observed = Observed(world_of(3))
    observed.run(5)
    victim, liar = observed.world.peers[0], observed.world.peers[1]
    told = BanView(peer_id=victim.me, reason="slander", verified=True, digest="ab" * 32)
    known = observed.observation.known.peers[liar.me]
    known.asked = True
    observed.observation.hear(liar.me, encode_status(PublicStatus(role="learner", bans=(told,))), observed.now)
    view = observed.run(5)
    assert view.bans == ()
    assert {peer.trust for peer in view.peers} == {"in good standing"}
