"""Peers that seem live (design §6.1): expiry, limits, and reports of the transport."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.run.manifest import FRAGMENTS_MAX
from coordinator.wire import presence as presence_module
from coordinator.wire.presence import (
    ADDRESSES_MAX,
    FORGET_LIFETIMES,
    HEAD_BYTES,
    PEERS_KNOWN_MAX,
    PRESENCE_BYTES_MAX,
    Presence,
    PresenceTable,
)
from tests.coordinator.builders import Club, boot, digest, presence

IDS = Club.of(8).ids
LIFETIME = 9.0


def table():
    return PresenceTable(LIFETIME)


def test_presence_ends_with_its_lifetime():
    known = table()
    known.see(IDS[0], presence(), now=0.0)
    assert known.is_live(IDS[0], LIFETIME)
    assert not known.is_live(IDS[0], LIFETIME + 0.001)
    assert not known.is_live(IDS[1], 0.0)


def test_the_same_record_read_again_says_nothing_about_now():
    known = table()
    known.see(IDS[0], presence(beat=1), now=0.0)
    known.see(IDS[0], presence(beat=1), now=8.0)
    assert not known.is_live(IDS[0], 10.0)
    known.see(IDS[0], presence(beat=2), now=8.0)
    assert known.is_live(IDS[0], 10.0)


def test_a_peer_that_the_transport_lost_is_gone_until_heard_of():
    known = table()
    for number in (0, 1):
        known.see(IDS[number], presence(), now=0.0)
        known.lose(IDS[number])
    assert known.live(1.0) == frozenset()
    known.heard(IDS[0])
    known.see(IDS[1], presence(beat=1), now=1.0)
    assert known.live(1.0) == {IDS[0], IDS[1]}
    assert known.population(1.0) == 2


def test_a_peer_silent_in_a_group_is_live_but_unheard_until_it_speaks():
    known = table()
    for number in (0, 1):
        known.see(IDS[number], presence(), now=0.0)
    known.miss({IDS[0], IDS[1]})
    known.heard(IDS[0])
    known.see(IDS[1], presence(beat=1), now=1.0)  # its claim to be live was never in doubt
    assert known.unheard == {IDS[1]}
    assert known.live(1.0) == {IDS[0], IDS[1]}
    known.see(IDS[1], presence(boot=boot(1, life=2)), now=2.0)
    assert known.unheard == set()


def test_a_peer_that_has_spoken_is_known_as_long_as_it_is_seen():
    known = table()
    known.see(IDS[0], presence(), now=0.0)
    for peer in IDS[:2]:
        known.heard(peer)
    assert known.spoken == {IDS[0]}
    known.forget(FORGET_LIFETIMES * LIFETIME + 1.0)
    assert known.spoken == set()


def test_strangers_are_neither_lost_nor_heard_nor_missed():
    known = table()
    known.lose(IDS[0])
    known.heard(IDS[0])
    known.miss({IDS[0]})
    assert (known.gone, known.unheard, known.sightings, known.revision) == (set(), set(), {}, 0)


def test_trainers_are_those_whose_learners_run():
    known = table()
    for number, state in enumerate(["training", "hosting", "paused", "catching up", "draining", "starting"]):
        known.see(IDS[number], presence(state=state), now=0.0)
    assert known.trainers(1.0) == {IDS[0]}
    assert len(known.live(1.0)) == 6


def test_a_peer_can_be_called_unless_it_says_otherwise():
    known = table()
    known.see(IDS[1], presence(dialable=False), 0.0)
    known.see(IDS[2], presence(), 0.0)
    assert [known.is_dialable(peer) for peer in IDS[:3]] == [True, False, True]


def test_heads_are_compared_as_far_as_presence_carries_them():
    known, head = table(), digest("head")
    known.see(IDS[0], presence(versions=(1, 2), heads=(b"", head[:HEAD_BYTES])), now=0.0)
    assert known.reports_head(IDS[0], 1, head)
    assert not known.reports_head(IDS[0], 0, head)
    assert not known.reports_head(IDS[0], 2, head)
    assert not known.reports_head(IDS[1], 1, head)


def test_every_change_has_a_new_revision():
    known = table()
    revisions = [known.revision]
    for change in (
        lambda: known.see(IDS[0], presence(), 0.0),
        lambda: known.lose(IDS[0]),
        lambda: known.heard(IDS[0]),
        lambda: known.see(IDS[0], presence(beat=1), 1.0),
    ):
        change()
        revisions.append(known.revision)
    assert revisions == sorted(set(revisions))
    known.heard(IDS[0])
    known.see(IDS[0], presence(beat=1), 2.0)
    assert known.revision == revisions[-1]


def test_a_full_table_makes_room_by_forgetting_the_silent(monkeypatch):
    monkeypatch.setattr(presence_module, "PEERS_KNOWN_MAX", 3)
    known = table()
    for number in range(3):
        known.see(IDS[number], presence(), now=float(number))
    known.lose(IDS[0])
    known.see(IDS[3], presence(), now=10.0)
    assert IDS[3] not in known.sightings  # no other peer has been silent for long enough
    known.see(IDS[3], presence(), now=FORGET_LIFETIMES * LIFETIME + 1.5)
    assert set(known.sightings) == {IDS[2], IDS[3]}
    assert known.gone == set()


def test_many_strangers_do_not_push_out_whoever_is_here():
    known = table()
    record = presence()
    known.see(IDS[0], record, now=0.0)
    for number in range(PEERS_KNOWN_MAX + 100):
        known.see(f"stranger {number}", record, now=1.0)
    assert len(known.sightings) == PEERS_KNOWN_MAX
    known.see(IDS[0], presence(beat=1), now=5.0)
    assert known.is_live(IDS[0], 5.0 + LIFETIME)


steps = st.lists(
    st.tuples(
        st.sampled_from(["see", "lose", "heard", "shun", "readmit", "forget", "wait"]),
        st.sampled_from(IDS),
        st.integers(0, 3),
    ),
    max_size=40,
)


@given(steps)
def test_live_means_seen_within_a_lifetime_and_not_lost_since(script):
    known, now = table(), 0.0
    seen: dict[str, tuple[float, int]] = {}
    lost: set[str] = set()
    shunned: set[str] = set()
    for what, peer, amount in script:
        if what == "see":
            known.see(peer, presence(beat=amount, state="paused" if amount == 3 else "training"), now)
            if seen.get(peer, (0, -1))[1] != amount:
                seen[peer] = (now, amount)
                lost.discard(peer)
        elif what == "lose":
            known.lose(peer)
            lost |= {peer} & seen.keys()
        elif what == "heard":
            known.heard(peer)
            lost.discard(peer)
        elif what == "shun":
            known.shun(peer)
            shunned.add(peer)
        elif what == "readmit":
            known.readmit(peer)
            shunned.discard(peer)
        elif what == "forget":
            known.forget(now, lifetimes=1.0)
            for one in [one for one, (at, _) in seen.items() if now - at > LIFETIME]:
                del seen[one]
                lost.discard(one)
        else:
            now += amount * 4.0
        expected = {one for one, (at, _) in seen.items() if one not in lost | shunned and now - at <= LIFETIME}
        assert known.live(now) == expected
        training = {one for one in expected if seen[one][1] != 3}
        assert known.population(now) == len(training)
        assert known.trainers(now) == training
        assert [one for one in IDS if known.is_training(one, now)] == [one for one in IDS if one in training]
        assert known.gone <= known.sightings.keys()


@pytest.mark.parametrize(
    "changes", [{"steps": -1}, {"steps_per_second": -1.0}, {"loss": -0.1}, {"state": "gone"}, {"boot": b"short"}]
)
def test_a_peer_cannot_say_what_makes_no_sense(changes):
    with pytest.raises(ValueError, match="Presence"):
        presence(**changes)


@given(
    fragments=st.integers(0, FRAGMENTS_MAX),
    addresses=st.integers(0, ADDRESSES_MAX),
    length=st.integers(0, 256),
    version=st.sampled_from([1, 200, 2**40]),
    character=st.sampled_from(["a", "ß", "☃", "🐘"]),
)
def test_a_presence_fits_into_its_record_whatever_it_says(fragments, addresses, length, version, character):
    said = presence(
        versions=(version,) * fragments,
        heads=(bytes(HEAD_BYTES),) * fragments,
        addresses=("/" * length,) * addresses,
        name=character * 32,
        device=character * 64,
    )
    fitting = said.fitting()
    assert len(fitting.to_wire()) <= PRESENCE_BYTES_MAX
    assert Presence.from_wire(fitting.to_wire()) == fitting
    assert fitting.versions == said.versions
    assert len(said.to_wire()) > PRESENCE_BYTES_MAX or fitting == said
    assert fitting.heads == said.heads or (fitting.name, fitting.device) == ("", "")
