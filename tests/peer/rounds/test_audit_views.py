"""What peers find out about others' work is shown to whoever looks at the run."""

from __future__ import annotations

from coordinator.core.actions import Tell
from peer.rounds.audit_views import AUDITS_TOLD_MAX, audit_views
from peer.rounds.counters import RunCounters
from peer.rounds.public_status import PublicStatus, encode_status
from tests.peer.observing import Observed, world_of

REDUCER, ABSENT = "12D3KooWReducer", "12D3KooWAbsent"


def audited(passed: bool | None, withheld: list[str], doubtful: bool = False) -> Tell:
    found = {"reducer": REDUCER, "partition": 3, "passed": passed, "doubtful": doubtful, "withheld": withheld}
    return Tell("audited", 1, 6, found)


def test_an_audit_is_told_with_who_kept_it_from_ending() -> None:
    audit, complaint = audit_views(audited(None, [ABSENT]), 12.0)
    assert (audit.kind, audit.about, audit.passed, audit.fragment, audit.version) == ("audit", REDUCER, None, 1, 7)
    assert (complaint.kind, complaint.about) == ("complaint", ABSENT)
    assert complaint.reason == "did not send its part of partition 3 to an audit"
    assert [one.passed for one in audit_views(audited(True, []), 12.0)] == [True]


def test_an_audit_says_what_was_wrong() -> None:
    [false], [doubtful] = (audit_views(audited(False, [], doubted), 12.0) for doubted in (False, True))
    assert (false.passed, doubtful.passed) == (False, False)
    assert "inputs" in false.reason
    assert "coefficients" in doubtful.reason


def test_a_refuted_result_is_complained_of_and_nothing_else_is() -> None:
    (one,) = audit_views(Tell("result_refuted", 0, 4, {"reducer": REDUCER, "partition": 2}), 12.0)
    assert (one.kind, one.about, one.version, one.unix_seconds) == ("complaint", REDUCER, 5, 12.0)
    assert audit_views(Tell("round_void", 0, 4, {"reason": "late"}), 12.0) == []


def test_a_peer_keeps_the_newest() -> None:
    counters = RunCounters(1)
    for second in range(AUDITS_TOLD_MAX + 5):
        counters.tell(audited(True, []), float(second))
    assert [one.unix_seconds for one in counters.audits] == [float(second) for second in range(5, AUDITS_TOLD_MAX + 5)]


def test_an_observer_shows_who_says_so() -> None:
    observed = Observed(world_of(2))
    observed.run(2)
    teller = observed.world.peers[1].me
    observed.observation.known.peers[teller].asked = True
    told = tuple(audit_views(audited(False, [ABSENT]), 12.0))
    observed.observation.hear(teller, encode_status(PublicStatus(role="learner", audits=told)), observed.now)
    assert [(one.kind, one.about, one.by) for one in observed.view().audits] == [
        ("audit", REDUCER, teller),
        ("complaint", ABSENT, teller),
    ]
