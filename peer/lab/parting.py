"""A lab's partition: when the sides separate and meet, and the loss of each side's model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from peer.lab.data import side_texts
from peer.lab.lab_context import LabContext, LabPeer
from peer.lab.options import Partition
from peer.lab.report import SideName, SidePoint
from peer.learner.evaluation import Evaluator


@dataclass(frozen=True, slots=True)
class Side:
    """The learners of one side."""

    name: SideName
    peers: Sequence[VirtualPeer]


class Parting:
    """The separation and reunion of the two sides of a world."""

    def __init__(self, world: World, context: LabContext, partition: Partition, evaluator: Evaluator) -> None:
        """`evaluator` uses all held-out text."""
        self.points: list[SidePoint] = []
        self._world = world
        self._context = context
        self._partition = partition
        second = len(world.peers) - partition.learners
        self._sides = (Side("first", world.peers[:second]), Side("second", world.peers[second:]))
        self._evaluators = [evaluator]
        if partition.own_text:
            self._evaluators += [
                Evaluator(context.config, side.heldout, context.device) for side in side_texts(context.config.data)
            ]
        self._apart = False

    def after(self, step: int) -> None:
        """Separate or reunite the sides, if that is due after this step."""
        if self._partition.reunion == "uncut":
            return
        if step == self._partition.first_step:
            self._world.network.sides.update({peer.me: 1 for peer in self._sides[1].peers})
            self._apart = True
        elif step == self._partition.last_step:
            self._world.network.heal()
            self._apart = False

    def evaluate(self, step: int) -> None:
        """Add a point for each side, or one for all peers while they are together."""
        sides = self._sides if self._apart else (Side("both", self._world.peers),)
        for side in sides:
            newest = _newest(self._context, side)
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


def _newest(context: LabContext, side: Side) -> LabPeer | None:
    """Return the tensors of the believed peer of a side with the most versions; None if there is none."""
    living = [
        context.active[peer.me] for peer in side.peers if peer.me in context.active and context.is_believed(peer.me)
    ]
    return max(living, key=lambda one: one.versions, default=None)
