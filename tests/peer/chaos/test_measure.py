"""The report of a chaos run, from its peers' snapshots."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from coordinator.views.network_view import CertificateView
from coordinator.views.report import ChaosReport
from coordinator.views.snapshot import FragmentStatus, PeerSnapshot
from dht.errors import UsageError
from peer.chaos.measure import FaultFreeReport, UndisturbedPace, against, chaos_report, load_baseline
from peer.chaos.record import ChaosWatch, UnplannedExit
from peer.chaos.score import Window
from peer.swarm.report import disagreement, report_of, write_report
from tests.peer.chaos.builders import happened

PACE = UndisturbedPace(tokens_per_step=100, step_seconds=0.5)
WINDOW = Window(10.0, 30.0)
FRAGMENTS = 2


def certificate(fragment: int, version: int, minor: bool = False) -> CertificateView:
    digest = f"{fragment:02x}{version:04x}{minor:02x}"
    parent = f"{fragment:02x}{version - 1:04x}00"
    return CertificateView(fragment=fragment, version=version, digest=digest, parent=parent, minor=minor, tokens=1000)


def told(name: str, version: int, **more: object) -> PeerSnapshot:
    """Return the snapshot of a peer at this version of both fragments, with the newest two certificates of each."""
    shown = [certificate(index, one) for index in range(FRAGMENTS) for one in (version - 1, version) if one > 0]
    parts = [
        FragmentStatus(version=version, held_version=version, head=shown[-1].digest, state=f"s{version}", phase="idle")
        for shown in ([one for one in shown if one.fragment == index] for index in range(FRAGMENTS))
    ]
    plain = {
        "peer_id": f"id of {name}",
        "run_id": "abc",
        "name": name,
        "role": "host" if name == "host" else "learner",
        "state": "training",
        "pid": 1,
        "wall_seconds": 10.0,
        "steps": version * 4,
        "tokens": version * 400,
        "fragments": tuple(parts),
        "certificates": tuple(shown),
        "digests_from_tensors": tuple(f"s{version}" for _ in range(FRAGMENTS)),
    }
    return PeerSnapshot.model_validate({**plain, **more})


def story() -> ChaosWatch:
    """Return a watch with a version of each fragment every two seconds.

    peer-2 is killed at 14 seconds, is back at 18, and contributes from 22 on.
    """
    watch = ChaosWatch("host", ("peer-1", "peer-2"), 1000)
    for second in range(2, 32, 2):
        for name in watch.names:
            if name != "peer-2" or not 14 <= second <= 18:
                late = name == "peer-2" and second > 14
                more = {"pid": 2, "steps": second} if late else {}
                delays = (3,) if name != "host" and (not late or second >= 22) else ()
                watch.note(name, told(name, second // 2, adoption_delays_steps=delays, **more), float(second))
        if second == 14:
            watch.note_death("peer-2", "ended by signal 9")
            watch.outcomes.append(happened("kill", 14.0, 2))
        if second == 18:
            watch.outcomes.append(happened("restart", 18.0, 2))
            watch.note_restart("peer-2")
    for name in watch.names:
        watch.note_final(name, told(name, 16, state="finished"), 33.0)
    return watch


def measured(watch: ChaosWatch) -> ChaosReport:
    return chaos_report(report_of(watch, 2, 40.0), watch, WINDOW, PACE)


def test_the_report_of_a_story() -> None:
    report = measured(story())
    assert report.agreement
    assert report.peers == report.peers_planned == 2
    # two fragments at 10, 12, … 30 seconds; each token is in both of them
    assert report.measured_tokens_certified == 11 * 1000
    assert report.tokens_certified == 16 * 1000
    assert report.versions_per_minute == pytest.approx(11 * FRAGMENTS * 3)
    assert report.measured_seconds == 20
    assert report.measured_peer_seconds == 2 * 20 - 4
    assert report.goodput_ideal == pytest.approx(11_000 / (36 / 0.5 * 100))
    assert report.longest_gap_seconds == 2
    assert report.recovery_seconds == {"median": 4.0, "max": 4.0}
    assert report.not_recovered == 0
    assert report.faults == {"kill": 1}
    assert [(one.seconds, one.fault, one.peer, one.fired) for one in report.timeline] == [
        (4.0, "kill", "peer-2", True),
        (8.0, "restart", "peer-2", True),
    ]
    assert 0.5 < report.uptime < 1
    assert not [name for name in report.events if name.startswith("died")]
    # two processes of peer-2 count for one peer's tokens
    assert report.tokens == report.inner_steps * PACE.tokens_per_step == (16 + 6 + 16) * 400


def test_of_a_peer_that_has_attacked_nothing_is_believed_or_expected() -> None:
    watch = story()
    watch.hostile = frozenset({"peer-2"})
    lie = certificate(0, 16).model_copy(update={"digest": "ffff"})
    watch.note_final("peer-2", told("peer-2", 17, certificates=(lie,), digests_from_tensors=("x", "y")), 34.0)
    watch.outcomes += [happened("attacker", 26.0, 2), happened("honest", 28.0, 2)]
    report = measured(watch)
    assert report.agreement
    assert (report.peers, report.hostile) == (1, ("id of peer-2",))
    assert "id of peer-2" not in report.state_digests
    assert report.recovery_seconds == {}
    assert report.measured_peer_seconds == 2 * 20 - 4, "it is alive, and so is what its attack costs"
    assert report.tokens_certified == 16 * 1000
    assert report.faults == {"kill": 1, "attacker": 1}
    watch.note_restart("peer-2")  # and its next process gives no snapshot
    assert measured(watch).hostile == ("id of peer-2",)


def test_a_death_that_nobody_planned_is_told() -> None:
    watch = story()
    watch.unplanned_exits.append(UnplannedExit("peer-1", "no space left", 20.0))
    report = measured(watch)
    assert report.events["died peer-1"] == 1
    (line,) = [one for one in report.timeline if one.fault == "died"]
    assert (line.seconds, line.peer, line.detail) == (10.0, "peer-1", "no space left")


def test_a_fault_that_did_not_fire_is_in_the_timeline_and_not_counted() -> None:
    watch = story()
    watch.outcomes.append(happened("partition", 20.0, None, "on loopback the network cannot fail"))
    report = measured(watch)
    assert report.faults == {"kill": 1}
    (line,) = [one for one in report.timeline if not one.fired]
    assert (line.fault, line.detail) == ("partition", "on loopback the network cannot fail")


def test_a_minor_branch_is_no_conflict_and_counts_for_nothing() -> None:
    watch = story()
    before = measured(watch)
    other = told("peer-1", 8, certificates=(certificate(0, 8, minor=True), certificate(1, 8, minor=True)))
    watch.note("peer-1", other, 20.5)
    watch.note_final("peer-1", told("peer-1", 16, state="finished"), 34.0)
    report = measured(watch)
    assert disagreement(watch) is None
    assert report.measured_tokens_certified == before.measured_tokens_certified
    assert report.minor_certificates == 0


def test_two_full_certificates_for_one_parent_are_disagreement() -> None:
    watch = story()
    rival = certificate(0, 8).model_copy(update={"digest": "ff"})
    watch.note("peer-1", told("peer-1", 16, certificates=(rival,)), 40.0)
    assert "certified twice" in str(disagreement(watch))


def test_goodput_is_against_a_run_without_faults(tmp_path: Path) -> None:
    report = measured(story())
    assert report.goodput is None
    calm = report.model_copy(update={"faults": {}, "measured_seconds": 40.0, "measured_tokens_certified": 44_000})
    write_report(calm, tmp_path / "calm.json")
    usual = load_baseline(tmp_path / "calm.json", 2, 0.5)
    assert usual == FaultFreeReport.model_validate(calm)
    write_report(against(report, usual), tmp_path / "report.json")
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["goodput"] == pytest.approx(0.5)
    assert written["bans"] == []


def test_a_baseline_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    report = measured(story())
    write_report(report, tmp_path / "faults.json")
    write_report(report.model_copy(update={"faults": {}}), tmp_path / "calm.json")
    (tmp_path / "other.json").write_text("{}")
    for name, peers, sentence in (
        ("faults.json", 2, "is no report of `muster chaos` without faults"),
        ("calm.json", 3, "is of 2 peers at 0.5 s a step, not of 3"),
        ("other.json", 2, "is no report of `muster chaos`"),
        ("none.json", 2, "there is no report at"),
    ):
        with pytest.raises(UsageError, match=sentence):
            load_baseline(tmp_path / name, peers, 0.5)


def test_without_a_pace_nobody_knows_the_ideal() -> None:
    watch = story()
    report = chaos_report(report_of(watch, 2, 40.0), watch, WINDOW, UndisturbedPace(100, 0.0))
    assert report.goodput_ideal is None
    assert math.isfinite(report.uptime)
