"""The figures about the owner's machine."""

from __future__ import annotations

import pytest

from coordinator.views.credit import CreditReport
from coordinator.views.network_view import CreditView
from coordinator.views.owner_limits import OwnerLimit, OwnerLimits
from coordinator.views.snapshot import OwnerDay, PeerSnapshot
from dashboard.frames import own

MINE = PeerSnapshot(
    peer_id="12D3KooWMine",
    run_id="",
    name="ann",
    role="learner",
    state="training",
    pid=1,
    wall_seconds=1.0,
    day=OwnerDay(trained_seconds=7800, sent_bytes=1_250_000_000, received_bytes=3 << 20),
)


def limits(upload_gigabytes: float = 0.0) -> OwnerLimits:
    return OwnerLimits(
        limits=(OwnerLimit(key="upload_gigabytes_per_day", title="", meaning="", value=upload_gigabytes),)
    )


def credit(**tokens: int) -> CreditReport:
    found = sorted(tokens.items(), key=lambda one: -one[1])
    return CreditReport(
        run_id="",
        from_versions=(1,),
        to_versions=(2,),
        missed=0,
        tokens=sum(tokens.values()),
        contributors=tuple(CreditView(peer_id=f"12D3KooW{name}", tokens=count) for name, count in found),
    )


def test_the_page_tells_what_a_volunteer_gives_and_what_it_is_worth() -> None:
    found = own.figures(MINE, limits(5.0), credit(Mine=300, Other=600, Third=100))
    assert found["My share"] == "30.0%"
    assert found["My place"] == "2 of 3"
    assert found["Trained today"] == "2 h 10 min"
    assert found["May train"] == "now"
    assert (found["Sent today"], found["Upload quota"]) == ("1.2 GB", "25% used")
    assert "Download quota" not in found
    assert found["Received today"] == "3.0 MB"
    assert "Heat" not in found


def test_without_a_quota_or_a_certificate_there_is_none_to_speak_of() -> None:
    found = own.figures(MINE, limits(), None)
    assert (found["My share"], found["My place"], found["Sent today"]) == ("none yet", "–", "1.2 GB")
    assert own.figures(MINE, limits(), credit(Other=3))["My share"] == "none yet"


def test_hours_say_when_they_begin() -> None:
    waiting = MINE.model_copy(update={"day": OwnerDay(opens_in_minutes=195)})
    assert own.figures(waiting, limits(), None)["May train"] == "in 3 h 15 min"


def test_a_host_has_no_share() -> None:
    host = MINE.model_copy(update={"role": "host"})
    assert "My share" not in own.figures(host, limits(), None)
    assert "Steps" in own.details(MINE)
    assert "Steps" not in own.details(host)


@pytest.mark.parametrize(("dialable", "count"), [(True, 1), (False, 2)])
def test_advice_has_what_the_peer_says_and_how_to_be_called(dialable: bool, count: int) -> None:
    found = own.advice(MINE.model_copy(update={"advice": "set the clock", "dialable": dialable}))
    assert found[0] == "Set the clock"
    assert len(found) == count
