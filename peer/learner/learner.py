"""Inner steps on one device, and snapshots and adoptions of fragments (DiLoCo 2604.21428 Alg. 1, design §6.2).

There is no input or output here: the same learner runs in a process of its own and inside the virtual swarm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coordinator.run.manifest import RunConfig
from dht.errors import LocalError
from peer.learner.devices import Placement, rounding_seed
from peer.learner.eager import EagerAdoption
from peer.learner.gradient.batch_ahead import BatchAhead, Batches
from peer.learner.gradient.batch_gradient import BatchGradient
from peer.learner.gradient.held import HeldModel, held_by
from peer.learner.gradient.loss_scale import LossScale
from peer.learner.group.collective import ALONE, Ranks
from peer.learner.group.saved import gather_parts, named_after, own_part
from peer.learner.optimizers.bf16_step import RoundedSteps
from peer.learner.optimizers.first_moment import Correction, correct
from peer.learner.optimizers.inner_optimizer import (
    begin_state,
    export_state,
    import_state,
    last_rate,
    make_optimizer,
    move_state,
    rate,
    rewarm,
    set_rate,
)
from peer.learner.work_counters import Counters, LocalCount
from peer.model.adapter import build_run_model
from peer.numerics.fragments import FragmentLayout, fragment_views, paired
from peer.storage.anchors import layouts_of

_OPTIMIZER_PREFIX = "optimizer."
_LAST_RATE = "last_rate"


@dataclass(frozen=True, slots=True)
class StepReport:
    """One inner step: its number, its loss in nats per token (None: it was skipped), and its tokens."""

    step: int
    loss: float | None
    tokens: int


class Learner:
    """The training of one model replica, alone or as one process of a group that trains it together.

    In a group, every process makes the same calls in the same order. Only the first one copies parameters out.
    """

    def __init__(
        self,
        model: nn.Module,
        fragments: Sequence[FragmentLayout],
        batches: Batches,
        config: RunConfig,
        placement: Placement,
        group: Ranks = ALONE,
    ) -> None:
        self.fragments = tuple(fragments)
        self.group = group
        held: HeldModel = held_by(group, model, self.fragments, config, placement)
        self._parameters = held.parameters
        self.model = model
        self._batches = BatchAhead(batches, placement.device)
        self.config = config
        self._batch_gradient = BatchGradient(held, config, placement, group)
        self._scale = LossScale(self._batch_gradient.half == torch.float16)
        self._count = LocalCount(len(self.fragments))
        self._eager = EagerAdoption(len(self.fragments), group.add_parts) if config.outer.adoption == "eager" else None
        self._progress_steps = 0
        self._state_steps = 0  # age of the optimizer's state
        self._total_steps = max(1, config.versions * config.pace.steps_per_version // config.pace.fragments)
        named = self._parameters.stepped
        stepped = list(named.values())
        self._rounded = RoundedSteps(stepped) if config.inner.precision == "bfloat16" else None
        if self._rounded is not None:
            stepped = self._rounded.stand_ins
        tables = {spec.name for layout in self.fragments for spec in layout.tensors if spec.embedding}
        self._stepped = dict(zip(named, stepped, strict=True))
        embeddings = [one for name, one in self._stepped.items() if name in tables]
        self._optimizer = make_optimizer(stepped, config.inner, embeddings, held.rows)

    def place(self, placement: Placement) -> None:
        """Use this placement from now on; raises UsageError if the model cannot recompute its activations."""
        self._batch_gradient.place(placement)

    @property
    def placement(self) -> Placement:
        """The placement in use."""
        return self._batch_gradient.placement

    def step(self) -> StepReport:
        """Make one inner step on the next window; it changes nothing if loss or gradient is not finite.

        Raises LocalError after many such steps in a row.
        """
        batch, factor = self._batches.batch(self._count.window), self._scale.factor
        value = self.backward(batch)
        norm = self._parameters.norm() / factor
        scale = (self.config.inner.clip_norm / (norm + 1e-6)).clamp_(max=1.0) / factor
        self._batches.prepare(self._count.window + 1)
        measured = torch.stack((value / factor, norm)).tolist()  # the only wait for the device
        is_finite = all(map(math.isfinite, measured))
        self._scale.follow(is_finite)
        if is_finite:
            self._follow_gradient(scale)
        elif self._scale.is_hopeless:
            raise LocalError(f"training diverged at step {self.step_count + 1}; lower inner.learning_rate")
        tokens = batch.shape[0] * (batch.shape[1] - 1)
        self._count.step(tokens)
        return StepReport(self.step_count, measured[0] if is_finite else None, tokens)

    def _follow_gradient(self, scale: Tensor) -> None:
        """Take the optimizer's step along the gradient times `scale`."""
        set_rate(self._optimizer, self.rate)
        if self._state_steps == 0:
            begin_state(self._optimizer, self.config.inner)
        if self._rounded is None:
            self._parameters.scale(scale)
            self._optimizer.step()
        else:
            self._rounded.step(self._optimizer, scale, rounding_seed(self.placement.rounding_key, self.step_count))
        self._state_steps += 1

    def backward(self, batch: Tensor) -> Tensor:
        """Compute the gradient of the mean loss over a batch, in pieces; returns that loss.

        Both are multiplied by the scale that keeps float16 from losing them (`peer.learner.gradient.loss_scale`).
        """
        self.wake()
        return self._batch_gradient.backward(batch, self._scale.factor)

    def try_sequences(self, sequences: int) -> None:
        """Try forward and backward over the next window's first sequences, on the first device; changes no state."""
        self.wake()
        self._batch_gradient.try_once(self._batches.batch(self._count.window)[:sequences])

    def rest(self) -> None:
        """Free the memory that only steps need: gradients, and all of a GPU's; the next step allocates it again."""
        if self._parameters.is_awake:
            self._parameters.rest()
            self._move(torch.device("cpu"))
            if self.placement.is_cuda:
                torch.cuda.empty_cache()

    def wake(self) -> None:
        """Undo `rest`; every step does this first."""
        if not self._parameters.is_awake:
            self._parameters.wake()
            self._move(self._parameters.device)

    def _move(self, device: torch.device) -> None:
        move_state(self._optimizer, device)
        if self._eager is not None:
            self._eager.move(device)

    @property
    def is_resting(self) -> bool:
        """Whether `rest` was called since the last step."""
        return not self._parameters.is_awake

    @property
    def gradient(self) -> Tensor:
        """The gradient of the last step, clipped: all fragments in order."""
        return self._parameters.gradient

    @property
    def skipped(self) -> int:
        """Number of steps that changed nothing since this process started."""
        return self._scale.skipped

    @property
    def step_count(self) -> int:
        """Number of steps made so far."""
        return self._count.steps

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return rate(self._progress_steps, self._total_steps, self.config.inner) * rewarm(self._state_steps)

    def set_progress(self, progress_steps: int, window: int | None = None) -> None:
        """Set the run's certified progress: mean version times steps per version (design §8).

        In a run that reads in passes, `window` is the one to read on from (`coordinator.chain.passes`).
        """
        self._progress_steps = progress_steps
        if window is not None:
            self._count.read_from(window)

    def set_threads(self, threads: int) -> None:
        """Compute with this many threads in all processes of the group together."""
        torch.set_num_threads(self.group.own_threads(threads))

    def counters(self, fragment: int) -> Counters:
        """Return the steps and tokens in this fragment that no merge has counted yet, and their data windows."""
        return self._count.of(fragment)

    def snapshot(self, fragment: int, out: Tensor | None) -> Counters:
        """Copy the fragment into `out`, float32[elements] on any device; returns the work in it since its anchor.

        Only the first process of a group passes `out`. With the adoption `eager`, the learner goes on from where the
        merge is expected to leave its own part (`peer.learner.eager`).
        """
        values = self._parameters.exact(fragment)
        if self._eager is None:
            self._parameters.put(fragment, values, out)
        else:
            snapshot, onwards = self._eager.show(fragment, values)
            self._parameters.put(fragment, snapshot, out)
            self._parameters.load(fragment, onwards)
        return self.counters(fragment)

    def adopt(
        self, fragment: int, new: Tensor, reference: Tensor | None, counted_steps: int, counted_tokens: int
    ) -> None:
        """Adopt a new anchor, float32[elements]: θ ← new + (θ - reference), rounded twice (design §6.2 step 10).

        `reference` is the merged snapshot (`carry`; `eager` keeps a share α of the difference) or the old anchor
        (rebase, with nothing counted). The counters are reduced by what was counted. Without a reference, θ ← new, or
        θ ← αθ + (1 - α)·new (Streaming DiLoCo 2501.18512) if the run blends and our work is in it. The counters then
        restart at zero, because most of the work they counted is gone. The optimizer's state stays.
        """
        theta, outer = self._parameters.exact(fragment), self.config.outer
        new = self._parameters.own(fragment, new)
        reference = None if reference is None else self._parameters.own(fragment, reference)
        if self._eager is not None:
            missed = self._eager.adopt(fragment, theta, new, reference if counted_steps > 0 else None)
            if missed is not None and outer.moment_correction is not None:
                self._correct(fragment, missed, counted_steps)
        if reference is None:
            if outer.adoption == "blend" and counted_steps:
                theta.mul_(outer.adoption_blend).add_(new * (1 - outer.adoption_blend))
            else:
                theta.copy_(new)
            self._count.restart(fragment)
        else:  # in place: the sum commutes, so these are the bits of new + (θ - reference)
            theta.sub_(reference).mul_(outer.kept_share(counted_steps)).add_(new)
            self._count.count(fragment, counted_steps, counted_tokens)
        if not self.group.sharded:
            self.group.share(theta)  # devices of different kinds round differently, so replicas would drift apart
        self._parameters.load(fragment, theta)

    def _correct(self, fragment: int, missed: Tensor, counted_steps: int) -> None:
        """Correct the first moment for what the merge found beyond our own work (`optimizers.first_moment`)."""
        late_steps = max(0, self.counters(fragment).steps - counted_steps)
        correction = Correction.of(self.config, last_rate(self._optimizer), counted_steps, late_steps)
        correct(self._optimizer, paired(self._parameters.layouts[fragment], missed, self._stepped), correction)

    def load_all(self, parameters: Tensor) -> None:
        """Start from float32[all elements], fragments in order; resets the counters."""
        for fragment, part in enumerate(fragment_views(parameters, self.fragments)):
            self.adopt(fragment, part, None, 0, 0)

    def export_state(self, copied: bool = True) -> dict[str, Tensor]:
        """Return everything a resumed learner needs to continue with the same bits.

        The tensors are CPU copies, unless `copied` is false: then they must be read before the next step.
        """
        count = self._count
        position = [count.steps, count.tokens, count.window, self._progress_steps, self._state_steps]
        state = self._parameters.export_state() | {
            "position": torch.tensor(position, dtype=torch.int64),
            "counted_from": torch.tensor(count.counted_from, dtype=torch.int64),
        }
        if self.config.outer.moment_correction is not None:
            state[_LAST_RATE] = torch.tensor(last_rate(self._optimizer), dtype=torch.float64)
        own = {} if self._eager is None else self._eager.export_state()
        own |= {_OPTIMIZER_PREFIX + name: value for name, value in export_state(self._optimizer).items()}
        state |= own if not self.group.sharded else gather_parts(own, self.group)
        return {name: one.to("cpu", copy=True) for name, one in state.items()} if copied else state

    def import_state(self, state: dict[str, Tensor]) -> None:
        """Continue from `export_state`; raises LocalError if it belongs to another model.

        The optimizer begins anew if the state is from a group that split the parameters differently.
        """
        position, counted_from = state.get("position"), state.get("counted_from")
        if position is None or counted_from is None or not self._parameters.fits(state):
            raise LocalError("the saved learner state belongs to another run; remove it to start without")
        own = own_part(state, self.group)
        optimizer = named_after(_OPTIMIZER_PREFIX, own)
        import_state(self._optimizer, optimizer)
        if _LAST_RATE in state:
            set_rate(self._optimizer, float(state[_LAST_RATE]))
        self._parameters.import_state(state)
        if self._eager is not None:
            self._eager.import_state(own)
        count = self._count
        count.steps, count.tokens, count.window, self._progress_steps, self._state_steps = position.tolist()
        count.counted_from = counted_from.tolist()
        if not optimizer:
            self._state_steps = 0


def parameters_of(learner: Learner) -> list[Tensor]:
    """Return copies of the parameters, float32[elements] per fragment, in order; `load_all` takes them joined."""
    found = [torch.empty(fragment.elements) for fragment in learner.fragments]
    for index, out in enumerate(found):
        learner.snapshot(index, out)
    return found


def make_learner(
    config: RunConfig,
    batches: Batches,
    placement: Placement = Placement(),  # noqa: B008
    group: Ranks = ALONE,
) -> Learner:
    """Return the learner of a run (`peer.model.located`): its model at version 0, cut into the run's fragments."""
    model = build_run_model(config)
    return Learner(model, layouts_of(config), batches, config, placement, group)
