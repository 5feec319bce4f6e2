"""Turning views into rows and figures."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.simulator.keys import virtual_peer_id
from coordinator.views.evaluation import Evaluation
from coordinator.views.network_view import (
    AuditView,
    BanView,
    CertificateView,
    ContributorView,
    CreditView,
    FragmentView,
    HistoryPoint,
    NetworkView,
    PeerView,
    PhaseSpan,
    RoundView,
    RunFacts,
)
from dashboard import charts
from dashboard.frames import credit, network, rounds, run, trust
from dashboard.text import label, paragraph
from dht.identity import Identity
from dht.statement import Context, digest_of, make_statement
from dht.wire import Wire
from tests.dashboard.views import EPOCH

RUN = bytes(32)


class Said(Wire):
    """A body to sign."""

    what: int


def points(*rates: tuple[float, float, float], seconds: float = 10.0) -> tuple[HistoryPoint, ...]:
    """Return points of history with these (certified, trained, capacity) tokens per second."""
    return tuple(
        HistoryPoint(
            unix_seconds=EPOCH + seconds * index,
            versions=2 * index,
            tokens_per_second=certified,
            trained_tokens_per_second=trained,
            capacity_tokens_per_second=capacity,
            peers_live=2,
            bytes_sent=100 * index,
        )
        for index, (certified, trained, capacity) in enumerate(rates)
    )


# -- run


def test_goodput_and_utilisation_are_shares_of_what_everybody_could_train() -> None:
    found = run.figures(NetworkView(history=points((2, 6, 10), (4, 8, 10))))
    assert found.goodput == pytest.approx(0.3)
    assert found.utilisation == pytest.approx(0.7)


def test_moments_without_a_known_rate_are_left_out_of_goodput_and_of_its_chart() -> None:
    """An observer cannot say at first how much is certified. Before, these moments counted as 0."""
    first, second = points((0, 6, 10), (4, 8, 10))
    moments = (first.model_copy(update={"tokens_per_second": None}), second)
    found = run.figures(NetworkView(history=moments))
    assert (found.goodput, found.utilisation) == (pytest.approx(0.4), pytest.approx(0.7))
    rates = [(row["series"], row["tokens_per_second"]) for row in run.rate_rows(NetworkView(history=moments))]
    assert rates == [("trained", 6), ("trained", 8), ("certified", 4)]
    unknown = run.figures(NetworkView(history=moments[:1]))
    assert (unknown.tokens_per_second, unknown.goodput) == (None, None)


def test_old_moments_do_not_count() -> None:
    moments = points((0, 0, 10), (10, 10, 10), (10, 10, 10), seconds=run.WINDOW_SECONDS / 2 + 1)
    found = run.figures(NetworkView(history=moments))
    assert found.goodput == found.utilisation == 1.0


def test_a_long_run_keeps_few_moments_and_has_rates_all_the_same() -> None:
    view = NetworkView(run=RunFacts(versions_target=2), history=points((1, 1, 1), (1, 1, 1), seconds=3600))
    assert run.seconds_to_target(view) == 3600


def test_nothing_is_claimed_of_an_empty_view() -> None:
    found = run.figures(NetworkView())
    assert (found.loss, found.goodput, found.utilisation, found.seconds_to_target, found.bytes_not_sent) == (None,) * 5


def test_time_to_the_target_follows_the_pace() -> None:
    facts, fragments = RunFacts(versions_target=10), (FragmentView(version=3), FragmentView(version=1))
    view = NetworkView(run=facts, fragments=fragments, history=points((0, 0, 0), (0, 0, 0), (0, 0, 0)))
    assert run.seconds_to_target(view) == pytest.approx(6 * 5)  # two versions every ten seconds
    assert run.seconds_to_target(view.model_copy(update={"run": RunFacts(versions_target=4)})) == 0
    assert run.seconds_to_target(view.model_copy(update={"history": view.history[:1]})) is None


def evaluated(*losses: float) -> tuple[Evaluation, ...]:
    return tuple(
        Evaluation(versions=at, tokens_certified=at, wall_seconds=at, loss=loss) for at, loss in enumerate(losses)
    )


def test_the_headline_says_how_far_the_run_is_and_whether_it_learns() -> None:
    view = NetworkView(
        run=RunFacts(versions_target=10),
        fragments=(FragmentView(version=3), FragmentView(version=1)),
        history=points((0, 0, 0), (0, 0, 0), (0, 0, 0)),
        evaluations=evaluated(3.0, 2.9, 2.8, 2.7, 2.6, 2.41),
    )
    assert run.headline(view) == "40% done, about 30 s left, loss 2.410 and falling, 0 machines"
    worse = view.model_copy(update={"evaluations": evaluated(2.4, 2.4, 2.4, 2.5, 2.5, 2.5)})
    assert "loss 2.500 and not falling" in run.headline(worse)
    assert run.headline(NetworkView()) == "0% done, 0 machines"


def test_a_run_that_has_all_its_versions_is_finished_though_its_peers_are_gone() -> None:
    view = NetworkView(run=RunFacts(versions_target=4), fragments=(FragmentView(version=3), FragmentView(version=1)))
    assert view.finished
    assert run.headline(view).startswith("Finished")
    assert not view.model_copy(update={"run": RunFacts(versions_target=5)}).finished
    assert not NetworkView().finished


def test_a_finished_run_says_where_the_model_is() -> None:
    view = NetworkView(run=RunFacts(versions_target=3), fragments=(FragmentView(version=3),), exports="ann/stories")
    assert run.headline(view) == "Finished. The model is in ann/stories."


def test_the_page_tells_what_a_run_says_of_itself_and_how_to_join() -> None:
    told = (("about", "Stories"), ("purpose", "to try it"), ("run by", "Ann {x}"), ("licence", "CC0-1.0"))
    view = NetworkView(run=RunFacts(about=told, admission="invite"))
    assert run.about(view) == ["Stories: to try it", "Run by: Ann {x}", "Licence of the model: CC0-1.0"]
    assert run.joining(view) == "You need an invite: ask Ann {x}. Strangers without one are not let in. Then:"
    assert run.joining(NetworkView()) == "Ask its organiser for an invite, then:"


def test_an_alert_says_how_long_nothing_came_and_why() -> None:
    peer = PeerView(peer_id="a", role="learner", live=True)
    view = NetworkView(
        run=RunFacts(versions_target=9),
        fragments=(FragmentView(version=3, certified_unix_seconds=100.0),),
        peers=(peer,),
        taken_unix_seconds=100.0 + run.ALERT_SECONDS,
    )
    assert run.alert(view) == "no new version for 5:00: fewer than two learners are up"
    two = view.model_copy(update={"peers": (peer, peer.model_copy(update={"peer_id": "b"}))})
    assert run.alert(two) == "no new version for 5:00"
    assert run.alert(view.model_copy(update={"taken_unix_seconds": 100.0 + run.ALERT_SECONDS - 1})) == ""
    assert run.alert(view.model_copy(update={"run": RunFacts(versions_target=3)})) == ""


def test_data_parallel_traffic_is_computed_from_steps() -> None:
    facts = RunFacts(parameters=1000, tokens_per_step=5)
    rows = run.traffic_rows(NetworkView(run=facts, history=points((0, 10, 10), (0, 10, 10))))
    # 10 tokens/s for 10 s are 20 steps; with two peers a ring sends half of 2 · 1000 · 2 bytes for each, twice
    assert [row["bytes"] for row in rows[-2:]] == [20 * 2000, 100.0]
    assert run.figures(NetworkView(run=facts, history=points((0, 10, 10), (0, 10, 10)))).bytes_not_sent == 39900


def test_a_host_sends_no_gradients() -> None:
    """Before, M of the formula counted hosts: with two learners the page said 533 MB instead of 400 MB."""
    facts = RunFacts(parameters=1_000_000, tokens_per_step=1000)
    seen = [one.model_copy(update={"peers_live": 3, "learners_live": 2}) for one in points((0, 2000, 0), (0, 2000, 0))]
    assert run.traffic_rows(NetworkView(run=facts, history=tuple(seen)))[-2]["bytes"] == 20 * 2 * 1_000_000
    alone = tuple(one.model_copy(update={"peers_live": 2, "learners_live": 1}) for one in seen)
    assert run.traffic_rows(NetworkView(run=facts, history=alone))[-2]["bytes"] == 0


def test_the_history_of_an_earlier_version_is_read() -> None:
    facts, point = RunFacts(parameters=1000, tokens_per_step=5), HistoryPoint(unix_seconds=1.0)
    old = point.model_dump(exclude={"learners_live"}) | {"peers_live": 2, "trained_tokens_per_second": 10.0}
    moments = [{**old, "unix_seconds": EPOCH + at, "bytes_sent": at} for at in (0, 10)]
    view = NetworkView.model_validate({"run": facts.model_dump(), "history": moments})
    assert [row["bytes"] for row in run.traffic_rows(view)[-2:]] == [20 * 2000, 10.0]


@pytest.mark.parametrize(
    "spec", [charts.loss("tokens", True), charts.loss("minutes", True), charts.traffic(run.TRAFFIC_SERIES)]
)
def test_a_log_axis_leaves_out_what_has_no_place_on_it(spec: charts.Spec) -> None:
    """Before, a host's first evaluation, at 0 tokens, put every point of the loss chart at its left edge."""
    axes = [axis["field"] for axis in spec["encoding"].values() if axis.get("scale", {}).get("type") == "log"]
    assert axes
    assert spec["transform"] == [{"filter": " && ".join(f"datum.{field} > 0" for field in axes)}]


def test_a_linear_axis_begins_with_the_untrained_model() -> None:
    assert "transform" not in charts.loss("tokens", False)


def test_no_traffic_is_drawn_where_nobody_tells_it() -> None:
    facts = RunFacts(parameters=1000, tokens_per_step=5)
    assert run.traffic_rows(NetworkView(run=facts, history=(HistoryPoint(unix_seconds=1),))) == []


# -- network


@given(st.integers(1, 300))
def test_every_peer_stands_somewhere_else_inside_the_disc(count: int) -> None:
    ids = [f"peer {number}" for number in range(count)]
    places = network.positions(ids)
    assert places == network.positions(ids[::-1])
    assert all(math.hypot(*place) <= 1 + 1e-9 for place in places.values())
    assert len({(round(x, 6), round(y, 6)) for x, y in places.values()}) == count


@pytest.mark.parametrize(
    ("peer", "words", "kind"),
    [
        (PeerView(peer_id="a", state="training"), "training", "training"),
        (PeerView(peer_id="a", state="training", live=False), "gone", "gone"),
        (PeerView(peer_id="a", state="paused", note="on battery"), "paused: on battery", "paused"),
        (PeerView(peer_id="a", trust="banned", note="lied", live=False), "banned: lied", "banned"),
        (PeerView(peer_id="a", state="reducing"), "reducing", "in a round"),
        (PeerView(peer_id="a", state="finished", role="host"), "finished", "finished"),
        (PeerView(peer_id="a", state="finished", live=False), "finished", "finished"),
        (PeerView(peer_id="a", state="draining"), "leaving", "leaving"),
        (PeerView(peer_id="a"), "unknown", "unknown"),
    ],
)
def test_states_in_words(peer: PeerView, words: str, kind: str) -> None:
    assert (network.state_words(peer), network.kind(peer)) == (words, kind)


def test_a_sample_is_shown_whole_however_long_its_lines() -> None:
    written = "    if " + " and ".join(f"word{number}" for number in range(40)) + "\nelse\x1b:"
    assert paragraph(written) == written.replace("\x1b", " ")
    assert paragraph("line\n" * 99, lines_max=2) == "line\nline"


def test_a_host_without_a_name_is_called_the_host() -> None:
    assert label(PeerView(peer_id="12D3KooWabcdefgh", role="host")) == "host …abcdefgh"
    assert label(PeerView(peer_id="12D3KooWabcdefgh", role="host", name="ann")) == "ann …abcdefgh"
    assert label(PeerView(peer_id="12D3KooWabcdefgh", role="learner")) == "…abcdefgh"


def a_round(outcome: str, end: float | None, members: tuple[str, ...] = ("a", "b", "c"), version: int = 1) -> RoundView:
    phases = (
        PhaseSpan(name="join", start_unix_seconds=EPOCH, end_unix_seconds=EPOCH + 1),
        PhaseSpan(name="vote", start_unix_seconds=EPOCH + 1, end_unix_seconds=None if end is None else EPOCH + end),
    )
    return RoundView.model_validate(
        {
            "fragment": 0,
            "version": version,
            "leader": "a",
            "members": members,
            "late": ("c",),
            "phases": phases,
            "outcome": outcome,
            "reason": "no roster in time" if outcome == "void" else "",
        }
    )


def view_of(*found: RoundView, taken: float = 10.0) -> NetworkView:
    peers = tuple(PeerView(peer_id=one, name=one.upper(), state="training") for one in "abcd")
    return NetworkView(peers=peers, rounds=found, taken_unix_seconds=EPOCH + taken)


def test_groups_light_up_and_go_out() -> None:
    view = view_of(a_round("certified", 2.0), a_round("certified", 8.0, version=2), a_round("running", None, version=3))
    assert [one.version for one in network.lit_rounds(view)] == [3, 2]
    edges = [row for row in network.graph_rows(view) if row["part"] == "edge"]
    assert [row["kind"] for row in edges] == ["running", "running", "certified", "certified"]
    counts = network.kind_counts(view)
    assert {one: count for one, count in counts.items() if count} == {"training": 1, "in a round": 3}
    assert list(counts) == list(network.KINDS[:-1])


def test_a_leader_that_nobody_sees_has_no_lines() -> None:
    unseen = a_round("running", None).model_copy(update={"leader": "z"})
    assert [row["part"] for row in network.graph_rows(view_of(unseen))] == ["node"] * 4


def test_the_table_has_most_work_first_and_marks_the_readers_own() -> None:
    view = view_of(a_round("running", None))
    peers = tuple(
        peer.model_copy(update={"credited_tokens": 10 * at, "note": "rounds"}) for at, peer in enumerate(view.peers)
    )
    rows = network.peer_table(
        view.model_copy(update={"peers": peers, "credit": (CreditView(peer_id="d", tokens=40),)}), own="c"
    )
    assert [row["peer"] for row in rows] == ["D …d", "C …c (mine)", "B …b", "A …a"]
    assert [row["share"] for row in rows] == [75.0, 50.0, 25.0, 0.0]
    assert {row["state"] for row in rows} == {"training", "in a round"}  # states that need no note


def test_a_host_has_no_share_of_the_work_and_no_steps() -> None:
    view = view_of(a_round("running", None))
    host = view.peers[0].model_copy(update={"role": "host"})
    (row,) = network.peer_table(view.model_copy(update={"peers": (host,)}))
    assert (row["share"], row["credit"], row["steps"]) == (None, None, None)
    assert "Steps" in network.figures(view.peers[0])
    assert list(network.figures(host)) == ["Versions behind", "Sent", "Received"]


# -- rounds


def test_a_phase_that_lasts_ends_now() -> None:
    rows = rounds.gantt_rows(view_of(a_round("running", None)))
    assert [row["seconds"] for row in rows] == [1.0, 9.0]
    assert rows[1]["end"] == 1000 * (EPOCH + 10)


def test_void_rounds_say_why() -> None:
    view = view_of(a_round("void", 3.0), a_round("certified", 4.0, version=2))
    marks = [row["mark"] for row in rounds.gantt_rows(view)]
    assert marks == ["", "✕ void", "", ""]
    table = rounds.round_table(view)
    assert {row["why"] for row in table} == {"no roster in time", ""}
    assert {row["late"] for row in table} == {"C …c"}
    assert rounds.round_table(view, "d") == []


def test_only_the_newest_rounds_are_drawn() -> None:
    view = view_of(*(a_round("certified", 2.0, version=number) for number in range(1, 60)))
    assert len({row["order"] for row in rounds.gantt_rows(view)}) == rounds.ROUNDS_DRAWN


def test_latency_counts_certified_rounds() -> None:
    view = view_of(*(a_round("certified", 1.0 + seconds) for seconds in (1, 2, 3)), a_round("void", 9.0))
    vote = next(row for row in rounds.latency_rows(view) if row["phase"] == "vote")
    assert (vote["median"], vote["p95"], vote["rounds"]) == (2.0, 3.0, 3)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0.01, 1))
def test_percentiles(values: list[float], share: float) -> None:
    found = rounds.percentile(values, share)
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values)


def test_the_tape_is_json_lines(demo: NetworkView) -> None:
    lines = [json.loads(line) for line in rounds.tape_lines(demo).splitlines()]
    assert len(lines) == len(demo.tape)
    assert {"peer_banned", "partition", "certified"} <= {line["event"] for line in lines}


# -- credit


def test_credit_over_time_ends_at_the_leaderboard() -> None:
    def certificate(version: int, peer: str, tokens: int, included: bool = True) -> CertificateView:
        one = ContributorView(peer_id=peer, tokens=tokens, included=included)
        return CertificateView(fragment=0, version=version, contributors=(one,), unix_seconds=EPOCH + version)

    view = NetworkView(
        run=RunFacts(fragments=2),
        taken_unix_seconds=EPOCH + 9,
        credit=(CreditView(peer_id="a", tokens=50), CreditView(peer_id="b", tokens=30, team="x")),
        certificates=(certificate(1, "a", 40), certificate(2, "b", 20), certificate(3, "a", 60, included=False)),
    )
    rows = credit.history_rows(view)
    held = {peer: [row["tokens"] for row in rows if row["peer"] == peer] for peer in ("…a", "…b")}
    assert held == {"…a": [30, 50, 50, 50, 50, 50, 50], "…b": [20, 20, 20, 30, 30, 30, 30]}
    assert [row["time"] for row in rows[::2]][-2:] == [1000 * (EPOCH + 3), 1000 * (EPOCH + 9)]
    assert [(row["place"], row["peer"]) for row in credit.leaderboard(view, own="b")] == [(1, "…a"), (2, "…b (mine)")]
    assert {row["team"]: row["tokens"] for row in credit.team_rows(view)} == {"no team": 50, "x": 30}
    assert credit.team_rows(NetworkView(credit=view.credit[:1])) == []


def test_credit_by_day() -> None:
    view = NetworkView(credit=(CreditView(peer_id="a", tokens=50, days=((0, 20), (20_000, 30))),))
    assert [(row["day"], row["tokens"]) for row in credit.day_rows(view)] == [("01 Jan", 20), ("04 Oct", 30)]


def test_credit_never_falls(demo: NetworkView) -> None:
    rows = credit.history_rows(demo)
    for name in {row["peer"] for row in rows}:
        held = [float(str(row["tokens"])) for row in rows if row["peer"] == name]
        assert all(before <= after + 1e-6 for before, after in pairwise(held))


# -- trust


def ban(identity: Identity, bodies: list[int], kind: str = "commit", run_id: bytes = RUN) -> BanView:
    context = Context(run_id=run_id, kind=kind, fragment=0, version=0, group=digest_of(b"group"))
    said = [make_statement(identity, context, Said(what=body)) for body in bodies]
    return BanView(peer_id=CULPRIT.peer_id, evidence=tuple(one.to_wire().hex() for one in said))


CULPRIT, SOMEBODY = Identity(bytes(32)), Identity(bytes([1] * 32))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (ban(CULPRIT, [1, 2]), "verified here"),
        (ban(CULPRIT, [1, 1]), "signed by this key"),
        (ban(CULPRIT, [1, 2], kind="join"), "signed by this key"),  # one may join twice, after a restart
        (ban(SOMEBODY, [1, 2]), "is about somebody else"),
        (ban(CULPRIT, [1, 2], run_id=bytes([1] * 32)), "is about another run"),
        (BanView(peer_id=CULPRIT.peer_id), "none shown"),
        (BanView(peer_id=CULPRIT.peer_id, evidence=("00ff",)), "cannot be read"),
        (BanView(peer_id=CULPRIT.peer_id, evidence=("0",)), "cannot be read"),
    ],
)
def test_the_page_checks_evidence_itself(found: BanView, words: str) -> None:
    assert trust.check_evidence(found, RUN.hex()).startswith(words)


def test_a_forged_signature_proves_nothing() -> None:
    honest = ban(CULPRIT, [1, 2])
    broken = honest.evidence[1][:-2] + ("00" if honest.evidence[1][-2:] != "00" else "01")
    forged = BanView(peer_id=CULPRIT.peer_id, evidence=(honest.evidence[0], broken))
    assert trust.check_evidence(forged, RUN.hex()) == "is not signed by this key"


def test_audits_and_complaints_are_apart() -> None:
    peer = str(virtual_peer_id(0, 0))
    audits = (
        AuditView(kind="audit", about=peer, by=peer, passed=False, unix_seconds=EPOCH),
        AuditView(kind="complaint", about=peer, by=peer, reason="silent", unix_seconds=EPOCH),
    )
    view = NetworkView(audits=audits, peers=(PeerView(peer_id=peer, trust="probation"),))
    assert [row["result"] for row in trust.audit_rows(view, "audit")] == ["failed"]
    assert [row["reason"] for row in trust.audit_rows(view, "complaint")] == ["silent"]
    assert len(trust.probation_rows(view)) == 1


def test_a_banned_machine_that_is_gone_is_still_explained() -> None:
    """A page that is opened after the ban has never seen the machine itself."""
    view = NetworkView(bans=(BanView(peer_id=CULPRIT.peer_id, reason="signed two commitments"),))
    assert network.absent_words(view, CULPRIT.peer_id) == f"…{CULPRIT.peer_id[-8:]}: banned: signed two commitments"
    assert network.absent_words(view, "12D3KooWsomebody").startswith("Nobody of this id")
