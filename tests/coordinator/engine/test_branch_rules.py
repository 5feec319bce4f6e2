"""The choice of a branch from what probes find; the choice itself changes nothing."""

from __future__ import annotations

from coordinator.chain.chain import Chain
from coordinator.engine.branch_rules import LineageChange, changes, followed
from coordinator.engine.fork_probe import ForkProbe
from coordinator.engine.fragment import FragmentMachine
from tests.coordinator.rigs import PEERS, chain_of, core, grown

SEVEN, FEW, NOW = PEERS[:7], PEERS[:3], 50.0


def machine_of(*rosters: tuple[str, ...]) -> FragmentMachine:
    """Make the machine of a peer that signed nothing: one version by all, then one by each of these rosters."""
    own = core(7)
    return FragmentMachine(own, branch(chain_of(own), SEVEN, *rosters), held=0, now=0.0)


def branch(chain: Chain, *rosters: tuple[str, ...], salt: bytes = b"") -> Chain:
    for roster in rosters:
        chain = grown(chain, 1, roster, salt=salt)
    return chain


def test_the_branch_that_most_signed_wins_and_nothing_is_changed_by_asking() -> None:
    machine = machine_of(FEW)
    theirs = branch(machine.chain.truncated(1), SEVEN[2:], salt=b"theirs")
    before = machine.chain.digest
    for _ in range(2):
        (change,) = changes([machine], {0: (1, theirs)}, NOW)
        assert change == LineageChange(0, 1, change.chain)
        assert change.chain.digest == theirs.digest
    assert machine.chain.digest == before


def test_nothing_follows_from_no_fork_nor_from_one_that_we_have_left_meanwhile() -> None:
    machine = machine_of(FEW)
    theirs = branch(machine.chain.truncated(1), SEVEN[2:], salt=b"theirs")
    assert changes([machine], {0: None}, NOW) == ()
    machine.switch(theirs.truncated(theirs.version), 1, NOW)
    assert changes([machine], {0: (1, theirs)}, NOW) == ()


def test_a_branch_whose_state_nobody_serves_does_not_win() -> None:
    machine = machine_of(FEW)
    theirs = branch(machine.chain.truncated(1), SEVEN[2:], salt=b"theirs")
    machine.state_sync.fall_behind(machine.chain, 0.0)
    assert machine.state_sync.failed(theirs, 1.0, NOW)
    assert changes([machine], {0: (1, theirs)}, NOW) == ()


def test_full_versions_are_followed_to_their_end() -> None:
    machine = machine_of()
    news = branch(machine.chain, SEVEN, SEVEN)
    assert followed([machine], machine, news, NOW).digest == news.digest


def test_a_fork_is_heard_on_only_while_it_is_one() -> None:
    machine = machine_of(FEW)
    theirs = branch(machine.chain.truncated(1), SEVEN[2:], salt=b"theirs")
    probe = ForkProbe(begun={0: (1, theirs)})
    assert probe.fork_of(machine.chain) == (1, theirs)
    assert probe.fork_of(theirs) is None
    assert not probe.holds_chains


def test_a_shown_branch_is_forgotten_but_not_that_its_peer_was_asked() -> None:
    probe = ForkProbe(asked={0: NOW}, awaited={0}, answers={0: None}, shown={0: None})
    assert probe.holds_chains
    probe.forget()
    assert not probe.holds_chains
    assert (probe.asked_at(0), probe.awaited) == (NOW, {0})
    assert probe.asked_at(1) < 0.0
