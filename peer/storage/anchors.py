"""Certified states in host memory: the anchor and momentum of every fragment, and recent ones for peers that ask."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coordinator.run.manifest import RunConfig
from peer.model.build import draw_initial, parameter_specs
from peer.numerics.codec import Buffer
from peer.numerics.fragments import FLOAT_BYTES, FragmentLayout, gather, split_fragments
from peer.numerics.outer_optimizer import OuterState, state_bytes
from peer.storage.pins import Pins
from peer.storage.spill_files import SpillFiles

STEPS_KEPT = 2  # per fragment at least, if the disk accepts them
STEPS_SHARE = 0.5  # of an anchor's bytes, at most for steps beyond those
STEPS_HELD = 1  # number of these that stay in memory at least, the newest
HELD_SHARE = 0.25  # of an anchor's bytes, at most for further steps in memory


@dataclass(frozen=True, slots=True)
class HeldState:
    """A certified state, by the digest of its certificate."""

    digest: bytes
    state: OuterState


class Anchors:
    """The newest held state per fragment. States are never changed in place, so they can be shared freely.

    Other peers may ask for the newest state, and for the last `older_kept` states of all fragments that were replaced.
    A state that a peer is downloading stays longer: in `spill_files`, on disk, if that is given.
    """

    def __init__(
        self,
        layouts: Sequence[FragmentLayout],
        states: Sequence[OuterState],
        spill_files: SpillFiles | None = None,
        older_kept: int | None = None,
    ) -> None:
        self.layouts = tuple(layouts)
        self.keeps_momentum = any(isinstance(state.momentum, Tensor) for state in states)
        self._current = list(states)
        self._names: list[bytes | None] = [None for _ in self.layouts]  # certificates of installed states
        self._older: OrderedDict[tuple[int, bytes], OuterState] = OrderedDict()
        self._older_kept = len(self.layouts) if older_kept is None else older_kept
        self._fetched: dict[int, HeldState] = {}  # replaced states that are kept only because they are pinned
        self.spill_files = spill_files
        self._steps: list[OrderedDict[bytes, Buffer]] = [OrderedDict() for _ in self.layouts]
        self._spilled_steps: list[OrderedDict[bytes, Buffer]] = [OrderedDict() for _ in self.layouts]
        self._first: list[tuple[bytes, OuterState]] = []
        self.pins = Pins()

    def current(self, fragment: int) -> OuterState:
        return self._current[fragment]

    def all_anchors(self) -> list[Tensor]:
        """Return the anchors of all fragments in order, float32[elements] each."""
        return [state.anchor for state in self._current]

    def install(self, fragment: int, certificate: bytes, state: OuterState, step: bytes = b"") -> None:
        """Make this certified state the current one; `step`, if known, is the step that led to it, as told to others.

        Steps are kept longer for peers that download a state, until downloading another state would be smaller.
        """
        before, name = self._current[fragment], self._names[fragment]
        if name is not None and name != certificate:
            self._older[fragment, name] = before
        self._older.pop((fragment, certificate), None)
        self._current[fragment], self._names[fragment] = state, certificate
        pinned = self.pins.find(fragment)
        if fragment in self._fetched and self._fetched[fragment].digest != pinned:
            del self._fetched[fragment]
        while len(self._older) > self._older_kept:
            (of, digest), old = self._older.popitem(last=False)
            if digest == self.pins.find(of):
                self._keep_fetched(of, digest, old)
        if step:
            self._steps[fragment][certificate] = step
        self._thin_steps(fragment, pinned is not None)

    def _keep_fetched(self, fragment: int, digest: bytes, state: OuterState) -> None:
        anchor, momentum = self._spilled(state.anchor), state.momentum
        if isinstance(momentum, Tensor):
            kept = self._spilled(momentum)
            if anchor is not None and kept is not None:
                self._fetched[fragment] = HeldState(digest, OuterState(anchor, kept))
        elif anchor is not None:
            self._fetched[fragment] = HeldState(digest, OuterState(anchor, momentum))

    def _spilled(self, vector: Tensor) -> Tensor | None:
        if self.spill_files is None:
            return vector
        data = self.spill_files.spill(state_bytes(vector), needed=True)
        return None if data is None else torch.frombuffer(data, dtype=torch.float32)

    def _thin_steps(self, fragment: int, fetched: bool) -> None:
        steps, spilled = self._steps[fragment], self._spilled_steps[fragment]
        anchor_bytes = FLOAT_BYTES * self.layouts[fragment].elements
        while len(steps) > STEPS_HELD and _total(steps) > HELD_SHARE * anchor_bytes:
            certificate, step = next(iter(steps.items()))
            kept = step if self.spill_files is None else self.spill_files.spill(step, needed=fetched)
            if kept is not None:
                spilled[certificate] = kept
            del steps[certificate]
        until_less = self.spill_files is None or fetched
        most_bytes = self.state_bytes(fragment) if until_less else STEPS_SHARE * anchor_bytes
        while spilled and len(spilled) + len(steps) > STEPS_KEPT and _total(spilled) + _total(steps) > most_bytes:
            spilled.popitem(last=False)

    def serve_first(self, digests: Sequence[bytes], states: Sequence[OuterState]) -> None:
        """Also serve version 0, under the state digests of the manifest, because newcomers cannot draw its values."""
        self._first = list(zip(digests, states, strict=True))

    def served(self, fragment: int, certificate: bytes) -> OuterState | None:
        """Return a recent state by its certificate's digest, for another peer."""
        if self._first and certificate == self._first[fragment][0]:
            return self._first[fragment][1]
        current, name = self._current[fragment], self._names[fragment]
        if certificate == name:
            return current
        fetched = self._fetched.get(fragment)
        if fetched is not None and fetched.digest == certificate:
            return fetched.state
        return self._older.get((fragment, certificate))

    def step(self, fragment: int, certificate: bytes) -> Buffer:
        """Return the step that led to a recent version, for another peer; empty if unknown."""
        step = self._steps[fragment].get(certificate)
        return self._spilled_steps[fragment].get(certificate, b"") if step is None else step

    def state_bytes(self, fragment: int) -> int:
        """Return the bytes of a state that are downloaded: both halves, or only the anchor if the momentum is spent."""
        return (1 + self.keeps_momentum) * FLOAT_BYTES * self.layouts[fragment].elements

    def newest(self, fragment: int) -> bytes | None:
        """Return the certificate digest of the current state; None if this process did not install it."""
        return self._names[fragment]

    def held(self, fragment: int) -> HeldState | None:
        """Return the current state, if this process installed it."""
        digest = self.newest(fragment)
        return None if digest is None else HeldState(digest, self._current[fragment])

    def all_newest(self) -> list[bytes | None]:
        """Return `newest` of all fragments in order."""
        return [self.newest(fragment) for fragment in range(len(self._current))]

    def digest(self, fragment: int) -> bytes:
        """Return the state digest, hashed from the tensors now."""
        return self._current[fragment].digest

    def digests(self) -> list[bytes]:
        """Return the digests of all fragments in order."""
        return [self.digest(fragment) for fragment in range(len(self._current))]


def _total(kept: Mapping[bytes, Buffer]) -> int:
    return sum(memoryview(one).nbytes for one in kept.values())


def layouts_of(config: RunConfig) -> tuple[FragmentLayout, ...]:
    """Return how a run's model is cut into fragments."""
    pace = config.pace
    return split_fragments(parameter_specs(config.model), pace.fragments, pace.cut_embeddings is not None)


def genesis_states(config: RunConfig, values: Mapping[str, Tensor] | None = None) -> list[OuterState]:
    """Return version 0 of every fragment: the seeded parameters, or these by name, and no momentum."""
    return [genesis_state(config, layout, values) for layout in layouts_of(config)]


def genesis_state(config: RunConfig, layout: FragmentLayout, values: Mapping[str, Tensor] | None = None) -> OuterState:
    """Return version 0 of one fragment."""
    if values is None:
        anchor = torch.empty(layout.elements)
        for spec, start in zip(layout.tensors, layout.offsets, strict=False):
            draw_initial(config.model, config.seed, spec, anchor[start : start + spec.elements])
    else:
        anchor = gather(layout, values)
    return OuterState.begin(anchor, config.outer.momentum)
