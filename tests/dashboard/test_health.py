"""The sentences about a run's problems."""

from __future__ import annotations

import pytest

from coordinator.views.network_view import BanView, FragmentView, NetworkView, PeerView, RoundView, RunFacts
from dashboard.frames import health
from dashboard.frames.run import ALERT_SECONDS

HOST = PeerView(peer_id="h", role="host", state="hosting")
LEARNERS = tuple(PeerView(peer_id=one, role="learner", state="training") for one in "ab")
WELL = NetworkView(
    run=RunFacts(versions_target=9),
    peers=(HOST, *LEARNERS),
    fragments=(FragmentView(version=3, certified_unix_seconds=100.0),),
    taken_unix_seconds=110.0,
)


def rounds(certified: int, void: int) -> tuple[RoundView, ...]:
    found = [RoundView(fragment=0, version=1, outcome="certified")] * certified
    return (*found, *[RoundView(fragment=0, version=1, outcome="void", reason="no roster in time")] * void)


def test_where_all_is_well_nothing_is_said() -> None:
    assert health.problems(WELL) == []
    assert health.problems(WELL.model_copy(update={"rounds": rounds(5, 4)})) == []


@pytest.mark.parametrize(
    ("update", "problem"),
    [
        ({"taken_unix_seconds": 100.0 + ALERT_SECONDS}, "No new version for 5:00."),
        ({"peers": LEARNERS}, "The host is not there. "),
        ({"rounds": rounds(4, 4)}, "4 of the last 8 rounds came to nothing, most often because: no roster in time."),
        (
            {"peers": (HOST, LEARNERS[0].model_copy(update={"versions_behind": 5}))},
            "Far behind the newest version: …a.",
        ),
        ({"bans": (BanView(peer_id="a", reason="signed two commitments"),)}, "…a was banned: signed two commitments."),
        ({"note": "getting 40 certificates"}, "Getting 40 certificates."),
    ],
)
def test_each_problem_is_a_sentence(update: dict[str, object], problem: str) -> None:
    found = health.problems(WELL.model_copy(update=update))
    assert len(found) == 1
    assert found[0].startswith(problem)


def test_a_run_that_is_over_has_no_problems() -> None:
    over = WELL.model_copy(update={"run": RunFacts(versions_target=3), "peers": (), "taken_unix_seconds": 1e6})
    assert health.problems(over) == []
