"""A user's module as the replica that a peer's rounds merge: tensors are copied out and written in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from coordinator.run.manifest import RunConfig
from dht.errors import LocalError, UsageError
from peer.learner.eager import EagerAdoption
from peer.learner.work_counters import Counters, LocalCount
from peer.model.own_module import trained_parameters
from peer.numerics.fragments import FragmentLayout, fragment_views, gather, scatter


class ModuleAdapter:
    """The trained parameters of a module by name, on any device, of any float type; leaves the optimizer alone.

    It works like `Learner`, but tensor by tensor, because the memory is the user's. Sums are taken in float32, and
    loaded values are rounded to the parameter's own type.
    """

    def __init__(self, module: nn.Module, fragments: Sequence[FragmentLayout], config: RunConfig) -> None:
        """Raises UsageError if the module's trained tensors are not the run's."""
        self.fragments = tuple(fragments)
        self.count = LocalCount(len(self.fragments))
        self.progress_steps = 0
        self._outer = config.outer
        self._eager = EagerAdoption(len(self.fragments)) if config.outer.adoption == "eager" else None
        self._named = trained_parameters(module)
        listed = {tensor.name: tensor.whole_shape for layout in fragments for tensor in layout.tensors}
        found = {name: tuple(one.shape) for name, one in self._named.items()}
        for name in sorted(listed.keys() | found.keys()):
            if listed.get(name) != found.get(name):
                theirs, ours = (_in_words(shapes.get(name)) for shapes in (listed, found))
                raise UsageError(f"the run's model has {theirs} called {name} and yours {ours}; build the run's model")

    @property
    def step_count(self) -> int:
        """Number of steps made so far."""
        return self.count.steps

    def set_progress(self, progress_steps: int, window: int | None = None) -> None:
        """Set the run's certified progress: mean version times steps per version (design §8).

        `window` is ignored: the user's loop reads its own data.
        """
        self.progress_steps = progress_steps

    def set_threads(self, threads: int) -> None:
        """Compute with this many threads."""
        torch.set_num_threads(threads)

    def snapshot(self, fragment: int, out: Tensor) -> Counters:
        """Copy the fragment into `out`, float32[elements], as `Learner.snapshot` does; raises LocalError on NaN."""
        layout = self.fragments[fragment]
        gather(layout, self._named, out)
        if not bool(torch.isfinite(out).all()):
            lost = next(one.name for one in layout.tensors if not bool(torch.isfinite(self._named[one.name]).all()))
            raise LocalError(
                f"training diverged: {lost} holds values that are no finite numbers; lower the learning rate"
            )
        if self._eager is not None:
            snapshot, onwards = self._eager.show(fragment, out)
            out.copy_(snapshot)
            scatter(layout, onwards, self._named)
        return self.count.of(fragment)

    def adopt(
        self, fragment: int, new: Tensor, reference: Tensor | None, counted_steps: int, counted_tokens: int
    ) -> None:
        """Do as `Learner.adopt` for this module: θ ← new + (θ - reference), or θ ← new without a reference."""
        layout = self.fragments[fragment]
        theta = gather(layout, self._named)
        if self._eager is not None:
            self._eager.adopt(fragment, theta, new, reference if counted_steps > 0 else None)
        if reference is not None:
            scatter(layout, theta.sub_(reference).mul_(self._outer.kept_share(counted_steps)).add_(new), self._named)
            self.count.count(fragment, counted_steps, counted_tokens)
            return
        scatter(layout, new, self._named)
        self.count.restart(fragment)

    def load_all(self, parameters: Tensor) -> None:
        """Start from float32[all elements], fragments in order; resets the counters."""
        for fragment, part in enumerate(fragment_views(parameters, self.fragments)):
            self.adopt(fragment, part, None, 0, 0)

    def export_state(self, copied: bool = True) -> dict[str, Tensor]:
        """Return copies of parameters and counters on the CPU; saving the optimizer's state is up to the user."""
        count = self.count
        state = {
            "theta": torch.cat([gather(layout, self._named) for layout in self.fragments]),
            "position": torch.tensor([count.steps, count.tokens, count.window], dtype=torch.int64),
            "counted_from": torch.tensor(count.counted_from, dtype=torch.int64),
        }
        return state if self._eager is None else state | self._eager.export_state()

    def import_state(self, state: dict[str, Tensor]) -> None:
        """Continue from `export_state`; raises LocalError if it belongs to another model."""
        theta, position, counted_from = (state.get(name) for name in ("theta", "position", "counted_from"))
        elements = sum(layout.elements for layout in self.fragments)
        if theta is None or position is None or counted_from is None or theta.shape != (elements,):
            raise LocalError("the saved state belongs to another run; remove it to start without")
        self.load_all(theta)
        if self._eager is not None:
            self._eager.import_state(state)
        count = self.count
        count.steps, count.tokens, count.window = position.tolist()
        count.counted_from = counted_from.tolist()


def _in_words(shape: tuple[int, ...] | None) -> str:
    return "no tensor" if shape is None else f"a tensor of shape {shape}"
