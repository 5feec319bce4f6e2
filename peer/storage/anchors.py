"""Certified states in host memory: the anchor and momentum of every fragment, and recent ones for peers that ask."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coordinator.run.manifest import RunConfig
from peer.model.build import initial_parameters, parameter_specs
from peer.numerics.fragments import FragmentLayout, gather, split_fragments
from peer.numerics.outer_optimizer import OuterState, state_digest
from peer.storage.pins import Pins

STATES_SERVED = 2  # per fragment: the newest and the one before it; and one more while somebody fetches it


@dataclass(frozen=True, slots=True)
class HeldState:
    """A certified state, by the digest of its certificate."""

    digest: bytes
    state: OuterState


class Anchors:
    """The newest held state per fragment. States are never changed in place, so they can be shared freely."""

    def __init__(self, layouts: Sequence[FragmentLayout], states: Sequence[OuterState]) -> None:
        self.layouts = tuple(layouts)
        self._current = list(states)
        self._served: list[OrderedDict[bytes, OuterState]] = [OrderedDict() for _ in self.layouts]
        self._steps: list[OrderedDict[bytes, bytes]] = [OrderedDict() for _ in self.layouts]
        self._first: list[tuple[bytes, OuterState]] = []
        self.pins = Pins()

    def current(self, fragment: int) -> OuterState:
        return self._current[fragment]

    def all_anchors(self) -> list[Tensor]:
        """Anchors of all fragments in order, float32[elements] each."""
        return [state.anchor for state in self._current]

    def install(self, fragment: int, certificate: bytes, state: OuterState, step: bytes = b"") -> None:
        """Make this certified state the current one; `step` is what led to it, as it is told to others, if we know.

        Steps are kept for longer: for whoever fetches a state, until fetching another one would be less.
        """
        self._current[fragment] = state
        served, steps = self._served[fragment], self._steps[fragment]
        served[certificate] = state
        if step:
            steps[certificate] = step
        fetched = self.pins.find(fragment)
        for old in [one for one in list(served)[:-STATES_SERVED] if one != fetched]:
            del served[old]
        while len(steps) > STATES_SERVED and sum(map(len, steps.values())) > self.state_bytes(fragment):
            steps.popitem(last=False)

    def serve_first(self, digests: Sequence[bytes], states: Sequence[OuterState]) -> None:
        """Serve version 0, too, under the state digests of the manifest: newcomers cannot draw these values."""
        self._first = list(zip(digests, states, strict=True))

    def served(self, fragment: int, certificate: bytes) -> OuterState | None:
        """A recent state by its certificate's digest, for another peer."""
        if self._first and certificate == self._first[fragment][0]:
            return self._first[fragment][1]
        return self._served[fragment].get(certificate)

    def step(self, fragment: int, certificate: bytes) -> bytes:
        """What led to a version of late, for another peer; empty if we do not know."""
        return self._steps[fragment].get(certificate, b"")

    def state_bytes(self, fragment: int) -> int:
        """How long a state is, both halves together."""
        return 8 * self.layouts[fragment].elements

    def newest(self, fragment: int) -> bytes | None:
        """Digest of the certificate of the current state; None if it is none that was installed in this life."""
        return next(reversed(self._served[fragment]), None)

    def held(self, fragment: int) -> HeldState | None:
        """The current state, if it was installed in this life."""
        digest = self.newest(fragment)
        return None if digest is None else HeldState(digest, self._current[fragment])

    def all_newest(self) -> list[bytes | None]:
        """`newest` of all fragments in order."""
        return [self.newest(fragment) for fragment in range(len(self._current))]

    def digest(self, fragment: int) -> bytes:
        """State digest, hashed from the tensors now."""
        state = self._current[fragment]
        return state_digest(state.anchor, state.momentum)

    def digests(self) -> list[bytes]:
        """Of all fragments in order."""
        return [self.digest(fragment) for fragment in range(len(self._current))]


def layouts_of(config: RunConfig) -> tuple[FragmentLayout, ...]:
    """How a run's model is cut into fragments."""
    return split_fragments(parameter_specs(config.model), config.pace.fragments)


def genesis_states(config: RunConfig, values: Mapping[str, Tensor] | None = None) -> list[OuterState]:
    """Version 0 of every fragment: the seeded initial parameters, or these by name, and no momentum."""
    named = initial_parameters(config.model, config.seed) if values is None else values
    anchors = [gather(layout, named) for layout in layouts_of(config)]
    return [OuterState(anchor, torch.zeros_like(anchor)) for anchor in anchors]
