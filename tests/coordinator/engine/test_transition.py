"""The changes of a new version: computed before any is made, then applied."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core.actions import Adopt, Included, NotIncluded, VersionCertified
from coordinator.engine.fragment import FragmentMachine
from coordinator.engine.transition import Transition, transition
from coordinator.wire.messages import CertificateNote
from dht.identity import PeerId
from tests.coordinator.rigs import PEERS, certificate, chain_of, core, grown, key_of

FIVE, NOW = PEERS[:5], 7.0


def machine_of(me: int) -> FragmentMachine:
    """Make a machine at version 2, made by the first five."""
    own = core(me)
    return FragmentMachine(own, grown(chain_of(own), 2, FIVE), held=2, now=0.0)


def next_of(machine: FragmentMachine) -> Transition:
    return transition(machine.rounds, certificate(machine.chain, FIVE), NOW)


def test_nothing_changes_while_it_is_found() -> None:
    machine = machine_of(5)
    first = next_of(machine)
    assert next_of(machine) == first
    assert (machine.chain.version, machine.held, machine.tempo.counted_from) == (2, 2, 0.0)


def test_a_version_of_others_has_to_be_fetched() -> None:
    machine = machine_of(5)
    found = next_of(machine)
    assert (found.attempt, found.adopt, found.unseen, found.held) == (None, None, False, False)
    actions = machine.advance(found.certificate, NOW)
    assert actions[0] == VersionCertified(found.certificate)
    assert (machine.chain.version, machine.held) == (3, 2)
    assert (machine.tempo.counted_from, machine.tempo.certified_at) == (NOW, NOW)
    assert not any(isinstance(action, Adopt) for action in actions)


def test_work_of_an_earlier_life_in_a_version_is_not_brought_again() -> None:
    machine = machine_of(0)
    assert next_of(machine).unseen
    machine.advance(next_of(machine).certificate, NOW)
    assert machine.state_sync.included_unseen


@pytest.mark.parametrize("included", [True, False])
def test_a_peer_that_holds_the_state_adopts_it_and_tells_its_customers(included: bool) -> None:
    machine = machine_of(5)
    key, found = key_of(machine.chain), next_of(machine)
    adopt = Adopt(found.certificate, applied=key, ours=Included(key, (True,)) if included else NotIncluded())
    actions = machine.apply(replace(found, adopt=adopt, downstream=(PeerId("ward"),)), NOW)
    assert [one for one in actions if isinstance(one, Adopt)] == [adopt]
    assert [
        one.to for one in actions if getattr(one, "message", None) == CertificateNote(certificate=found.certificate)
    ]
    assert (machine.held, machine.ready, machine.state_sync.unadopted) == (3, True, None)


def test_whose_snapshot_is_in_it_keeps_that_until_the_state_comes() -> None:
    machine = machine_of(5)
    found = next_of(machine)
    adopt = Adopt(found.certificate, applied=None, ours=Included(key_of(machine.chain), (True,)))
    machine.apply(replace(found, adopt=adopt), NOW)
    assert (machine.held, machine.state_sync.unadopted) == (2, adopt)
