"""The report of a swarm, from snapshots as peers would have reported them."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.views.evaluation import Evaluation
from coordinator.views.network_view import BanView, CertificateView
from coordinator.views.snapshot import CertifiedWork, FragmentStatus, PeerSnapshot
from dht.errors import LocalError, UsageError
from peer.swarm.report import check_writable, delays, disagreement, report_of, utilisation, write_report
from peer.swarm.watch import SwarmWatch, at_rest

FRAGMENTS = 3
counts = st.integers(0, 10**9)


def digest(fragment: int, version: int, kind: str = "state") -> str:
    return f"{kind}-{fragment}-{version}"


def fragments(versions: list[int], held: list[int] | None = None) -> tuple[FragmentStatus, ...]:
    return tuple(
        FragmentStatus(
            version=version,
            held_version=(held or versions)[index],
            head=digest(index, version, "head"),
            state=digest(index, version),
            phase="idle",
        )
        for index, version in enumerate(versions)
    )


def told(name: str, versions: list[int], **more: object) -> PeerSnapshot:
    plain = {
        "peer_id": f"id of {name}",
        "run_id": "abc",
        "name": name,
        "role": "host" if name == "host" else "learner",
        "state": "finished",
        "pid": 1,
        "wall_seconds": 10.0,
        "fragments": fragments(versions),
        "digests_from_tensors": tuple(digest(index, version) for index, version in enumerate(versions)),
    }
    return PeerSnapshot.model_validate({**plain, **more})


def watch_of(learners: int) -> SwarmWatch:
    return SwarmWatch("host", tuple(f"peer-{number + 1}" for number in range(learners)), 24)


def ended(learners: int, versions: list[int], **more: object) -> SwarmWatch:
    """Return the watch of a swarm that began at version 0 and ended well."""
    watch = watch_of(learners)
    watch.note("host", told("host", [0] * FRAGMENTS), 0.0)
    for name in watch.names:
        watch.note_final(name, told(name, versions, **more), 1.0)
    return watch


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "tokens": counts,
                "steps": counts,
                "bytes_sent": counts,
                "bytes_received": counts,
                "learner_cpu_seconds": st.floats(0, 1e6),
                "training_seconds": st.floats(0.1, 1e6),
                "adoption_delays_steps": st.lists(st.integers(0, 50), max_size=5).map(tuple),
                "events": st.dictionaries(st.sampled_from(["certified", "round_void"]), st.integers(1, 99)),
            }
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 64),
)
def test_sums_are_over_the_learners_and_means_per_learner(peers: list[dict[str, object]], cores: int) -> None:
    watch = watch_of(len(peers))
    watch.note_final("host", told("host", [2, 2, 1], tokens=5, steps=5, bytes_sent=7, events={"certified": 4}), 1.0)
    for name, figures in zip(watch.learners, peers, strict=True):
        watch.note_final(name, told(name, [2, 2, 1], **figures), 1.0)
    report = report_of(watch, cores, 60.0)
    snapshots = watch.learner_snapshots()
    assert report.tokens == sum(one.tokens for one in snapshots)
    assert report.inner_steps == sum(one.steps for one in snapshots)
    assert abs(report.bytes_sent_per_peer * len(peers) - sum(one.bytes_sent for one in snapshots)) <= len(peers)
    assert abs(report.bytes_received_per_peer * len(peers) - sum(one.bytes_received for one in snapshots)) <= len(peers)
    assert report.rounds_void == max(one.events.get("round_void", 0) for one in snapshots)
    assert report.events["certified"] == 4 + sum(one.events.get("certified", 0) for one in snapshots)
    longest = max(one.training_seconds for one in snapshots)
    assert report.utilisation * cores * longest == pytest.approx(sum(one.learner_cpu_seconds for one in snapshots))
    assert report.peers == len(peers)
    assert report.agreement


def test_certified_work_is_what_the_best_witness_has_seen() -> None:
    watch = ended(2, [4, 4, 4])
    late = CertifiedWork(versions=3, minor=0, tokens=10, members=5, steps=9)
    whole = CertifiedWork(versions=12, minor=1, tokens=3000, members=30, steps=300)
    watch.note_final("peer-1", told("peer-1", [4, 4, 4], certified=late), 2.0)
    watch.note_final("peer-2", told("peer-2", [4, 4, 4], certified=whole), 2.0)
    report = report_of(watch, 2, 60.0)
    assert (report.tokens_certified, report.minor_certificates) == (3000, 1)
    assert (report.group_size_mean, report.steps_per_version) == (2.5, 25.0)


def test_versions_per_minute_leave_out_the_start_and_what_the_hostile_say() -> None:
    watch = watch_of(2)
    watch.hostile = frozenset({"peer-2"})
    assert report_of(watch, 2, 60.0).versions_per_minute is None
    watch.note("host", told("host", [3, 3, 3]), 0.0)  # an earlier run had made these
    for now, versions in ((100.0, [4, 3, 3]), (110.0, [4, 4, 3]), (160.0, [5, 5, 4]), (190.0, [5, 5, 4])):
        watch.note("peer-1", told("peer-1", versions), now)
        watch.note("peer-2", told("peer-2", [99, 99, 99]), now)
    assert report_of(watch, 2, 60.0).versions_per_minute == 4.0


def test_every_banned_key_is_named_once() -> None:
    watch = watch_of(2)
    ban = {"peer_id": "culprit", "reason": "lied"}
    watch.latest = {"peer-1": told("peer-1", [1], bans=[ban]), "peer-2": told("peer-2", [1], bans=[ban])}
    report = report_of(watch, 1, 1.0)
    assert json.loads(report.model_dump_json(by_alias=True))["bans"] == [
        {"peer": "culprit", "class": "A", "reason": "lied", "by": 2}
    ]


def test_versions_of_an_earlier_run_of_the_same_data_do_not_count() -> None:
    watch = watch_of(1)
    watch.note("host", told("host", [5, 5, 4]), 0.0)
    watch.note_final("peer-1", told("peer-1", [6, 5, 5]), 1.0)
    assert report_of(watch, 1, 1.0).versions_certified == 2


def test_losses_are_the_host_s_first_and_last() -> None:
    watch = ended(1, [1, 1, 1])
    found = tuple(
        Evaluation(versions=index, tokens_certified=0, wall_seconds=0.0, loss=loss)
        for index, loss in enumerate((5.5, 3.0, 2.0))
    )
    watch.note_final("host", told("host", [1, 1, 1], evaluations=found), 2.0)
    report = report_of(watch, 1, 1.0)
    assert (report.eval_loss_first, report.eval_loss_last) == (5.5, 2.0)


def test_the_report_of_a_swarm_that_nobody_saw_is_all_zero() -> None:
    report = report_of(watch_of(2), 2, 3.0)
    assert (report.peers, report.versions_certified, report.tokens, report.utilisation) == (0, 0, 0, 0.0)
    assert math.isnan(report.eval_loss_last)
    assert not report.agreement


@given(st.lists(st.integers(0, 500), min_size=1))
def test_delays_are_ranked(steps: list[int]) -> None:
    found = delays(steps)
    assert found["median"] == statistics.median_low(steps)
    assert found["p95"] in steps
    assert sum(step <= found["p95"] for step in steps) >= 0.95 * len(steps)
    assert sum(step < found["p95"] for step in steps) < 0.95 * len(steps)


def test_no_delays_have_no_median() -> None:
    assert delays([]) == {}


def test_utilisation_is_over_the_time_between_the_first_and_the_last_step_of_anyone() -> None:
    watch = watch_of(2)
    for now, name, steps in ((10.0, "peer-1", 1), (20.0, "peer-1", 9), (21.0, "peer-2", 1), (50.0, "peer-2", 9)):
        figures = {"steps": steps, "learner_cpu_seconds": 20.0, "training_seconds": 9.0 if name == "peer-1" else 28.0}
        watch.note(name, told(name, [1, 1, 1], **figures), now)
    watch.note("peer-1", told("peer-1", [1, 1, 1], steps=9, learner_cpu_seconds=20.0, training_seconds=9.0), 90.0)
    assert utilisation(watch, 2) == 40.0 / (2 * 40.0)


class TestAgreement:
    def test_equal_tensors_agree(self) -> None:
        assert disagreement(ended(3, [8, 8, 8])) is None

    def test_a_dead_peer_is_not_asked(self) -> None:
        watch = watch_of(2)
        watch.note("peer-2", told("peer-2", [7, 7, 7]), 0.0)
        watch.note_death("peer-2", "ended by signal 9")
        for name in ("host", "peer-1"):
            watch.note_final(name, told(name, [8, 8, 8]), 1.0)
        report = report_of(watch, 1, 1.0)
        assert report.agreement
        assert report.peers == 1
        assert report.events["died peer-2"] == 1
        assert set(report.state_digests) == {"id of host", "id of peer-1"}

    def test_a_living_peer_that_says_nothing_does_not_agree(self) -> None:
        watch = watch_of(2)
        watch.note_final("host", told("host", [8, 8, 8]), 1.0)
        watch.note_final("peer-2", told("peer-2", [8, 8, 8]), 1.0)
        assert disagreement(watch) == "peer-1 did not say at the end what they hold"

    def test_without_peers_there_is_nobody_to_agree(self) -> None:
        watch = ended(1, [8, 8, 8])
        watch.note_death("peer-1", "ended by signal 9")
        assert disagreement(watch) == "no peer is left"

    def test_another_version_is_no_agreement(self) -> None:
        watch = ended(2, [8, 8, 8])
        watch.note_final("peer-2", told("peer-2", [8, 8, 7]), 1.0)
        assert disagreement(watch) == "the peers ended with different versions"

    def test_a_peer_in_a_round_may_still_move(self) -> None:
        still, idle = told("peer-1", [8, 8, 8]), fragments([8, 8, 8])
        assert at_rest([still, still])
        assert not at_rest([still, told("peer-2", [8, 8, 7])])
        moving = (*idle[:2], idle[2].model_copy(update={"phase": "bound by a vote"}))
        assert not at_rest([still, told("peer-2", [8, 8, 8], fragments=moving)])

    def test_knowing_a_version_without_holding_it_is_no_agreement(self) -> None:
        watch = ended(2, [8, 8, 8])
        behind = told("peer-2", [8, 8, 8], fragments=fragments([8, 8, 8], held=[8, 8, 7]))
        watch.note_final("peer-2", behind, 1.0)
        assert disagreement(watch) == "the peers ended with different versions"

    def test_other_tensors_are_no_agreement_even_if_all_hold_them(self) -> None:
        wrong = (digest(0, 8), digest(1, 8), "something else")
        assert disagreement(ended(2, [8, 8, 8], digests_from_tensors=wrong)) == (
            "a peer's tensors are not what was certified"
        )

    @pytest.mark.parametrize("minor", [False, True])
    def test_a_fork_is_remembered_although_later_versions_are_equal_unless_a_smaller_side_made_it(
        self, minor: bool
    ) -> None:
        watch = ended(1, [8, 8, 8])
        ours = CertificateView(fragment=2, version=2, digest="aa", parent="11", minor=False, tokens=1)
        theirs = ours.model_copy(update={"digest": "bb", "minor": minor})
        watch.note("host", told("host", [8, 8, 8], certificates=(theirs,)), 1.0)
        watch.note("peer-1", told("peer-1", [8, 8, 8], certificates=(ours,)), 1.0)
        assert disagreement(watch) == (None if minor else "version 2 of fragment 2 was certified twice")


class TestProgress:
    def test_training_is_over_when_every_living_learner_says_so(self) -> None:
        watch = watch_of(2)
        assert not watch.training_is_over
        watch.note("host", told("host", [8, 8, 8], state="hosting"), 0.0)
        watch.note("peer-1", told("peer-1", [8, 8, 8]), 0.0)
        assert not watch.training_is_over
        watch.note("peer-2", told("peer-2", [8, 8, 8], state="training"), 0.0)
        assert not watch.training_is_over
        watch.note_death("peer-2", "ended by signal 9")
        assert watch.training_is_over
        assert watch.settled
        watch.note_death("peer-1", "ended by signal 9")
        assert not watch.training_is_over

    def test_a_swarm_is_settled_when_all_hold_the_same(self) -> None:
        watch = watch_of(1)
        watch.note("peer-1", told("peer-1", [8, 8, 8]), 0.0)
        assert not watch.settled
        watch.note("host", told("host", [8, 8, 7]), 0.0)
        assert not watch.settled
        watch.note("host", told("host", [8, 8, 8]), 0.0)
        assert watch.settled
        watch.note("peer-1", told("peer-1", [8, 8, 8], rounds_in_flight=1), 0.0)
        assert not watch.settled


def test_the_report_file_has_the_keys_that_scripts_read(tmp_path: Path) -> None:
    watch = ended(1, [8, 7, 7], bytes_sent=10)
    write_report(report_of(watch, 2, 60.0), tmp_path / "r.json")
    report = json.loads((tmp_path / "r.json").read_text())
    assert set(report) == {
        *("run_id", "peers", "versions_certified", "rounds_void", "eval_loss_first", "eval_loss_last", "tokens"),
        *("wall_seconds", "inner_steps", "utilisation", "bytes_sent_per_peer", "bytes_received_per_peer"),
        *("agreement", "state_digests", "bans", "events", "group_size_mean", "tokens_certified"),
        *("minor_certificates", "steps_per_version", "adoption_delay_steps", "hostile", "versions_per_minute"),
    }
    assert report["eval_loss_last"] is None  # no evaluation: not a number
    assert report["state_digests"]["id of peer-1"] == {
        "0": [8, "state-0-8"],
        "1": [7, "state-1-7"],
        "2": [7, "state-2-7"],
    }
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_where_no_report_can_be_written_is_told_before_the_run(tmp_path: Path) -> None:
    check_writable(tmp_path / "r.json")
    assert list(tmp_path.iterdir()) == []
    for path in (tmp_path, tmp_path / "missing" / "r.json", Path("/proc/r.json"), tmp_path / ("r" * 300)):
        with pytest.raises(UsageError, match="no report can be written"):
            check_writable(path)
    with pytest.raises(LocalError, match="cannot be written"):
        write_report(report_of(watch_of(1), 1, 1.0), tmp_path / "missing" / "r.json")


def test_nothing_of_a_hostile_peer_counts_as_agreement_or_as_a_ban() -> None:
    watch = ended(3, [4, 4, 4])
    watch.hostile = frozenset({"peer-3"})
    slander = BanView(peer_id=watch.final["peer-1"].peer_id, reason="slander")
    watch.note_final("peer-3", told("peer-3", [9, 9, 9], bans=(slander,)), 2.0)
    report = report_of(watch, 2, 60.0)
    assert report.agreement
    assert (report.peers, report.versions_certified, report.bans) == (2, 12, ())
    assert report.hostile == (watch.latest["peer-3"].peer_id,)
    assert watch.latest["peer-3"].peer_id not in report.state_digests
    caught = BanView(peer_id=watch.latest["peer-3"].peer_id, reason="it lied")
    for name in watch.honest:
        watch.note_final(name, told(name, [4, 4, 4], bans=(caught,)), 3.0)
    (ban,) = report_of(watch, 2, 60.0).bans
    assert (ban.peer, ban.reason, ban.by) == (caught.peer_id, "it lied", 3)


def test_a_hostile_peer_that_ended_before_anybody_asked_it_is_named() -> None:
    watch = ended(3, [4, 4, 4])
    watch.hostile, watch.keys = frozenset({"peer-3", "peer-4"}), {"peer-4": "its key"}
    assert report_of(watch, 2, 60.0).hostile == (watch.latest["peer-3"].peer_id, "its key")
