"""The voters' speeds that count for a fragment, and when a minority may go on alone (design §6.2 step 1, §6.3)."""

from __future__ import annotations

import pytest

from coordinator.core import context as core_module
from coordinator.core import tickets
from coordinator.group.pacing import Tempo, voter_paces
from tests.coordinator.builders import NOW, PACE, Club, presence

CLUB = Club.of(7, founders=4)
EVERYONE = (0, 1, 2, 3)


def core_that_sees(rates, steps=0, **changes):
    """Make the core of peer 0, which trains at 2 steps per second and sees the others at these rates."""
    core = CLUB.core(0, **changes)
    core.steps, core.steps_per_second, core.steps_seen = steps, 2.0, NOW
    for number, rate in rates.items():
        core.presence.see(CLUB.ids[number], presence(number, steps=steps, steps_per_second=rate), NOW)
    return core


def rates_of(core, chain, now=NOW):
    return sorted(pace.steps_per_second for pace in voter_paces(core, chain, NOW, now))


def test_at_version_zero_everyone_who_trains_counts():
    core = core_that_sees({1: 1.0, 4: 4.0}, steps=7)
    found = voter_paces(core, CLUB.chain(), NOW, NOW)
    assert sorted(pace.steps_per_second for pace in found) == [1.0, 2.0, 4.0]  # the one with rate 4 is no founder
    assert {pace.steps for pace in found} == {7}  # all steps count, not those since some version


def test_later_the_active_set_counts_from_the_last_version():
    core = core_that_sees({1: 1.0, 4: 4.0}, steps=7)
    found = voter_paces(core, CLUB.grow(CLUB.chain(), EVERYONE), NOW + 5.0, NOW + 6.0)
    assert sorted(pace.steps_per_second for pace in found) == [1.0, 2.0]
    assert {(pace.steps, pace.seen) for pace in found} == {(0, NOW + 5.0)}


def test_dead_voters_keep_counting_until_they_leave_the_active_set():
    core = core_that_sees({1: 1.0, 2: 3.0})
    core.presence.lose(CLUB.ids[2])
    chain = CLUB.grow(CLUB.chain(), EVERYONE)
    assert rates_of(core, chain, now=NOW + 1e6) == [1.0, 2.0, 3.0]
    CLUB.grow(chain, *[(0, 1, 3)] * 4)
    assert rates_of(core, chain) == [1.0, 2.0]


def test_a_peer_without_a_vote_counts_itself_only_among_few(monkeypatch):
    seen, nobody = core_that_sees({1: 1.0, 2: 3.0}), core_that_sees({})
    chain = CLUB.grow(CLUB.chain(), (1, 2, 3))
    for _ in range(8):  # until the founders, peer 0 among them, are out of the active set
        chain = CLUB.grow(chain, (1, 2, 3))
    assert CLUB.ids[0] not in chain.active_set()
    assert rates_of(seen, chain) == [1.0, 2.0, 3.0]
    monkeypatch.setattr(core_module, "PEERS_PER_GROUP_MAX", 1)
    assert rates_of(seen, chain) == [1.0, 2.0, 3.0]  # peers that only publish presence make no crowd
    monkeypatch.setattr(tickets, "PEERS_PER_GROUP_MAX", 1)
    assert rates_of(seen, chain) == [1.0, 3.0]
    assert rates_of(nobody, chain) == [2.0]


def test_hosts_do_not_set_the_pace():
    core = core_that_sees({1: 1.0}, contributes=False)
    core.presence.see(CLUB.ids[2], presence(2, state="hosting", steps_per_second=0.0), NOW)
    assert rates_of(core, CLUB.grow(CLUB.chain(), EVERYONE)) == [1.0]


def test_the_three_times_of_a_fragment():
    tempo = Tempo(core_that_sees({1: 1.0, 2: 4.0}), certified_at=NOW, counted_from=NOW)
    pacing = tempo.pacing(CLUB.grow(CLUB.chain(), EVERYONE), NOW)
    assert pacing.due_at == NOW + PACE.steps_per_version / 2.0  # the median peer makes two steps per second
    assert pacing.interval_seconds == PACE.steps_per_version / 2.0
    assert pacing.spacing_seconds == pytest.approx(0.8 * PACE.steps_per_version / (2.0 * PACE.fragments))


def test_the_first_version_of_a_fragment_comes_with_its_share_of_the_first_cycle():
    core = core_that_sees({1: 2.0, 2: 2.0})
    due = [Tempo(core, NOW, NOW).pacing(CLUB.chain(fragment), NOW).due_at for fragment in (0, 1)]
    assert due == [NOW + 2.0, NOW + 4.0]  # 4 and 8 of 8 steps


@pytest.mark.parametrize("crawl", [0.0, 1e-6])
def test_a_first_version_waits_three_of_our_own_intervals_at_most(crawl):
    """All peers that claim to train count there, so any number of keys could claim to hardly move."""
    tempo = Tempo(core_that_sees({1: 2.0, 2: 2.0, 3: crawl, 4: crawl, 5: crawl, 6: crawl}), NOW, NOW)
    pacing = tempo.pacing(CLUB.chain(), NOW)
    assert pacing.due_at == NOW + 3 * PACE.steps_per_version / 2.0
    assert pacing.interval_seconds == PACE.steps_per_version / 2.0
    assert pacing.spacing_seconds == pytest.approx(0.8 * PACE.steps_per_version / (2.0 * PACE.fragments))


def test_pacing_follows_every_change_of_its_basis():
    core, chain = core_that_sees({1: 2.0, 2: 2.0}), CLUB.grow(CLUB.chain(), EVERYONE)
    tempo = Tempo(core, certified_at=NOW, counted_from=NOW)
    seen = [tempo.pacing(chain, NOW)]
    core.presence.see(CLUB.ids[1], presence(1, beat=1, steps_per_second=8.0), NOW)
    core.presence.see(CLUB.ids[2], presence(2, beat=1, steps_per_second=8.0), NOW)
    seen.append(tempo.pacing(chain, NOW))
    tempo.counted_from += 1.0
    seen.append(tempo.pacing(chain, NOW))
    assert [pacing.due_at - NOW for pacing in seen] == [4.0, 1.0, 2.0]
    assert tempo.pacing(chain, NOW + 99.0) is seen[2]  # time alone changes nothing


def test_a_minority_waits_three_intervals():
    tempo = Tempo(core_that_sees({1: 2.0, 2: 2.0}), certified_at=NOW, counted_from=NOW)
    chain = CLUB.grow(CLUB.chain(), EVERYONE)
    interval = tempo.interval_seconds(chain, NOW)
    assert interval == 4.0
    assert not tempo.minor_allowed(chain, NOW + 11.9)
    assert tempo.minor_allowed(chain, NOW + 12.0)
    assert tempo.minor_allowed(chain, NOW + 11.9, tolerance_intervals=0.1)


def test_a_first_version_never_waits_for_a_minority():
    tempo = Tempo(core_that_sees({1: 2.0}), certified_at=NOW, counted_from=NOW)
    assert not tempo.minor_allowed(CLUB.chain(), NOW + 1e9)
