"""A lab's partition: when the sides part and meet, what the losing one brings, and how good each side's model is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain as joined

from coordinator.chain import Chain
from coordinator.reunion import reunion_of
from coordinator.virtual.peer import VirtualPeer
from coordinator.virtual.simulation import World
from peer.evaluation import Evaluator
from peer.lab.data import side_texts
from peer.lab.options import Partition
from peer.lab.report import SideName, SidePoint
from peer.lab.tensors import LabTensors
from peer.lab.workshop import Workshop


@dataclass(frozen=True, slots=True)
class Side:
    """The learners of one side."""

    name: SideName
    peers: Sequence[VirtualPeer]


class Parting:
    """Parts the sides of a world, and lets them meet again.

    The losing side's states come in by this hand, not by the protocol (docs/adr/0016): at one moment between two rounds
    everybody's anchors become the merged ones. The next version of each fragment certifies what follows from them.
    """

    def __init__(self, world: World, shop: Workshop, partition: Partition, evaluator: Evaluator) -> None:
        """`evaluator` judges on all held-out text."""
        self.points: list[SidePoint] = []
        self.shares: list[float] = []  # with which weight a losing fragment came in
        self._world = world
        self._shop = shop
        self._partition = partition
        second = len(world.peers) - partition.learners
        self._sides = (Side("first", world.peers[:second]), Side("second", world.peers[second:]))
        self._evaluators = [evaluator]
        if partition.own_text:
            self._evaluators += [Evaluator(shop.config, side.heldout) for side in side_texts(shop.config.data)]
        self._apart = False
        self._left: list[Chain] = []  # what each side had certified when they met, until one of them has won

    def after(self, step: int) -> None:
        """Do what is due after a step."""
        if self._partition.reunion == "uncut":
            return
        if step == self._partition.first_step:
            self._world.network.sides.update({peer.me: 1 for peer in self._sides[1].peers})
            self._apart = True
        elif step == self._partition.last_step:
            self._left = list(joined.from_iterable(map(_newest_chains, self._sides)))
            self._world.network.heal()
            self._apart = False
        elif self._left and self._is_one():
            self._unite()

    def evaluate(self, step: int) -> None:
        """Add what both sides hold, or what everybody does."""
        sides = self._sides if self._apart else (Side("both", self._world.peers),)
        for side in sides:
            newest = _newest(self._shop, side)
            if newest is None:
                continue
            loss, *text_losses = (one.loss(newest.anchors.all_anchors()) for one in self._evaluators)
            self.points.append(
                SidePoint(
                    step=step,
                    side=side.name,
                    versions=newest.versions,
                    eval_loss=loss,
                    text_losses=tuple(text_losses),
                )
            )

    def _is_one(self) -> bool:
        """Whether all the living hold one lineage, and are in no round."""
        engines = [peer.engine for peer in self._world.peers if peer.engine is not None]
        held = {tuple(machine.held_chain.digest for machine in engine.machines) for engine in engines}
        return len(held) == 1 and not any(machine.busy for engine in engines for machine in engine.machines)

    def _unite(self) -> None:
        """One side has won: the other's states are merged, or dropped."""
        left, self._left = self._left, []
        if self._partition.reunion == "drop":
            return
        engine = next(peer.engine for peer in self._world.peers if peer.engine is not None)
        for branch in left:
            reunion = reunion_of(engine.machines[branch.fragment].held_chain, branch)
            if reunion is None or reunion.state not in self._shop.states[branch.fragment]:
                continue  # it is not this side that lost; or it took so long that nobody keeps the state
            self.shares.append(reunion.share)
            for tensors in self._shop.active.values():
                tensors.reunite(branch.fragment, reunion.state, reunion.share, self._world.clock.now)


def _newest(shop: Workshop, side: Side) -> LabTensors | None:
    """The tensors of the living peer of a side that holds most versions."""
    living = [shop.active[peer.me] for peer in side.peers if peer.me in shop.active]
    return max(living, key=lambda one: one.versions, default=None)


def _newest_chains(side: Side) -> list[Chain]:
    """Per fragment the longest chain that somebody of a side holds the state of, as it is now."""
    engines = [peer.engine for peer in side.peers if peer.engine is not None]
    fragments = zip(*(engine.machines for engine in engines), strict=True)
    held = (max((machine.held_chain for machine in one), key=lambda chain: chain.version) for one in fragments)
    return [chain.truncated(chain.version) for chain in held]
