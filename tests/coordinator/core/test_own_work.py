"""Own work after a change of branch: a peer may contribute again what only the branch that it left holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain.certificate import Contributor, PartitionOutcome
from coordinator.chain.chain import Chain
from coordinator.chain.lineage import LINEAGE_DEPTH_MAX
from coordinator.core.actions import Adopt, Included, IncludedUnseen, NotIncluded, Returned, Tell
from coordinator.core.events import Progress
from coordinator.core.own_work import OwnWork
from coordinator.engine.engine import Engine
from coordinator.engine.fragment import FragmentMachine
from coordinator.simulator.tensors import VirtualLearner, Work
from dht.identity import PeerId
from tests.coordinator.rigs import PEERS, certificate, chain_of, core, grown

FIVE = PEERS[:5]
LOSERS, WINNERS = FIVE[:2], FIVE[2:]
ME = FIVE[0]
STEM = grown(chain_of(core()), 2, FIVE, b"stem")
TOKENS = 100  # tokens of each peer in every version; each has one step


def counted(chain: Chain, me: PeerId = ME) -> OwnWork:
    """Return the own work of a peer that adopted every version of this chain with its own snapshot."""
    own_work = OwnWork(me)
    for steps, one in enumerate(chain.certificates, 1):
        if any(one.outcome.included_in(me)):
            own_work.note_contribution(one.outcome.roster_id, steps)
            own_work.count(one.outcome.roster_id, one.outcome)
    return own_work


def rival(fork: int, versions: int = 2, roster: tuple[PeerId, ...] = WINNERS, salt: bytes = b"rival") -> Chain:
    return grown(STEM.truncated(fork), versions, roster, salt)


def test_work_that_only_the_branch_left_holds_is_taken_back_once() -> None:
    own_work = counted(grown(STEM, 3, LOSERS, b"ours"))
    assert not own_work.has_new_steps(5)
    assert own_work.take_back(rival(2)) == Returned(3, 3 * TOKENS)
    assert own_work.has_new_steps(5)
    assert own_work.take_back(rival(2)) is None


def test_work_that_the_other_branch_holds_too_stays_counted() -> None:
    ours = grown(STEM, 3, LOSERS, b"ours")
    assert counted(ours).take_back(ours) is None
    assert counted(ours).take_back(grown(ours, 2, FIVE, b"more")) is None
    assert counted(ours).take_back(rival(1)) == Returned(4, 4 * TOKENS), "the last version of the stem, too"


def test_a_chain_that_is_shorter_than_ours_holds_no_more_than_it_has() -> None:
    assert counted(grown(STEM, 3, LOSERS, b"ours")).take_back(rival(2, versions=1)) == Returned(3, 3 * TOKENS)


def test_a_peer_that_brought_nothing_takes_nothing_back() -> None:
    assert counted(grown(STEM, 3, LOSERS, b"ours"), PEERS[9]).take_back(rival(2)) is None


def test_work_of_which_we_kept_no_snapshot_ends_what_can_be_taken_back() -> None:
    """Dropped work cannot be contributed again, and earlier work may have gone with it."""
    own_work = counted(grown(STEM, 3, LOSERS, b"ours"))
    own_work.count_all(9)
    assert own_work.take_back(rival(2)) is None


def test_work_that_came_through_a_cell_is_not_taken_back() -> None:
    """The certificate has it under the name of the cell's head, summed up with other peers' work."""
    ours = grown(STEM, 2, LOSERS, b"ours")
    own_work = counted(ours)
    own_work.note_contribution(b"cell", 4)
    own_work.count(b"cell", certificate(ours, LOSERS, salt=b"cells").outcome)
    assert own_work.take_back(rival(2)) is None


def test_a_branch_that_holds_some_of_our_work_lets_nothing_be_taken_back() -> None:
    """We gave 5 steps to a round of theirs and left it; our branch counts 9 steps, which include them."""
    own_work = counted(STEM)
    theirs, ours = (certificate(STEM, FIVE, salt=salt).outcome for salt in (b"theirs", b"ours"))
    own_work.note_contribution(theirs.roster_id, 5)
    own_work.note_contribution(ours.roster_id, 9)
    own_work.count(ours.roster_id, ours)
    assert own_work.change_over([theirs])
    assert own_work.take_back(grown(STEM, 1, FIVE, b"theirs")) is None


def test_steps_of_a_learner_that_goes_on_from_a_save_are_new() -> None:
    """Else a peer contributed nothing until the next process had made all steps since the last save once more."""
    own = core()
    engine = Engine(own, [STEM], [STEM.version], 0.0)
    own_work = engine.machines[0].own_work
    made = certificate(STEM, FIVE)
    engine.handle(Progress(1000, 1.0), 1.0)
    own_work.note_contribution(made.outcome.roster_id, 1000)
    own_work.count(made.outcome.roster_id, made.outcome)
    assert not own_work.has_new_steps(1000)
    assert own_work.knows(made.outcome)
    engine.handle(Progress(400, 1.0), 2.0)
    assert not own_work.has_new_steps(400)
    assert own_work.has_new_steps(401)
    assert not own_work.knows(made.outcome), "as after a restart"
    own_work.count(made.outcome.roster_id, made.outcome)
    assert own_work.has_new_steps(401), "what the lost process gave counts no step of the next"


def test_the_work_that_can_be_taken_back_is_bounded() -> None:
    own_work = counted(grown(STEM, LINEAGE_DEPTH_MAX + 8, LOSERS, b"ours"))
    assert len(own_work.entries) == LINEAGE_DEPTH_MAX


# -- at a peer


def holding(versions: int) -> FragmentMachine:
    """Make our machine on a side that has certified this many versions by itself, all with our work."""
    own = core(0)
    machine = FragmentMachine(own, grown(STEM, versions, LOSERS, b"ours"), held=2 + versions, now=0.0)
    machine.own_work = counted(machine.chain)
    return machine


def changed_over(machine: FragmentMachine, to: Chain, now: float) -> Adopt:
    """Change to this chain and fetch its state; return the adoption."""
    fork = max(one for one in range(to.version) if to.digest_at(one) == machine.chain.digest_at(one))
    machine.switch(to, fork, now)
    adopt, *told = machine.fetched(to.digest, now)
    assert isinstance(adopt, Adopt)
    assert [one.event for one in told if isinstance(one, Tell)] == ["branch_carried"] * isinstance(adopt.ours, Returned)
    return adopt


def test_a_peer_that_changes_over_brings_its_branch_along() -> None:
    machine = holding(3)
    adopt = changed_over(machine, rival(2), 5.0)
    assert adopt.ours == Returned(3, 3 * TOKENS)
    assert machine.own_work.has_new_steps(5)


def test_a_peer_that_comes_back_to_the_branch_that_it_left_brings_nothing_of_it() -> None:
    """It may have contributed it to the other branch meanwhile, so its learner begins at the certified state."""
    machine, later = holding(3), grown(grown(STEM, 3, LOSERS, b"ours"), 4, LOSERS, b"later")
    changed_over(machine, rival(2), 5.0)
    adopt = changed_over(machine, later, 9.0)
    assert adopt.ours == IncludedUnseen(), "with work of ours, and no snapshot of it: the learner begins at this state"


def test_a_peer_that_only_passed_by_another_branch_brings_what_it_held() -> None:
    """It changes twice before any state comes: only the state that it holds and the final branch count."""
    machine = holding(3)
    machine.switch(rival(2), 2, 5.0)
    assert changed_over(machine, rival(1, 4, salt=b"other"), 6.0).ours == Returned(4, 4 * TOKENS)


def test_a_branch_that_cannot_be_had_takes_nothing_with_it() -> None:
    machine = holding(3)
    machine.switch(rival(2), 2, 5.0)
    machine.state_sync.lacking_since = -1e9
    machine.fetch_failed(machine.chain.digest, 6.0)
    assert machine.held == 5
    assert not machine.own_work.has_new_steps(5), "it is as it was"
    assert changed_over(machine, rival(2, 3, salt=b"other"), 9.0).ours == Returned(3, 3 * TOKENS)


def test_a_core_that_does_not_carry_leaves_it_all_behind() -> None:
    machine = holding(3)
    machine.core.carries = False
    assert changed_over(machine, rival(2), 5.0).ours == NotIncluded()
    assert not machine.own_work.has_new_steps(5)


# -- over whole histories


@dataclass
class Life:
    """A peer's state at one moment as in a checkpoint, without its core's memory."""

    chain: Chain
    steps: int = 0
    counted: int = 0
    births: tuple[tuple[int, int], ...] = ()  # (first step, life) pairs


class History:
    """One peer among others that certify without it on several branches."""

    def __init__(self) -> None:
        self.chains = [STEM]
        self.saved = Life(STEM)
        self.brought: dict[bytes, list[Work]] = {}  # by roster
        self.lives = 0
        self.carried = 0
        self.restart()

    def restart(self) -> None:
        """Restart the peer from its checkpoint; it repeats the work since then."""
        self.lives += 1
        self.life = replace(self.saved, births=(*self.saved.births, (self.saved.steps, self.lives)))
        chain = self.life.chain
        self.machine = FragmentMachine(core(0), chain.truncated(chain.version), held=chain.version, now=0.0)

    def save(self) -> None:
        held = self.machine.held_chain
        self.saved = replace(self.life, chain=held.truncated(held.version))

    def work(self, steps: int) -> None:
        self.life.steps += steps

    def others(self, which: int, back: int) -> None:
        """Let others make a version, perhaps beside an existing one."""
        base = self.chains[which % len(self.chains)]
        base = base.truncated(max(STEM.version, base.version - back))
        self.chains.append(grown(base, 1, WINNERS, b"others %d" % len(self.chains)))

    def bring(self, heard: bool) -> None:
        """Let it contribute all its new work to a round that certifies; perhaps it does not learn of that."""
        new = self.life.steps - self.life.counted
        if new <= 0:
            return
        own = Contributor(peer=ME, tokens=TOKENS * new, steps=new)
        changes: dict[str, object] = {"contributors": (own,), "partitions": (ONE_INPUT,)}
        salt = b"bring %d" % len(self.chains)
        made = certificate(self.machine.chain, FIVE, salt=salt, changes=changes)
        roster = made.outcome.roster_id
        learner = VirtualLearner(ME, 0.0, TOKENS, 0.0, 0.0, [], list(self.life.births))
        self.brought[roster] = learner.work(self.life.counted, new)
        self.machine.own_work.note_contribution(roster, self.life.steps)
        grown_to = self.machine.chain.truncated(self.machine.chain.version)
        grown_to.append(made)
        self.chains.append(grown_to)
        if heard:
            self.machine.own_work.count(roster, made.outcome)
            self.life.counted = self.life.steps
            self.machine.chain.append(made)

    def meet(self, which: int, at_once: bool) -> None:
        """Let it change to another chain, or follow one that continues its own; the state may come later."""
        machine, to = self.machine, self.chains[which % len(self.chains)]
        machine.core.steps = self.life.steps
        fork = max(one for one in range(to.version + 1) if to.digest_at(one) == machine.chain.digest_at(one))
        if fork == to.version:
            return
        if fork < machine.chain.version:
            machine.switch(to.truncated(to.version), fork, 1.0)
        else:
            for one in to.after(fork, to.version - fork):
                machine.advance(one, 1.0)
        for action in machine.fetched(machine.chain.digest, 2.0) if at_once else []:
            if not isinstance(action, Adopt):
                continue
            if isinstance(action.ours, Included | IncludedUnseen):
                self.life.counted = self.life.steps
            elif isinstance(action.ours, Returned):
                self.life.counted -= action.ours.steps
                self.carried += 1


ONE_INPUT = PartitionOutcome(reducer=ME, root=bytes(32), included=(0,))
places = st.integers(0, 30)
deeds = st.one_of(
    st.tuples(st.just("work"), st.integers(1, 3)),
    st.tuples(st.just("bring"), st.booleans()),
    st.tuples(st.just("others"), places, st.integers(0, 3)),
    st.tuples(st.just("meet"), places, st.booleans()),
    st.tuples(st.just("save")),
    st.tuples(st.just("restart")),
)


@given(st.lists(deeds, max_size=40))
def test_no_step_is_in_one_chain_twice(story: list[tuple[object, ...]]) -> None:
    history = History()
    for what, *how in story:
        if what == "bring" and not history.machine.ready:
            continue
        getattr(history, str(what))(*how)
    for chain in history.chains:
        rosters = [one.outcome.roster_id for one in chain.certificates]
        pieces = sorted(piece for roster in rosters for piece in history.brought.get(roster, []))
        for (life, first, last), (next_life, next_first, _) in pairwise(pieces):
            assert life != next_life or last <= next_first, f"from step {first}"
