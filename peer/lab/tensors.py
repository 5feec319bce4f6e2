"""Real tensors behind a virtual peer: the learner and round work of real peers, at steps set by virtual time.

A snapshot holds the steps made by the moment it is requested. An adoption takes effect `adoption_delay_steps` after
that snapshot (τ of DiLoCo 2604.21428 §3.2), however quickly the virtual round ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coordinator.chain.certificate import Certificate
from coordinator.chain.passes import lane_of
from coordinator.core.actions import (
    Adopt,
    Apply,
    Encode,
    Included,
    IncludedUnseen,
    Inspect,
    NotIncluded,
    Open,
    Reduce,
    Returned,
    RoundKey,
)
from coordinator.core.events import Applied, Encoded, Inspected, Opened, Reduced
from coordinator.simulator.peer import Disk
from coordinator.simulator.tensors import VirtualLearner
from dht.errors import LocalError
from dht.identity import PeerId
from dht.statement import digest_of
from peer.attacks.attack import Attack, Scene
from peer.attacks.forgery import falsified
from peer.attacks.plain import NotANumber
from peer.lab.attackers import lies_of, work_of
from peer.lab.lab_context import LabContext
from peer.lab.learners import DivergedError, LazyLearner, SavedLearner
from peer.lab.uneven import UnevenLearner
from peer.learner.devices import Placement
from peer.learner.learner import make_learner
from peer.numerics.codec import CODECS
from peer.numerics.fragments import Partitioning
from peer.numerics.outer_optimizer import OuterState
from peer.rounds.adoption import Adoption
from peer.rounds.stale_work import StaleWork
from peer.rounds.tape import adoption_line, snapshot_line
from peer.storage.anchors import Anchors


@dataclass(frozen=True, slots=True)
class SavedTensors:
    """The contents of a lab peer's checkpoint apart from the digests."""

    learner: SavedLearner
    states: tuple[OuterState, ...]
    digests: tuple[bytes, ...]
    versions: tuple[int, ...]


class LabTensors:
    """The tensors of one life of one peer; implements `coordinator.simulator.tensors.Tensors`."""

    def __init__(
        self,
        context: LabContext,
        learner: VirtualLearner,
        lazy: LazyLearner,
        states: list[bytes],
        attack: Attack | None,
    ) -> None:
        self.learner = learner
        self.states = states
        self.snapshots: dict[RoundKey, int] = {}
        self.applied: dict[RoundKey, bytes] = {}
        self.lazy = lazy
        self.anchors = Anchors(context.layouts, context.genesis)
        self.attack = attack
        self._context = context
        self._work = work_of(context.attacks.get(learner.peer), context, self.anchors)
        self.proof_checker = self._work.proof_checker
        self._local_work = StaleWork(len(context.layouts), context.config.pace.max_stale)
        self._open_rounds: set[RoundKey] = set()
        self._snapshot_at: dict[RoundKey, float] = {}
        self._free_at = [0.0] * len(context.layouts)  # when the last adoption of each fragment takes effect
        self._versions = [0] * len(context.layouts)
        self._window: int | None = None  # to read on from, by the newest version of this life

    @property
    def versions(self) -> int:
        """Number of versions of all fragments together."""
        return sum(self._versions)

    # -- a round

    def snapshot_in(self, action: Encode, now: float, draw: Callable[[float, float], float]) -> float:
        """Return 0, or the seconds until the previous version is adopted, so that no work counts twice."""
        self._open_rounds.add(action.key)
        return max(0.0, self._free_at[action.key.fragment] - now)

    def encode(self, action: Encode, now: float) -> Encoded | None:
        """Make the steps up to now, and encode the outer gradient.

        Returns None without new steps, or if the round is over.
        """
        if action.key not in self._open_rounds:
            return None
        self._context.advance_all(now)
        self._snapshot_at[action.key] = now
        honest = {} if self.attack is None else self._context.honest_steps(now)
        return self.encode_at(action, self.learner.steps(now), honest)

    def encode_at(self, action: Encode, step: int, honest_steps: Mapping[PeerId, int]) -> Encoded | None:
        """Encode after `step` steps; an attacker sees the honest learners after `honest_steps`."""
        key = action.key
        vector, counters = self.lazy.snapshot(key.fragment, step)
        if counters.steps == 0:
            return None
        self.snapshots[key] = step
        self._context.record(snapshot_line(self.learner.peer, action, step, honest_steps))
        if self.attack is None:
            try:
                return self._work.encode(action, vector, counters)
            except LocalError as error:
                raise DivergedError(str(error)) from None
        anchor = self.anchors.current(key.fragment).anchor
        lie = self.attack.lie(self._scene(key, anchor - vector, honest_steps))
        try:
            encoded = self._work.encode(action, anchor - lie, counters)
        except LocalError:
            return None  # so absurd that no codec holds it: nothing can be sent
        return self.attack.commit(encoded, self._context.blobs, self._work.leaf_bytes[0])

    def _scene(self, key: RoundKey, own: Tensor, honest_steps: Mapping[PeerId, int]) -> Scene:
        """Return the view of an omniscient attacker: the outer gradients of honest learners that hold its anchor."""

        def honest() -> dict[str, Tensor]:
            found: dict[str, Tensor] = {}
            for peer, step in honest_steps.items():
                other = self._context.active[peer]
                if other.states[key.fragment] == self.states[key.fragment]:
                    vector, _ = other.lazy.snapshot(key.fragment, step)
                    found[peer] = other.anchors.current(key.fragment).anchor - vector
            return found or {self.learner.peer: own}

        seed = digest_of(b"lab-attack", key.roster_id, self.learner.peer.encode())[:7]
        return Scene(
            own=own,
            honest=honest,
            attackers=sum(map(self._context.is_believed, self._context.attacks)),
            seed=int.from_bytes(seed, "big"),
            fragment=key.fragment,
            state=self.anchors.current(key.fragment),
            rates=(self._context.config.outer.learning_rate, self._context.config.outer.momentum),
            merge=self._work.rule,
        )

    def reduce(self, action: Reduce) -> Reduced:
        """Merge one partition, as a real reducer does."""
        return self._work.reduce(action)

    def open(self, action: Open) -> Opened:
        """Open leaves of inputs, as a real reducer or contributor does."""
        return self._work.inspector.open(action)

    def inspect(self, action: Inspect) -> Inspected:
        """Recompute leaves of a result, as a real voter does."""
        return self._work.inspector.inspect(action)

    def apply(self, action: Apply) -> Applied | None:
        """Compute the outer step without adopting it."""
        applied = self._work.apply(action)
        if applied is not None:
            self.applied[action.key] = applied.state
        return applied

    def adopt(self, action: Adopt, now: float) -> None:
        """Hold the certified state from now on; the learner adopts it after its delay."""
        fragment = action.certificate.fragment
        taken_at = now if action.snapshot is None else self._snapshot_at[action.snapshot]
        delayed = taken_at + self._context.delay_steps * self._context.step_seconds
        # never before an earlier version has been adopted
        self._free_at[fragment] = max(now, self._free_at[fragment], delayed)
        self.adopt_at(action, self.learner.steps(now), self.learner.steps(self._free_at[fragment]))
        self.follow(self.learner.steps(now))

    def adopt_at(self, action: Adopt, step: int, effective_step: int, dropped: bool | None = None) -> None:
        """Adopt as decided after `step` steps, with effect after `effective_step`.

        `dropped`: whether work beyond the anchor is discarded, if a tape says so.
        """
        certificate = action.certificate
        fragment = certificate.fragment
        if dropped is None:
            dropped = action.snapshot is None and self._local_work.is_dropped(fragment)
        self._context.record_version(certificate)
        self._context.record(adoption_line(self.learner.peer, action, step, effective_step, dropped))
        self._versions[fragment] = certificate.version
        if fragment == 0 and self._context.config.data.is_in_passes:
            self._window = lane_of(certificate, (), self.learner.peer).first
        adoption = self._install(action, dropped)
        self._count(action, effective_step)
        self.lazy.adopt(effective_step, adoption)

    def _install(self, action: Adopt, dropped: bool) -> Adoption:
        """Make the certified state the anchor; returns the learner's adoption, as `RoundDriver` gives to a real one."""
        fragment, state = action.certificate.fragment, action.certificate.state
        kept = self._context.states[fragment].get(state)  # equal bytes, which memory need not hold once per peer
        done = self._work.adopt(action if kept is None else replace(action, applied=None), kept)
        self._context.keep(fragment, state, self.anchors.current(fragment))
        self.states[fragment] = state
        if done.counted is not None:
            self._local_work.included(fragment)
        # an attacker did not send its snapshot, so it begins anew from every anchor
        return done if self.attack is None and not dropped else done.dropping()

    def _count(self, action: Adopt, effective_step: int) -> None:
        fragment = action.certificate.fragment
        match action.ours:
            case Included(snapshot=snapshot):
                self._context.delays_steps.append(effective_step - self.snapshots[snapshot])
                self.learner.counted[fragment] = self.snapshots[snapshot]
            case IncludedUnseen():
                self.learner.counted[fragment] = effective_step
            case Returned(steps=steps):
                self.learner.counted[fragment] -= steps
            case NotIncluded():
                pass

    def follow(self, step: int) -> None:
        """Set certified progress for the learning rate: mean version times H (design §8); in passes also the window."""
        pace, window = self._context.config.pace, self._window
        self.follow_at(step, self.versions * pace.steps_per_version // pace.fragments, window)

    def follow_at(self, step: int, progress_steps: int, window: int | None) -> None:
        """Set progress and window that were computed elsewhere, after `step` steps."""
        self.lazy.after(step, lambda learner: learner.set_progress(progress_steps, window))

    def hold(self, certificate: Certificate) -> None:
        """Hold this state without telling the learner, which has not begun."""
        fragment, state = certificate.fragment, certificate.state
        self.anchors.install(fragment, certificate.digest, self._context.states[fragment][state])
        self.states[fragment] = state

    def discard(self, key: RoundKey) -> None:
        """Forget a round that is over."""
        self._work.discard(key)
        self._open_rounds.discard(key)
        for kept in (self.snapshots, self.applied, self._snapshot_at):
            kept.pop(key, None)

    # -- altered results

    def garbled(self, encoded: Encoded) -> Encoded:
        """Return parts that no codec can read."""
        return NotANumber(1.0).commit(encoded, self._context.blobs, self._work.leaf_bytes[0])

    def falsified(self, action: Reduce, reduced: Reduced) -> Reduced:
        """Return the negative of the merged result."""
        partitioning = Partitioning.of(self._context.layouts[action.key.fragment], action.partitions)
        codec = CODECS[self._context.config.outer.result_codec]
        return falsified(reduced, partitioning.elements(action.partition), codec, self._context.blobs)

    # -- checkpoints

    def save(self, now: float) -> SavedTensors:
        """Return learner, states and versions at this moment."""
        return self.save_at(self.learner.steps(now))

    def save_at(self, step: int) -> SavedTensors:
        """Return the state of `save` after `step` steps."""
        self._context.record({"event": "checkpoint", "peer": self.learner.peer, "step": step})
        states = tuple(self.anchors.current(fragment) for fragment in range(len(self.states)))
        return SavedTensors(self.lazy.save(step), states, tuple(self.states), tuple(self._versions))

    def restore(self, saved: SavedTensors) -> None:
        """Continue from a checkpoint; versions that this peer missed may contain the learner's work."""
        self.lazy.restore(saved.learner)
        if saved.learner.pending:
            self._free_at = [self.learner.made_at(saved.learner.pending[-1][0])] * len(self.states)
        self._versions = list(saved.versions)
        self._local_work.doubt(set(range(len(self.states))))
        for fragment, state in enumerate(saved.states):
            self.anchors.install(fragment, self.states[fragment], state)


def make_tensors(context: LabContext, learner: VirtualLearner, disk: Disk) -> LabTensors:
    """Return the tensors of one life of a peer, from its checkpoint if it has one."""
    if context.jitter > 0:
        learner = UnevenLearner.of(learner, context.jitter, context.config.seed)
    attack = lies_of(context.attacks.get(learner.peer))
    batches = context.batches(learner.peer)
    placement = context.placements.get(learner.peer, Placement(context.device, rounding_key=learner.peer.encode()))
    trained = make_learner(context.config, batches if attack is None else attack.read(batches), placement)
    if context.compiles:
        context.compile(trained)
    if context.values is not None:
        trained.load_all(torch.cat([state.anchor for state in context.genesis]))
    if context.config.data.is_in_passes:
        trained.set_progress(0, lane_of(None, context.founders, learner.peer).first)
    if attack is not None:
        attack.prepare(trained)
    made = LabTensors(context, learner, LazyLearner(trained, context.pool, context.tally), list(disk.states), attack)
    if isinstance(disk.saved, SavedTensors):
        made.restore(disk.saved)
    context.active[learner.peer] = made
    context.record({"event": "life", "peer": learner.peer, "step": learner.steps(learner.started)})
    return made
