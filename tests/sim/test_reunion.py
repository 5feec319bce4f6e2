"""Sides of a network partition that meet again: one of them wins, in every fragment (design §8)."""

from __future__ import annotations

import pytest

from coordinator.chain.lineage import fragments_won
from coordinator.core.actions import Action, Send, Tell
from coordinator.core.answer_budget import AnswerBudget
from coordinator.engine.engine import Engine
from coordinator.simulator.invariants import Watcher
from coordinator.simulator.network import LinkFaults
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from coordinator.wire.messages import AskChainNote, CertificateNote, ChainNote, Message
from dht.statement import Statement
from tests.extra import extra
from tests.sim.worlds import PACE, machine, swarm

FRAGMENTS = 4
SPLIT_PACE = PACE.model_copy(update={"fragments": FRAGMENTS, "steps_per_version": 24})


def parted(seed: int, each: int = 2) -> World:
    """Return a world of two halves that have gone on apart in every fragment."""
    world = swarm(2 * each, SPLIT_PACE, seed=seed)
    part(world, each)
    for index in range(FRAGMENTS):
        assert machine(world.peers[0], index).chain.digest != machine(world.peers[each], index).chain.digest
    return world


def part(world: World, second: int) -> None:
    """Part the last `second` peers from the others, and let both sides go on for a while."""
    world.run(40.0)
    first = len(world.peers) - second
    world.network.sides = {peer.me: int(number >= first) for number, peer in enumerate(world.peers)}
    world.run(120.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 0])
def test_one_side_wins_in_every_fragment(seed: int) -> None:
    world = parted(seed, each=4)
    sides = [world.peers[0], world.peers[4]]
    heads = [[machine(peer, index).chain.digest for index in range(FRAGMENTS)] for peer in sides]
    versions = [[machine(peer, index).chain.version for index in range(FRAGMENTS)] for peer in sides]
    world.settle(300.0)
    kept = [
        [machine(world.peers[0], index).chain.digest_at(versions[side][index]) == heads[side][index] for side in (0, 1)]
        for index in range(FRAGMENTS)
    ]
    assert kept in ([[True, False]] * FRAGMENTS, [[False, True]] * FRAGMENTS)


@pytest.mark.slow
def test_one_side_wins_at_once_where_two_looks_at_every_fragment_pass() -> None:
    """A page of all four fragments has less than 60 kB here; the budget for further answers is nearly nothing."""
    world = parted(seed=0, each=4)
    for peer in world.peers:
        engine_of(peer).core.answering = AnswerBudget(1 << 10, 120 << 10)
    world.network.heal()
    world.run(10.0)
    assert isinstance(world.watcher, Watcher)
    assert world.watcher.told["lineage_changed"] == 4 * FRAGMENTS


def fragment_of(message: Message) -> int | None:
    """Return the fragment that a message names, if it names one."""
    if isinstance(message, Statement):
        return message.context.fragment
    if isinstance(message, CertificateNote):
        return message.certificate.fragment
    return message.fragment if isinstance(message, AskChainNote | ChainNote) else None


@pytest.mark.parametrize("forked", [FRAGMENTS - 1, *extra([1])])
def test_a_fork_of_one_fragment_that_is_not_the_first_is_healed(forked: int) -> None:
    """Answers come in the order of the questions, as on a stream, so the first ones are about unforked fragments."""
    world = swarm(5, SPLIT_PACE, links=LinkFaults(delay_max_seconds=0.02, ordered=True))
    side = {peer.me: number >= 3 for number, peer in enumerate(world.peers)}
    world.run(40.0)
    world.network.filter = lambda sender, to, message: side[sender] == side[to] or fragment_of(message) != forked
    world.run(120.0)
    ours, theirs = (tuple(one.chain.digest for one in engine_of(world.peers[n]).machines) for n in (0, 3))
    assert [index for index in range(FRAGMENTS) if ours[index] != theirs[index]] == [forked]
    world.network.heal()
    world.run(10.0)
    assert isinstance(world.watcher, Watcher)
    assert world.watcher.told["lineage_changed"] == 2
    world.settle(60.0)


def certified_steps(world: World, of: VirtualPeer, index: int) -> int:
    """Return a peer's steps in the lineage of this fragment that all peers hold."""
    found = machine(world.peers[0], index).chain.certificates
    return sum(one.steps for certificate in found for one in certificate.outcome.included() if one.peer == of.me)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "second"), [(2, 2), (0, 4)])
def test_all_that_either_side_has_certified_is_in_the_lineage_that_wins(seed: int, second: int) -> None:
    """Each step counts once: the judge of every run compares the steps themselves."""
    world = swarm(8, SPLIT_PACE, seed=seed)
    part(world, second)
    met = [peer.tensors.learner.steps(world.clock.now) for peer in world.peers]
    counted = [list(peer.tensors.learner.counted) for peer in world.peers]
    assert min(counted[-1]) > 100, "what the smaller side has certified by itself"
    world.settle(300.0, world.versions() + 4 * FRAGMENTS)
    assert isinstance(world.watcher, Watcher)
    assert world.watcher.told["branch_carried"] >= second * FRAGMENTS
    for peer, steps in zip(world.peers, met, strict=True):
        for index in range(FRAGMENTS):
            assert certified_steps(world, peer, index) == peer.tensors.learner.counted[index] > steps


def test_a_swarm_that_does_not_carry_loses_what_one_side_has_certified() -> None:
    world = swarm(4, SPLIT_PACE, seed=1, carries=False)
    part(world, 2)
    lost = [peer.tensors.learner.counted[0] for peer in world.peers]
    world.settle(300.0, world.versions() + 4 * FRAGMENTS)
    missing = [peer.tensors.learner.counted[0] - certified_steps(world, peer, 0) for peer in world.peers]
    assert sum(one > 50 for one in missing) == 2, f"{missing} of {lost}"


class Asker:
    """One engine that asks about another peer's chains; the test chooses the peer that answers in its name."""

    def __init__(self, world: World, asker: VirtualPeer, asked: VirtualPeer) -> None:
        self.engine, self.asked, self.now = engine_of(asker), asked, world.clock.now
        self.actions: list[Action] = []
        self.open: list[AskChainNote] = []

    def begin(self, fragment: int) -> list[int]:
        return self._take(self.engine.fork_choice.ask(self.asked.me, fragment, self.now))

    def answer(self, fragment: int, by: VirtualPeer) -> list[int]:
        """Have an open question answered by `by`; return the fragments that the engine asks about next."""
        question = next(one for one in self.open if one.fragment == fragment)
        self.open.remove(question)
        (answer,) = engine_of(by).fork_choice.answer(self.asked.me, question, self.now)
        assert isinstance(answer, Send)
        assert isinstance(answer.message, ChainNote)
        return self._take(self.engine.fork_choice.hear(self.asked.me, answer.message, self.now))

    def _take(self, actions: list[Action]) -> list[int]:
        self.actions += actions
        asked = [one.message for one in actions if isinstance(one, Send) and isinstance(one.message, AskChainNote)]
        self.open += asked
        return [one.fragment for one in asked]

    @property
    def changed(self) -> list[int]:
        """Return the fragments in which it has changed its lineage."""
        return [one.fragment for one in self.actions if isinstance(one, Tell) and one.event == "lineage_changed"]


def engine_of(peer: VirtualPeer) -> Engine:
    assert peer.engine is not None
    return peer.engine


def winner_first(world: World, fragments: list[int]) -> list[list[VirtualPeer]]:
    """Return the two sides, first the one that wins if only these fragments are compared."""
    sides = [world.peers[:2], world.peers[2:]]
    ours = {index: machine(sides[0][0], index).chain for index in fragments}
    theirs = {index: (fork_of(world, index), machine(sides[1][0], index).chain) for index in fragments}
    return sides[::-1] if fragments_won(ours, theirs) else sides


def fork_of(world: World, index: int) -> int:
    first, second = (machine(world.peers[number], index).chain for number in (0, 2))
    return max(one for one in range(first.version + 1) if first.digest_at(one) == second.digest_at(one))


def test_a_peer_that_shows_the_same_lineage_twice_is_followed_in_every_fragment() -> None:
    world = parted(seed=1)
    won, lost = winner_first(world, list(range(FRAGMENTS)))
    asker = Asker(world, lost[0], won[0])
    assert asker.begin(0) == [0]
    assert asker.answer(0, won[0]) == [1, 2, 3]
    assert [asker.answer(index, won[0]) for index in (1, 2)] == [[], []]
    assert asker.answer(3, won[0]) == [0, 1, 2, 3], "once more, all of them"
    assert [asker.answer(index, won[0]) for index in (0, 1, 2)] == [[], [], []]
    assert not asker.changed
    asker.answer(3, won[0])
    assert asker.changed == [0, 1, 2, 3]


@pytest.mark.parametrize("change_after", [2, *extra([1, 3])])
def test_a_peer_that_changes_over_between_its_answers_leads_no_other_into_two_lineages(change_after: int) -> None:
    """Its first answers are about a lineage that it has left by now, and that one wins in these fragments."""
    world = parted(seed=1)
    won, lost = winner_first(world, list(range(change_after)))
    asker = Asker(world, lost[0], won[0])
    asker.begin(0)
    for index in range(FRAGMENTS):
        asked = asker.answer(index, won[0] if index < change_after else lost[1])
    assert asked == [0, 1, 2, 3]
    for index in range(FRAGMENTS):
        assert asker.answer(index, lost[1]) == []
    assert not asker.changed
    assert not any(probe.holds_chains for probe in asker.engine.fork_choice.probes.values())
