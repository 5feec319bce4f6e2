"""Messages that do not fit the engine's state: it refuses them with a reason, or learns from them."""

from __future__ import annotations

import pytest

from coordinator.chain.lineage import known_digests
from coordinator.core.actions import Action, FetchState, Send, Tell
from coordinator.core.context import DEADLINE_DOUBLINGS_MAX
from coordinator.core.events import FetchFailed, PeerGone, PresenceSeen, Progress, Received, StateFetched
from coordinator.core.state_sync import LACKING_INTERVALS
from coordinator.core.timeline import LOCK_DEADLINES
from coordinator.engine import fork_choice, gossip
from coordinator.engine.engine import TICK_SECONDS_MIN, Engine
from coordinator.engine.fork_choice import ASK_AGAIN_SECONDS, RIVALS_MAX
from coordinator.group.pacing import MOST_INTERVALS
from coordinator.wire.messages import (
    SIGNED_BODIES,
    Abstain,
    AskChainNote,
    CertificateNote,
    ChainNote,
    NeedNote,
    PartNote,
    WardNote,
)
from coordinator.wire.presence import HEAD_BYTES
from tests.coordinator.builders import NOW, Club, boot, digest, forged, presence

CLUB = Club.of(6, founders=4)
EVERYONE = (0, 1, 2, 3)
ME, FRIEND, STRANGER = CLUB.ids[0], CLUB.ids[1], CLUB.ids[5]


def stem(*rosters, fragment=0):
    return CLUB.grow(CLUB.chain(fragment), EVERYONE, *rosters)


def engine_at(*rosters, number=0):
    """Make the engine of peer `number`; fragment 0 has its first version and one more per roster."""
    chain = stem(*rosters)
    return Engine(CLUB.core(number), [chain, CLUB.chain(1)], [chain.version, 0], NOW)


def ward(chain, fragment=0):
    return WardNote(fragment=fragment, base=chain.digest, boot=boot(1), dialable=True)


def refusals(actions: list[Action]) -> list[object]:
    return [action.details["reason"] for action in actions if isinstance(action, Tell) and action.event == "refused"]


def sent(actions: list[Action]) -> list[tuple[str, object]]:
    return [(action.to, action.message) for action in actions if isinstance(action, Send)]


# -- refused, with a reason


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (CLUB.say(1, "join", Abstain(attempt=0), run_id=digest("run")), "a statement of another run"),
        (CLUB.say(1, "join", Abstain(attempt=0), fragment=2), "fragment 2 does not exist in this run"),
        (AskChainNote(fragment=2, version=0, known=()), "fragment 2 does not exist in this run"),
        (ChainNote(fragment=255, certificates=()), "fragment 255 does not exist in this run"),
        (ward(stem(), fragment=2), "fragment 2 does not exist in this run"),
        (ward(stem()), "is no ward of ours"),
        (forged(CLUB.join(1, stem())), "is not signed by its sender"),
        (CLUB.join(1, stem(), leader=STRANGER), "names the wrong leader"),
        (CLUB.join(1, stem(), attempt=1000), "joins an attempt that is far off"),
        (CLUB.roster(stem(), [CLUB.join(1, stem())]), "a roster without us in this life"),
        (forged(CLUB.roster(stem(), [CLUB.join(0, stem())])), "is not signed by its sender"),
    ],
)
def test_it_is_refused_and_said_why(message, reason):
    engine = engine_at()
    before = engine.heads()
    actions = engine.handle(Received(FRIEND, message), NOW)
    assert refusals(actions) == [reason]
    assert actions[0].details["peer"] == FRIEND
    assert sent(actions) == []
    assert engine.heads() == before


@pytest.mark.parametrize("kind", [*SIGNED_BODIES, "gossip"])
def test_a_statement_that_its_sender_did_not_sign_is_refused(kind):
    """The engine checks it first: nothing behind this entrance checks a signature again."""
    statement = forged(CLUB.say(1, kind, Abstain(attempt=0), **CLUB.at(stem())))
    actions = engine_at().handle(Received(FRIEND, statement, digest("bytes")), NOW)
    assert refusals(actions) == ["is not signed by its sender"]


def test_a_certificate_of_a_fragment_that_does_not_exist_is_refused():
    certificate = CLUB.certify(stem(), EVERYONE, fragment=7)
    assert refusals(engine_at().handle(Received(FRIEND, CertificateNote(certificate=certificate)), NOW)) == [
        "fragment 7 does not exist in this run"
    ]


@pytest.mark.parametrize(
    "message",
    [
        PartNote(group=digest("x"), partition=0, turn=0),
        NeedNote(what="part", group=digest("x"), partition=0, turn=0),
        CLUB.say(1, "vote", Abstain(attempt=0), **{**CLUB.at(stem()), "group": digest("x")}),
        CLUB.say(1, "gossip", Abstain(attempt=0), **{**CLUB.at(stem()), "group": digest("x")}),
    ],
    ids=["part", "need", "vote", "unknown kind"],
)
def test_a_message_of_no_group_of_ours_is_ignored(message):
    assert engine_at().handle(Received(FRIEND, message, digest("bytes")), NOW) == []


# -- learning from others


def test_a_peer_that_speaks_of_an_old_version_is_shown_the_certificate_that_ended_it():
    engine = engine_at(EVERYONE)
    actions = engine.handle(Received(FRIEND, CLUB.join(1, stem())), NOW)
    assert sent(actions) == [(FRIEND, CertificateNote(certificate=engine.machines[0].chain.certificates[1]))]


@pytest.mark.parametrize("other", [stem(), stem(EVERYONE, EVERYONE)], ids=["older", "newer"])
def test_a_ward_at_another_base_is_asked_about_it_but_not_all_the_time(other):
    """Nobody signed it, so it costs us no certificate."""
    engine = engine_at(EVERYONE)
    known = known_digests(engine.machines[0].chain)
    question = (FRIEND, AskChainNote(fragment=0, version=2, known=known))
    assert sent(engine.handle(Received(FRIEND, ward(other)), NOW)) == [question]
    assert engine.handle(Received(FRIEND, ward(other)), NOW) == []


def test_in_a_crowd_whoever_speaks_about_an_old_version_is_asked_about_it_but_not_all_the_time(monkeypatch):
    """Its statement reaches a whole group there, and 32 certificates would come back; a liar may name any version."""
    monkeypatch.setattr(gossip, "TOLD_BY_LEADER_MAX", 1)
    engine = engine_at(EVERYONE)
    for number, peer in enumerate(CLUB.ids):
        engine.handle(PresenceSeen(peer, presence(number)), NOW)
    late = Received(FRIEND, CLUB.join(1, stem()))
    hint = AskChainNote(fragment=0, version=2, known=known_digests(engine.machines[0].chain))
    assert sent(engine.handle(late, NOW)) == [(FRIEND, hint)]
    assert engine.handle(late, NOW + 0.9 * ASK_AGAIN_SECONDS) == []
    assert sent(engine.handle(late, NOW + ASK_AGAIN_SECONDS)) == [(FRIEND, hint)]


def test_a_peer_that_speaks_of_a_newer_version_is_asked_about_it_but_not_all_the_time():
    engine = engine_at()
    news = Received(FRIEND, CLUB.join(1, stem(EVERYONE)))
    known = tuple(engine.machines[0].chain.digest_at(version) for version in (1, 0))
    assert sent(engine.handle(news, NOW)) == [(FRIEND, AskChainNote(fragment=0, version=1, known=known))]
    assert engine.handle(news, NOW + 0.9 * ASK_AGAIN_SECONDS) == []
    assert len(sent(engine.handle(news, NOW + ASK_AGAIN_SECONDS))) == 1


def test_rumour_of_a_version_that_we_lack_is_followed_and_handed_on(monkeypatch):
    monkeypatch.setattr(gossip, "TOLD_BY_LEADER_MAX", 1)
    engine, certificate = engine_at(), CLUB.certify(stem(), EVERYONE)
    for number, peer in enumerate(CLUB.ids):
        engine.handle(PresenceSeen(peer, presence(number, versions=(1, 0), heads=())), NOW)
    rumour = AskChainNote(fragment=0, version=2, known=(certificate.digest, certificate.outcome.parent))
    asked, answered = sent(engine.handle(Received(STRANGER, rumour), NOW))
    assert asked == (STRANGER, AskChainNote(fragment=0, version=1, known=known_digests(engine.machines[0].chain)))
    assert answered == (STRANGER, ChainNote(fragment=0, certificates=()))
    told = sent(engine.handle(Received(STRANGER, ChainNote(fragment=0, certificates=(certificate,))), NOW))
    assert engine.machines[0].chain.version == 2
    assert [message for _, message in told] == [rumour] * len(told)
    assert told
    assert sent(engine.handle(Received(STRANGER, rumour), NOW)) == [
        (STRANGER, ChainNote(fragment=0, certificates=()))
    ]  # no news


def test_a_peer_that_speaks_of_another_base_is_asked_about_it():
    ours, theirs = engine_at((0, 1, 2)), stem((1, 2, 3))
    for statement in (CLUB.join(1, theirs), CLUB.roster(theirs, [CLUB.join(1, theirs)])):
        (asked,) = sent(ours.handle(Received(CLUB.ids[1], statement), NOW))
        assert isinstance(asked[1], AskChainNote)
        ours.fork_choice.probes.clear()


def test_presence_with_a_newer_or_another_head_is_an_occasion_to_ask():
    engine, theirs = engine_at((0, 1, 2)), stem((1, 2, 3))
    ours = engine.machines[0].chain
    for number, (version, head, asks) in enumerate(
        [
            (3, b"", True),
            (2, theirs.digest, True),
            (2, ours.digest, False),
            (1, stem().digest, False),
            (-1, b"", False),
        ],
    ):
        seen = presence(number, versions=(version,), heads=(head[:HEAD_BYTES],))
        actions = engine.handle(PresenceSeen(CLUB.ids[1 + number], seen), NOW)
        assert (sent(actions) != []) == asks, number


def test_the_next_full_version_is_taken_over_and_its_state_fetched():
    engine = engine_at()
    certificate = CLUB.certify(stem(), (1, 2, 3))
    actions = engine.handle(Received(STRANGER, CertificateNote(certificate=certificate)), NOW)
    (fetch,) = [action for action in actions if isinstance(action, FetchState)]
    assert (fetch.certificate, set(fetch.holders)) == (certificate, CLUB.peers((1, 2, 3)))
    assert (engine.machines[0].chain.version, engine.machines[0].held) == (2, 1)
    assert not engine.machines[0].ready
    engine.handle(StateFetched(0, certificate.digest), NOW)
    assert (engine.machines[0].held, engine.machines[0].ready) == (2, True)


def test_known_versions_are_no_news():
    engine = engine_at(EVERYONE)
    for certificate in engine.machines[0].chain.certificates:
        assert engine.handle(Received(FRIEND, CertificateNote(certificate=certificate)), NOW) == []


def test_a_minor_version_is_not_taken_over_by_catch_up():
    """A few peers alone cannot lead others away: the engine asks the sender, and compares its lineage."""
    engine = engine_at()
    minor = CLUB.certify(stem(), (1, 2))
    assert minor.outcome.minor
    actions = engine.handle(Received(FRIEND, CertificateNote(certificate=minor)), NOW)
    assert [type(message) for _, message in sent(actions)] == [AskChainNote]
    engine.handle(Received(FRIEND, ChainNote(fragment=0, certificates=(minor,))), NOW)
    assert engine.machines[0].chain.version == 1


@pytest.mark.parametrize(("known", "followed"), [(True, True), (False, False)])
def test_a_branch_of_those_whom_another_fragment_knows_is_followed_once_nothing_else_came(known, followed):
    """Newcomers went on alone while all that had a vote in this fragment were away (docs/adr/0037)."""
    newcomers = (4, 5)
    other = CLUB.grow(CLUB.chain(1), EVERYONE, *([(*EVERYONE, *newcomers)] if known else []))
    engine = Engine(CLUB.core(0), [stem(), other], [1, other.version], NOW)
    branch = CLUB.grow(stem(), newcomers).after(1, 9)
    assert branch[0].outcome.minor
    assert not stem().active_set() & CLUB.peers(newcomers)
    for beat, now in enumerate((NOW, NOW + 60 * CLUB.manifest.config.pace.round_seconds)):
        assert engine.machines[0].chain.version == 1, "not at once"
        for seen in (0, 1):
            note = PresenceSeen(STRANGER, presence(5, beat=2 * beat + seen, state="hosting"))
            engine.handle(note, now - (1 - seen) * engine.core.presence.lifetime_seconds)
        engine.handle(Received(STRANGER, CertificateNote(certificate=branch[0])), now)
        engine.handle(Received(STRANGER, ChainNote(fragment=0, certificates=branch)), now)
    assert engine.machines[0].chain.version == 1 + followed


def test_peers_that_could_make_a_full_version_are_waited_for_but_not_for_ever():
    """One of four made a version alone; the others are live and say that they train, but make none."""
    engine = engine_at()
    machine, core, lifetime = engine.machines[0], engine.core, engine.core.presence.lifetime_seconds
    branch = CLUB.grow(stem(), (1,)).after(1, 9)
    interval = machine.tempo.interval_seconds(machine.chain, NOW)
    locks, shown, followed_at = LOCK_DEADLINES * core.deadline_seconds(DEADLINE_DOUBLINGS_MAX), 0, None
    now = NOW
    while followed_at is None and now < NOW + locks + 3 * MOST_INTERVALS * interval:
        now += lifetime / 4
        shown += 1
        for number in (1, 2, 3):
            engine.handle(PresenceSeen(CLUB.ids[number], presence(number, beat=shown)), now)
        engine.handle(Received(FRIEND, CertificateNote(certificate=branch[0])), now)
        engine.handle(Received(FRIEND, ChainNote(fragment=0, certificates=branch)), now)
        followed_at = now if machine.chain.version == 2 else None
    assert followed_at is not None
    assert followed_at - NOW >= locks + MOST_INTERVALS * machine.tempo.interval_seconds(stem(), now)


def test_a_false_certificate_changes_nothing():
    engine = engine_at()
    good = CLUB.certify(stem(), (1, 2, 3))
    for votes in (good.votes[:1], (*good.votes[:2], forged(good.votes[2]))):
        false = type(good).from_wire(good.model_copy(update={"votes": votes}).to_wire())
        engine.handle(Received(FRIEND, CertificateNote(certificate=false)), NOW)
        engine.handle(Received(FRIEND, ChainNote(fragment=0, certificates=(false,))), NOW)
    assert engine.machines[0].chain.version == 1


def test_a_chain_that_nobody_asked_for_counts_for_nothing():
    engine = engine_at()
    note = ChainNote(fragment=0, certificates=stem(EVERYONE, EVERYONE).after(1, 9))
    assert engine.handle(Received(FRIEND, note), NOW) == []
    engine.handle(Received(FRIEND, CLUB.join(1, stem(EVERYONE, EVERYONE))), NOW)  # now the engine asks it
    engine.handle(Received(FRIEND, note), NOW)
    assert engine.machines[0].chain.version == 3


def test_an_asker_gets_what_follows_the_newest_version_of_both():
    engine = engine_at(EVERYONE, EVERYONE)
    chain = engine.machines[0].chain
    for known, answer, oldest in (
        ((stem().digest,), chain.after(1, 9), None),
        ((digest("other"), CLUB.manifest.genesis[0]), chain.after(0, 9), None),
        ((digest("other"),), (), 0),
        ((), (), 0),
    ):
        ask = AskChainNote(fragment=0, version=1, known=known)
        assert sent(engine.handle(Received(STRANGER, ask), NOW)) == [
            (STRANGER, ChainNote(fragment=0, certificates=answer, oldest=oldest))
        ]


def test_a_better_lineage_is_changed_over_to_once_all_fragments_are_known_and_seen_twice():
    """After the fork two certified ours, but three, with more work, theirs (design §8)."""
    engine, theirs = engine_at((0, 1)), stem((1, 2, 3))
    rival = CLUB.ids[3]
    (asked,) = sent(engine.handle(Received(rival, CLUB.join(3, CLUB.grow(stem((1, 2, 3)), (1, 2, 3)))), NOW))
    assert isinstance(asked[1], AskChainNote)
    actions = engine.handle(Received(rival, ChainNote(fragment=0, certificates=theirs.after(1, 9))), NOW)
    assert [message.fragment for _, message in sent(actions)] == [1]  # type: ignore[attr-defined]
    assert engine.machines[0].chain.version == 2  # not yet
    actions = engine.handle(Received(rival, ChainNote(fragment=1, certificates=())), NOW)
    fragments = [message.fragment for _, message in sent(actions)]  # type: ignore[attr-defined]
    assert fragments == [0, 1]  # once more: it may just have changed its branch
    engine.handle(Received(rival, ChainNote(fragment=0, certificates=theirs.after(1, 9))), NOW)
    assert engine.machines[0].chain.version == 2
    actions = engine.handle(Received(rival, ChainNote(fragment=1, certificates=())), NOW)
    assert [action.event for action in actions if isinstance(action, Tell)] == ["lineage_changed"]
    assert engine.machines[0].chain.digest == theirs.digest
    assert engine.machines[0].held_chain.certificates[-1].outcome.minor  # we still hold our own state


def test_a_weaker_lineage_is_not_changed_over_to():
    engine, theirs = engine_at((1, 2, 3)), stem((0, 1))
    before = engine.heads()
    engine.handle(Received(FRIEND, CLUB.join(1, theirs)), NOW)
    for _ in range(2):
        engine.handle(Received(FRIEND, ChainNote(fragment=0, certificates=theirs.after(1, 9))), NOW)
        engine.handle(Received(FRIEND, ChainNote(fragment=1, certificates=())), NOW)
    assert engine.heads() == before
    assert not any(probe.holds_chains for probe in engine.fork_choice.probes.values())


def test_a_version_that_nobody_serves_is_given_up_and_not_believed_again_for_a_while():
    engine = engine_at()
    certificate = CLUB.certify(stem(), (1, 2, 3))
    note = Received(FRIEND, CertificateNote(certificate=certificate))
    engine.handle(note, NOW)
    engine.handle(FetchFailed(0, certificate.digest), NOW + 1.0)
    assert engine.machines[0].chain.version == 2
    assert engine.next_deadline(NOW + 1.0) == NOW + 2.0  # another try
    later = NOW + LACKING_INTERVALS * CLUB.manifest.config.pace.round_seconds
    actions = engine.handle(FetchFailed(0, certificate.digest), later)
    assert [action.event for action in actions if isinstance(action, Tell)] == ["version_unserved"]
    assert (engine.machines[0].chain.version, engine.machines[0].ready) == (1, True)
    assert engine.handle(note, later) == []


def test_answers_about_other_versions_than_the_newest_are_of_no_use():
    engine = engine_at()
    engine.handle(Received(FRIEND, CertificateNote(certificate=CLUB.certify(stem(), (1, 2, 3)))), NOW)
    assert engine.handle(StateFetched(0, digest("older")), NOW) == []
    assert engine.handle(FetchFailed(0, digest("older")), NOW + 1e6) == []
    assert engine.machines[0].chain.version == 2


# -- bounds


def test_memory_of_strangers_is_bounded(monkeypatch):
    monkeypatch.setattr(fork_choice, "PROBES_MAX", 2 * RIVALS_MAX)
    engine = engine_at()
    signers = Club.of(RIVALS_MAX * 3, seed=1)
    for number, peer in enumerate(signers.ids):
        engine.handle(Received(peer, CLUB.join(1, stem(EVERYONE))), NOW)
        engine.handle(Received(peer, ChainNote(fragment=0, certificates=(CLUB.certify(CLUB.chain(), (1, 2, 3)),))), NOW)
        probes = engine.fork_choice.probes
        assert next(reversed(probes)) == peer, "whom we asked last is forgotten last"
        assert len(probes) <= 2 * RIVALS_MAX, number
        engine.handle(Received(peer, ChainNote(fragment=1, certificates=())), NOW)
        assert sum(probe.holds_chains for probe in probes.values()) <= RIVALS_MAX


def test_at_most_tau_rounds_are_in_flight():
    pace = CLUB.manifest.config.pace.model_copy(update={"fragments": 5, "overlap": 2})
    club = Club.of(3, pace=pace)
    engine = Engine(club.core(0), [club.chain(index) for index in range(5)], [0] * 5, NOW)
    for number in (1, 2):
        engine.handle(PresenceSeen(club.ids[number], presence(number)), NOW)
    for second in range(1, 60):
        engine.handle(Progress(second, 1.0), NOW + second)
        assert engine.in_flight <= 2
    assert engine.in_flight == 2


def test_no_deadline_makes_a_shell_spin():
    engine = engine_at()
    engine.handle(Received(FRIEND, CertificateNote(certificate=CLUB.certify(stem(), (1, 2, 3)))), NOW)
    certificate = engine.machines[0].chain.certificates[-1]
    engine.handle(FetchFailed(0, certificate.digest), NOW)
    assert engine.next_deadline(NOW + 1e9) == NOW + 1e9 + TICK_SECONDS_MIN


def test_a_peer_that_was_lost_is_there_again_with_its_next_message():
    engine = engine_at()
    engine.handle(PresenceSeen(FRIEND, presence(1)), NOW)
    engine.handle(PeerGone(FRIEND), NOW)
    assert engine.core.presence.live(NOW) == frozenset()
    engine.handle(Received(FRIEND, AskChainNote(fragment=0, version=0, known=())), NOW)
    assert engine.core.presence.live(NOW) == {FRIEND}
