"""Absences of a lab's learners: a plan drawn from the seed before the run, so that baselines can follow it, too."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from peer.lab.lab_context import LabContext
from peer.lab.options import STEP_SECONDS, LabOptions

CHECKPOINT_STEPS = 40  # between saves of learners that may die; real ones save every 30 seconds
GOODBYE_STEPS = 1.0  # for a leaving learner to finish its rounds

Absences = tuple[tuple[tuple[float, float], ...], ...]
"""Each learner's absences in order, as start and end in steps."""


def plan_absences(options: LabOptions) -> Absences:
    """Draw exponentially distributed lives, then a fixed absence; scavengers are absent outside their time."""
    failures, found = options.failures, []
    for number in range(options.learners):
        draw, away = random.Random(f"{options.config.seed} {number}"), []
        step = 0.0
        while failures is not None:
            dies = step + draw.expovariate(1 / failures.mean_steps_between)
            if dies >= options.steps:
                break
            step = dies + failures.absence_steps
            away.append((dies, step))
        found.append(tuple(away))
    if options.scavenge is not None:
        outside = ((0.0, options.scavenge.first_step), (options.scavenge.last_step, float(options.steps)))
        found += [outside] * options.scavenge.learners
    return tuple(found)


class Faults:
    """The execution of the plan in a world."""

    def __init__(self, world: World, context: LabContext, options: LabOptions, absences: Absences) -> None:
        self.counts: Counter[str] = Counter()
        self._world = world
        self._context = context
        for number, (peer, away) in enumerate(zip(world.peers, absences, strict=True)):
            if not away or away[0][0] > 0:
                peer.start()
            leave = self._leave if number >= options.learners else self._die
            for begins, ends in away:
                if 0 < begins < options.steps:
                    world.clock.after(begins * STEP_SECONDS, partial(leave, peer))
                if ends < options.steps:
                    world.clock.after(ends * STEP_SECONDS, partial(self._come, peer))
        if options.failures is not None:
            world.clock.after(CHECKPOINT_STEPS * STEP_SECONDS, self._save)

    def _die(self, peer: VirtualPeer) -> None:
        self.counts["died"] += 1
        self._end(peer)

    def _leave(self, peer: VirtualPeer) -> None:
        self.counts["left"] += 1
        if peer.engine is not None:
            peer.engine.drain()
        self._world.clock.after(GOODBYE_STEPS * STEP_SECONDS, partial(self._end, peer))

    def _end(self, peer: VirtualPeer) -> None:
        self._context.retire(peer.me, self._world.clock.now)
        self._world.crash(peer)

    def _come(self, peer: VirtualPeer) -> None:
        self.counts["came"] += 1
        peer.start()

    def _save(self) -> None:
        for peer in self._world.peers:
            if peer.alive:
                peer.checkpoint()
        self._world.clock.after(CHECKPOINT_STEPS * STEP_SECONDS, self._save)
