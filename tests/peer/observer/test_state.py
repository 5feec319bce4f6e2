"""An observer's view of a network: certified facts, and, marked as such, what peers only claim."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.run.manifest import PaceSpec
from coordinator.views.evaluation import Evaluation
from coordinator.views.network_view import PHASE_WORDS, NetworkView, PhaseSpan, RoundView
from coordinator.views.view_file import read_view
from coordinator.wire.messages import AskChainNote, ChainNote
from dashboard.source import SeenView
from dht.errors import LocalError
from dht.identity import PeerId
from peer.net.frames import StatusAnswer
from peer.observer.history import LOSS_MAX, HostEvaluations
from peer.observer.peers import HeardPresence
from peer.observer.process import ViewFile
from peer.observer.state import Observation
from peer.observer.view import run_facts
from peer.rounds.public_status import PublicStatus, encode_status
from tests.peer.observing import ME, PACE, UNIX, Observed, world_of


def credit_of(observed: Observed) -> dict[str, int]:
    """Return everybody's certified tokens, from the certificates that the world's watcher has seen."""
    tokens: Counter[str] = Counter()
    for certificate in observed.world.watcher.certified.values():
        tokens.update(certificate.outcome.credited())
    return {peer: total // observed.world.pace.fragments for peer, total in tokens.items()}


def check(view: NetworkView) -> NetworkView:
    """Check that a view conforms to its schema and is read back as it was written; return it."""
    assert NetworkView.model_validate_json(view.model_dump_json()) == view
    return view


def test_views_go_on_after_their_disk_was_full_for_a_while(tmp_path: Path) -> None:
    folder = tmp_path / "place"

    async def course() -> None:
        show = ViewFile(folder / "view.json")
        with pytest.raises(LocalError, match="cannot be written"):
            await show(NetworkView())
        folder.mkdir()
        await show(NetworkView())
        shutil.rmtree(folder)
        await show(NetworkView())
        folder.mkdir()
        await show(NetworkView(name="back"))

    asyncio.run(course())
    assert read_view(folder / "view.json").name == "back"


def test_everything_certified_is_recomputed() -> None:
    observed = Observed(world_of(4))
    observed.run(60)
    observed.world.drain(60.0)
    view = check(observed.run(5))
    certified = observed.world.watcher.certified
    versions = [machine.chain.version for machine in observed.world.peers[0].engine.machines]
    assert len(certified) > 10
    assert [fragment.version for fragment in view.fragments] == versions
    assert {one.digest for one in view.certificates} == {digest.hex() for digest in certified}
    assert {one.peer_id: one.tokens for one in view.credit} == credit_of(observed)
    assert {one.peer_id: one.credited_tokens for one in view.peers} == credit_of(observed)
    assert [one.tokens for one in view.credit] == sorted((one.tokens for one in view.credit), reverse=True)
    newest = view.history[-1]
    assert newest.versions == sum(versions) == len(certified)
    assert newest.tokens_certified == sum(c.outcome.tokens for c in certified.values()) // PACE.fragments
    assert (newest.peers_live, newest.peers_known, newest.learners_live) == (4, 4, 4)
    assert view.events["certified"] == len(certified)
    for one in view.certificates:
        outcome = certified[bytes.fromhex(one.digest)].outcome
        assert one.verified
        assert set(one.roster) == outcome.roster_ids
        assert one.leader in one.roster
        assert UNIX <= one.unix_seconds <= view.taken_unix_seconds


def test_a_late_observer_catches_up_with_history_that_is_no_news() -> None:
    world = world_of(3, PaceSpec(fragments=2, steps_per_version=2, quorum=2, min_group=2, round_seconds=4.0))
    assert world.run_until_versions(80, 600.0)  # more than one page of each chain
    observed = Observed(world)
    observed.look()
    assert observed.view().note.startswith("getting ")
    view = check(observed.run(4))
    assert view.note == ""
    newest = [machine.chain.version for machine in world.peers[0].engine.machines]
    assert all(seen.version >= known - 4 for seen, known in zip(view.fragments, newest, strict=True))
    assert view.events.get("certified", 0) < 20
    assert view.history[-1].versions > 60
    assert view.history[-1].tokens_per_second is None


def test_the_certified_rate_is_true_or_not_known_from_the_first_view_on() -> None:
    """Before, it was divided by 30 s from the beginning: 0 in the first views, then far too low."""
    world = world_of(4)
    world.run(60.0)
    before = [one.outcome.tokens for one in world.watcher.certified.values()]
    world.run(30.0)
    made = sum(one.outcome.tokens for one in world.watcher.certified.values()) - sum(before)
    observed = Observed(world)
    rates = [observed.run(1).history[-1].tokens_per_second for _ in range(40)]
    assert rates[:10] == [None] * 10
    known = [rate for rate in rates if rate is not None]
    assert len(known) >= 25
    assert known[8:] == pytest.approx([made / PACE.fragments / 30.0] * len(known[8:]), rel=0.25)


def test_nothing_is_said_of_the_rate_while_the_network_is_away() -> None:
    observed = Observed(world_of(3))
    assert observed.run(20).history[-1].tokens_per_second
    observed.cut = {peer.me for peer in observed.world.peers}
    assert observed.run(40).history[-1].tokens_per_second is None


def test_a_peer_that_falls_silent_is_gone_within_a_lifetime_and_a_bit() -> None:
    observed = Observed(world_of(4))
    observed.run(12)
    dead = observed.world.peers[3]
    observed.world.crash(dead)
    killed_at, gone_at = observed.now, None
    for _ in range(20):
        view = observed.run(1)
        peer = next(one for one in view.peers if one.peer_id == dead.me)
        if not peer.live and gone_at is None:
            gone_at = observed.now
    assert gone_at is not None
    assert gone_at - killed_at <= PACE.presence_lifetime_seconds + 5
    assert peer.last_seen_seconds == pytest.approx(observed.now - killed_at, abs=PACE.presence_seconds + 1)
    assert sum(one.live for one in view.peers) == view.history[-1].peers_live == 3
    assert [one.peer_id for one in view.tape if one.event == "gone"] == [dead.me]
    assert observed.run(30).history[-1].capacity_tokens_per_second == pytest.approx(
        view.history[-1].trained_tokens_per_second * 4 / 3
    )


def test_a_host_is_no_learner() -> None:
    observed = Observed(world_of(3))
    observed.run(5)
    said = observed.world.peers[0].presence(0).model_copy(update={"state": "hosting"})
    observed.observation.read([HeardPresence(PeerId("a host"), said, UNIX + observed.now)], observed.now)
    newest = observed.view().history[-1]
    assert (newest.peers_live, newest.learners_live) == (4, 3)


def test_without_a_network_the_last_view_stays() -> None:
    observed = Observed(world_of(3))
    before = observed.run(20)
    observed.cut = {peer.me for peer in observed.world.peers}
    after = check(observed.run(30))
    assert after.network_seen_unix_seconds is not None
    assert after.network_seen_unix_seconds <= before.taken_unix_seconds < after.taken_unix_seconds - 20
    assert [one.version for one in after.fragments] == [one.version for one in before.fragments]
    assert not any(peer.live for peer in after.peers)
    observed.cut.clear()
    again = observed.run(5)
    assert all(peer.live for peer in again.peers)
    assert again.network_seen_unix_seconds > after.taken_unix_seconds  # type: ignore[operator]
    assert again.events["live"] == 6


def test_after_a_sleep_everything_is_dated_by_the_clock_again() -> None:
    """Monotonic time stands still during a sleep; what was dated before keeps its date."""
    observed = Observed(world_of(3))
    before = observed.run(20)
    observed.sleep(5 * 3600.0)
    woken = observed.unix_offset_seconds + observed.now
    view = check(observed.run(40))
    now = observed.unix_offset_seconds + observed.now
    assert view.network_seen_unix_seconds is not None
    assert not SeenView(view, now - view.network_seen_unix_seconds).silent
    assert all(peer.live for peer in view.peers)
    assert [one for one in view.rounds if one.phases[0].start_unix_seconds > woken]
    dates = {one.digest: one.unix_seconds for one in view.certificates}
    assert before.certificates
    assert {one.digest: one.unix_seconds for one in before.certificates}.items() <= dates.items()
    assert all(one.unix_seconds < woken for one in before.certificates)
    assert woken < max(dates.values()) <= now
    assert max(one.last_unix_seconds for one in view.credit) == max(dates.values())
    said = observed.world.peers[0].presence(5)
    observed.observation.read([HeardPresence(PeerId("stranger"), said, now - 60.0)], observed.now)
    assert [peer.live for peer in observed.view().peers if peer.peer_id == "stranger"] == [False]


def test_an_old_record_of_a_dead_peer_does_not_bring_it_back() -> None:
    observed = Observed(world_of(3))
    observed.run(10)
    peer = observed.world.peers[1]
    record = HeardPresence(peer.me, peer.presence(5), UNIX + observed.now)
    observed.world.crash(peer)
    observed.observation.read([record], observed.now)
    for _ in range(12):
        observed.world.run(1.0)
        observed.observation.read([record], observed.now)
    gone = next(one for one in observed.view().peers if one.peer_id == peer.me)
    assert not gone.live


def test_rounds_come_from_their_leaders_with_their_phases() -> None:
    observed = Observed(world_of(4))
    view = check(observed.run(60))
    assert len(view.rounds) > 8
    told_by_leader = [one for one in view.rounds if one.outcome == "certified" and one.reporter == one.leader]
    assert len(told_by_leader) > len(view.rounds) / 2
    certificates = {(one.fragment, one.version): one for one in view.certificates}
    for one in view.rounds:
        if one.outcome == "certified":
            certificate = certificates[one.fragment, one.version]
            assert (one.digest, set(one.members)) == (certificate.digest, set(certificate.roster))
    starts = [one.phases[0].start_unix_seconds for one in view.rounds]
    assert starts == sorted(starts)
    keys = [(one.fragment, one.version, one.attempt) for one in view.rounds]
    assert len(keys) == len(set(keys))


def test_states_are_told_in_words() -> None:
    observed = Observed(world_of(4))
    seen = {peer.state for _ in range(60) for peer in observed.run(1).peers}
    assert {"training"} < seen <= {"training", *PHASE_WORDS.values()}


@pytest.mark.parametrize(("target", "state"), [(1, "finished"), (10**6, "draining")])
def test_a_resting_peer_has_finished_if_the_run_has(target: int, state: str) -> None:
    observed = Observed(world_of(3))
    manifest = observed.observation.manifest
    facts = run_facts(manifest).model_copy(update={"versions_target": target})
    observed.observation = Observation(manifest, facts, observed.observation.chains)
    observed.run(20)
    observed.world.drain(60.0)
    view = observed.run(5)
    assert view.finished is (target == 1)
    assert {peer.state for peer in view.peers if peer.live} == {state}


@pytest.mark.parametrize("target", [1, 10**6])
def test_a_machine_that_left_with_the_whole_run_has_finished(target: int) -> None:
    """The last state that it reported may have been that it trains."""
    observed = Observed(world_of(3))
    manifest = observed.observation.manifest
    facts = run_facts(manifest).model_copy(update={"versions_target": target})
    observed.observation = Observation(manifest, facts, observed.observation.chains)
    observed.run(20)
    for peer in observed.world.peers:
        observed.world.crash(peer)
    view = observed.run(30)
    assert not any(peer.live for peer in view.peers)
    with_all = {peer.state for peer in view.peers if peer.versions_behind == 0}
    assert with_all
    assert ("finished" in with_all) is (target == 1)
    assert all(peer.state != "finished" for peer in view.peers if peer.versions_behind)


# -- what peers only claim


def evaluation(versions: int, loss: float = 3.0, wall_seconds: float = 0.0, tokens: int = 7) -> Evaluation:
    return Evaluation(versions=versions, tokens_certified=tokens, wall_seconds=wall_seconds, loss=loss)


def test_evaluations_are_the_organisers_with_tokens_from_certificates() -> None:
    observed = Observed(world_of(3))
    organiser, other = observed.world.peers[0].me, observed.world.peers[1].me
    observed.evaluations[other] = (evaluation(0, 9.0),)
    assert observed.run(8).evaluator == other
    observed.evaluations[organiser] = (evaluation(0, 5.5), evaluation(3, 4.5, 5.0), evaluation(10**6, 4.0, 6.0))
    view = check(observed.run(40))
    assert view.evaluator == organiser
    assert [(one.versions, one.loss) for one in view.evaluations] == [(0, 5.5), (3, 4.5), (10**6, 4.0)]
    first, third, beyond = view.evaluations
    by_version: Counter[int] = Counter()
    for certificate in observed.world.watcher.certified.values():
        by_version[certificate.version] += certificate.outcome.tokens
    assert first.tokens_certified == 0
    assert third.tokens_certified == (by_version[1] + by_version[2] // 2) // 2
    assert beyond.tokens_certified == 7  # no certificate reaches that far: it is only claimed
    created = observed.observation.manifest.created_unix_seconds
    assert third.wall_seconds - first.wall_seconds == pytest.approx(5.0)
    assert first.wall_seconds == pytest.approx(UNIX - created)


def test_words_of_a_host_are_shown_without_codes_that_steer_a_terminal() -> None:
    held_out = HostEvaluations(PeerId("organiser"), 0.0)
    status = PublicStatus(role="host", evaluations=(evaluation(0),), sample="def\x1b[2J(x):\n    y", exports="a\nb")
    held_out.hear(PeerId("organiser"), status, 1.0)
    held_out.hear(PeerId("stranger"), status.model_copy(update={"sample": "lies"}), 1.0)
    assert (held_out.sample, held_out.exports) == ("def [2J(x):\n    y", "a b")


def test_an_observer_that_came_later_has_the_hosts_word_for_tokens() -> None:
    held_out = HostEvaluations(PeerId("organiser"), 0.0)
    status = PublicStatus(role="host", wall_seconds=9.0, evaluations=(evaluation(3, tokens=70),))
    held_out.hear(PeerId("organiser"), status, 9.0)
    assert held_out.evaluations((), 2)[0].tokens_certified == 70


@pytest.mark.parametrize(
    "nonsense",
    [
        evaluation(5, float("nan")),
        evaluation(5, float("inf")),
        evaluation(-1),
        evaluation(2**60),
        evaluation(5, 3.0, 1e12),
        evaluation(5, 3.0, float("nan")),
        evaluation(5, tokens=10**400),
    ],
)
def test_impossible_evaluations_are_left_out(nonsense: Evaluation) -> None:
    observed = Observed(world_of(2))
    observed.run(2)
    sender = observed.world.peers[0].me
    observed.observation.known.peers[sender].asked = True
    told = {"role": "host", "evaluations": [nonsense.model_dump(), evaluation(1, 4.0).model_dump()]}
    observed.observation.hear(sender, StatusAnswer(status=json.dumps(told).encode()), observed.now)
    assert [one.versions for one in check(observed.view()).evaluations] == [1]


def test_names_are_one_harmless_line() -> None:
    observed = Observed(world_of(2))
    observed.names[observed.world.peers[0].me] = "a\x1b[2J\nb\u202e<b>c"
    [name] = [peer.name for peer in observed.run(3).peers if peer.name]
    assert name == "a [2J b <b>c"
    assert {one.name for one in observed.run(30).credit} == {"", name}


def round_of(observed: Observed, **changes: object) -> RoundView:
    """Return a plausible round for the next version of fragment 0."""
    version = observed.observation.chains.versions[0] + 1
    values: dict[str, object] = {
        "fragment": 0,
        "version": version,
        "attempt": 40,
        "leader": observed.observation.chains.leader(0, version, 40),
        "members": tuple(peer.me for peer in observed.world.peers),
        "phases": (PhaseSpan(name="join", start_unix_seconds=UNIX + observed.now - 1),),
        "outcome": "void",
        "reason": "told\nso",
    }
    return RoundView(**{**values, **changes})  # type: ignore[arg-type]


def tell(observed: Observed, *rounds: RoundView, asked: bool = True) -> NetworkView:
    """Let peer 1 report these rounds, and return the view."""
    liar = observed.world.peers[1].me
    observed.observation.known.peers[liar].asked = asked
    status = PublicStatus(role="learner", rounds=rounds)
    observed.observation.hear(liar, encode_status(status), observed.now)
    return check(observed.view())


def test_a_round_that_could_be_is_shown_as_its_reporters_word() -> None:
    observed = Observed(world_of(3))
    observed.run(20)
    view = tell(observed, round_of(observed, reporter="somebody"))
    [told] = [one for one in view.rounds if one.attempt == 40]
    assert (told.outcome, told.reporter) == ("void", observed.world.peers[1].me)
    assert [one.detail for one in view.tape if one.event == "round_void"] == ["told so"]
    assert "round_void" not in tell(observed, asked=False).events or view.events["round_void"] == 1


@pytest.mark.parametrize(
    "lie",
    [
        {"fragment": 200},
        {"version": 10**6},
        {"leader": "12D3KooWnobody"},
        {"leader": "<b>"},
        {"members": ("a b",)},
        {"phases": ()},
        {"phases": (PhaseSpan(name="join", start_unix_seconds=1.0),)},
        {"phases": (PhaseSpan(name="join", start_unix_seconds=UNIX * 2),)},
    ],
)
def test_rounds_that_cannot_be_are_left_out(lie: dict[str, object]) -> None:
    observed = Observed(world_of(3))
    observed.run(20)
    assert [one for one in tell(observed, round_of(observed, **lie)).rounds if one.attempt == 40] == []


def test_a_false_certificate_digest_is_left_out() -> None:
    observed = Observed(world_of(3))
    observed.run(30)
    truth = next(one for one in observed.view().rounds if one.outcome == "certified")
    lie = truth.model_copy(update={"digest": "00" * 32, "reason": "lie"})
    assert "lie" not in {one.reason for one in tell(observed, lie).rounds}


def test_an_unasked_trace_counts_for_nothing() -> None:
    observed = Observed(world_of(3))
    observed.run(20)
    assert [one for one in tell(observed, round_of(observed), asked=False).rounds if one.attempt == 40] == []


def test_a_few_are_asked_at_once_and_everybody_in_turn() -> None:
    observed = Observed(world_of(12))
    asked: list[PeerId] = []
    for _ in range(8):
        observed.world.run(1.0)
        observed.look()
        asked += [peer for peer, known in observed.observation.known.peers.items() if known.asked_at == observed.now]
    assert max(Counter(asked).values()) <= 4
    assert set(asked) == {peer.me for peer in observed.world.peers}


@cache
def running() -> Observed:
    """Return one world for many examples; time stands still in it."""
    observed = Observed(world_of(2))
    observed.run(30)
    return observed


VALUES = st.sampled_from([None, True, -1, 0, 10**400, -(2**70), 1e308, float("nan"), "", "\x00<b>", [], {}, [[]] * 9])


def damaged(status: dict[str, Any], data: st.DataObject) -> dict[str, Any]:
    """Return the status with one value, anywhere inside, replaced."""
    place: Any = status
    while True:
        key = data.draw(st.sampled_from(range(len(place)) if isinstance(place, list) else sorted(place)))
        if not isinstance(place[key], list | dict) or not place[key] or data.draw(st.integers(0, 3)) == 0:
            place[key] = data.draw(VALUES)
            return status
        place = place[key]


@settings(deadline=None)
@given(st.data())
def test_no_answer_can_hurt(data: st.DataObject) -> None:
    observed = running()
    peer = observed.world.peers[0]
    answer = data.draw(st.binary(max_size=100))
    if data.draw(st.booleans()):
        rounds = tuple(observed.world.traces_of(peer).views()[-3:])
        status = PublicStatus(role="host", wall_seconds=9.0, evaluations=(evaluation(1),), rounds=rounds)
        answer = json.dumps(damaged(status.model_dump(mode="json"), data)).encode()
    observed.observation.known.peers[peer.me].asked = True
    observed.observation.hear(peer.me, StatusAnswer(status=answer), observed.now)
    check(observed.view())


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_no_presence_can_hurt(data: st.DataObject) -> None:
    observed = Observed(world_of(2))
    view = observed.run(3)
    honest = observed.world.peers[0].presence(3)
    counts = st.integers(-(2**63), 2**64 - 1)
    lies = data.draw(
        st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "versions": st.lists(counts, max_size=5).map(tuple),
                    "heads": st.lists(st.binary(max_size=8), max_size=5).map(tuple),
                    "steps": st.integers(0, 2**64 - 1),
                    "tokens": st.integers(0, 2**64 - 1),
                    "steps_per_second": st.floats(0, 1e6),
                    "loss": st.floats(0, 1e308),
                    "name": st.text(max_size=32),
                    "bytes_sent": st.integers(0, 2**64 - 1),
                    "state": st.sampled_from(["hosting", "training", "draining"]),
                },
            ),
            max_size=4,
        )
    )
    records = [
        HeardPresence(PeerId(f"liar{number}"), honest.model_copy(update=lie), UNIX + observed.now + number)
        for number, lie in enumerate(lies)
    ]
    observed.observation.read(records, observed.now)
    observed.observation.questions(observed.now)
    after = check(observed.view())
    assert len(after.peers) == len(view.peers) + len(lies)
    assert all((one.loss or 0.0) <= LOSS_MAX for one in after.peers)  # 300 digits would take the columns of all


def test_certificates_that_do_not_verify_are_not_counted() -> None:
    observed = Observed(world_of(3))
    observed.run(20)
    observed.world.drain(60.0)
    observed.run(5)
    before = observed.view()
    forged = next(iter(observed.world.watcher.certified.values()))
    chain = observed.world.peers[0].engine.machines[0].chain
    newest = chain.certificates[-1]
    lie = newest.model_copy(
        update={
            "outcome": newest.outcome.model_copy(update={"version": newest.version + 1, "parent": newest.digest}),
        }
    )
    observed.observation.read(
        [
            HeardPresence(
                observed.world.peers[1].me,
                observed.world.peers[1].presence(9).model_copy(update={"versions": (newest.version + 1, 0)}),
                UNIX + observed.now + 1,
            )
        ],
        observed.now,
    )
    asked = [one for one in observed.observation.questions(observed.now) if isinstance(one[1], AskChainNote)]
    assert asked
    for note in (ChainNote(fragment=0, certificates=(lie,)), ChainNote(fragment=200, certificates=(forged,))):
        observed.observation.hear(observed.world.peers[1].me, note, observed.now)
    after = observed.view()
    assert [one.version for one in after.fragments] == [one.version for one in before.fragments]
    assert after.credit == before.credit


def test_an_observer_signs_and_writes_nothing() -> None:
    observed = Observed(world_of(3))
    observed.run(60)
    assert ME not in {peer for view in observed.view().certificates for peer in view.voters}
    assert not any(machine.busy for machine in observed.observation.chains._engine.machines)


def test_the_losing_branch_of_a_partition_is_taken_back() -> None:
    pace = PaceSpec(fragments=2, steps_per_version=8, quorum=2, min_group=2, round_seconds=4.0)
    observed = Observed(world_of(5, pace))
    world = observed.world
    observed.run(20)
    for number, peer in enumerate(world.peers):
        world.network.sides[peer.me] = int(number < 2)
    world.network.sides[ME] = 1  # the observer is with the two that can only make minor versions
    observed.cut = {peer.me for peer in world.peers[2:]}
    alone = observed.run(60)
    assert any(one.minor for one in alone.certificates)
    world.network.heal()
    observed.cut.clear()
    observed.run(30)
    world.drain(120.0)
    view = check(observed.run(8))
    assert view.events["lineage_changed"] >= 1
    chains = [machine.chain for machine in world.peers[4].engine.machines]  # type: ignore[union-attr]
    assert [one.head for one in view.fragments] == [chain.digest.hex() for chain in chains]
    tokens: Counter[str] = Counter()
    for chain in chains:
        for certificate in chain.certificates:
            tokens.update(certificate.outcome.credited())
    assert {one.peer_id: one.tokens for one in view.credit} == {peer: total // 2 for peer, total in tokens.items()}
    assert {one.digest for one in view.certificates} == {c.digest.hex() for chain in chains for c in chain.certificates}
    assert view.history[-1].tokens_certified == tokens.total() // 2
