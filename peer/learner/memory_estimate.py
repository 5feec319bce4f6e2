"""The memory and disk that a run needs, by place: the learner's device, the host's memory beside it, the disk.

Sizes follow from the manifest. The memory for a step's activations is an estimate, which a learner replaces by a
measurement (`peer.learner.microbatch`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from coordinator.run.manifest import RunConfig
from coordinator.views import quantity
from dht.errors import UsageError
from peer.learner.devices import Placement
from peer.learner.gradient.objective import logits_at_once
from peer.learner.optimizers.bf16_step import BATCH_ELEMENTS, BYTES_PER_ELEMENT
from peer.learner.optimizers.by_rows import elements_at_once
from peer.learner.optimizers.muon import BATCH_ELEMENTS as MUON_ELEMENTS
from peer.learner.optimizers.muon import COPIES as MUON_COPIES
from peer.learner.shared_memory import slots_bytes
from peer.machine.free_memory import free_memory_bytes
from peer.model.build import parameter_specs
from peer.model.flat_parameters import DTYPES
from peer.model.rounding_remainders import REMAINDER_BYTES
from peer.numerics.codec import CODECS
from peer.numerics.fragments import FLOAT_BYTES, TensorSpec
from peer.storage.anchors import HELD_SHARE, STEPS_HELD, STEPS_KEPT, STEPS_SHARE, layouts_of
from peer.storage.generations import KEPT

Place = Literal["device", "host", "disk"]
# of state per element, at most; `optimizers.inner_optimizer.bytes_per_parameter` measures it but needs an import
OPTIMIZER_BYTES = {"adamw8bit": 2.1, "lion8bit": 1.1, "ademamix8bit": 3.1, "adamw": 8, "muon": 4, "muon8bit": 1.1}
BESIDE_MUON = {"muon": "adamw", "muon8bit": "adamw8bit"}  # for embeddings and vectors
SEQUENCES_PER_PASS = 32
LOGITS_COPIES = 4  # the logits, their float32 form, their exponentials, and their gradient
LOGITS_PER_PASS = 1 << 26  # 256 MiB of float32
OPERATIONS_PER_PASS = 1 << 38  # about ten seconds of one core
# Python, torch, transformers and the built-in text in one process (measured); tokens of files are mapped, not held
RUNTIME_BYTES = 400 << 20


@dataclass(frozen=True, slots=True)
class Need:
    """One use of memory or disk: `size_bytes` in one place.

    `trains`: only on a machine with a learner. `passes`: only during a step.
    """

    place: Place
    what: str
    size_bytes: int
    trains: bool = True
    passes: bool = False


@dataclass(frozen=True, slots=True)
class Footprint:
    """All needs of a run. `device` is the GPU's memory, or RAM for a learner without a GPU."""

    parameters: int
    needs: tuple[Need, ...]

    def bytes_in(self, place: Place) -> int:
        return sum(need.size_bytes for need in self.needs if need.place == place)

    @property
    def step_bytes(self) -> int:
        """Bytes that a step of all its sequences at once needs on the device, in addition to the state."""
        return sum(need.size_bytes for need in self.needs if need.place == "device" and need.passes)

    def summary(self) -> str:
        """Return the amounts by place, in one line."""
        state = quantity.size(self.bytes_in("device") - self.step_bytes)
        host, disk = (quantity.size(self.bytes_in(place)) for place in ("host", "disk"))
        step = quantity.size(self.step_bytes)
        trains = f"{state} for the model and optimizer, up to {step} more during a step"
        return f"{trains}, {host} for the peer beside it; disk: {disk}"


def footprint(
    config: RunConfig, sequences: int | None = None, recompute: bool = False, on_gpu: bool = True
) -> Footprint:
    """Return the needs of a learner and its peer with `sequences` in each forward pass (None: all of a step)."""
    elements, precise = _elements(config), DTYPES[config.inner.precision].itemsize
    rounded = rounding_bytes_per_parameter(config)
    step = max(
        activation_bytes(config, sequences, recompute, on_gpu), _copies_bytes(config), _norm_bytes(config, on_gpu)
    )
    withheld, state = _withheld_bytes(config), _state_bytes(config)
    layouts, overlap = layouts_of(config), config.pace.overlap
    largest = max(layout.elements for layout in layouts)
    needs = (
        *_base_needs(config),
        Need("device", f"parameters in {config.inner.precision}", precise * elements),
        Need("device", "gradients", precise * elements),
        Need("device", f"state of {config.inner.optimizer}", optimizer_bytes(config)),
        Need("device", "activations of a step, or copies in the optimizer", step, passes=True),
        Need("host", "shared with the learner: fragments in flight", slots_bytes(layouts, overlap)),
        Need("host", "what rounding cuts off", rounded * elements),
        Need("device", "the learner's own anchors, and what `eager` withholds", withheld * elements),
        Need("host", "anchors" + " and momentum" * (state > FLOAT_BYTES), state * elements, False),
        Need("host", "older ones, of rounds in flight", overlap * state * largest, False),
        Need("host", "newest steps, for others", int(_steps_bytes(config, STEPS_HELD, HELD_SHARE) * elements), False),
        Need("host", "rounds in flight: what is merged", overlap * _merged_bytes(config, largest), False),
        Need("host", "rounds in flight: what is contributed", overlap * _contributed_bytes(config, largest)),
        *_disk_needs(config),
    )
    return Footprint(elements, needs)


def _disk_needs(config: RunConfig) -> tuple[Need, ...]:
    """Return the needs on disk, which do not depend on fragments.

    Saves take turns (`peer.node.checkpointer`); the learner's are the largest.
    """
    steps = int(_steps_bytes(config, STEPS_KEPT, STEPS_SHARE) * _elements(config) / 2)
    return (
        Need("disk", "states as they were saved last", _state_bytes(config) * _elements(config)),
        Need("disk", "the learner's part, and the one before it", KEPT * _learner_file_bytes(config)),
        Need("disk", "earlier steps, for others", steps),
    )


def _learner_file_bytes(config: RunConfig) -> int:
    kept = DTYPES[config.inner.precision].itemsize + rounding_bytes_per_parameter(config) + _withheld_bytes(config)
    return kept * _elements(config) + optimizer_bytes(config)


def saved_bytes(config: RunConfig) -> int:
    """Return the bytes written until every part of the state has been saved again."""
    return _state_bytes(config) * _elements(config) + _learner_file_bytes(config)


def disk_bytes_per_parameter(config: RunConfig) -> float:
    """Return the bytes of checkpoints and earlier steps per parameter."""
    return sum(need.size_bytes for need in _disk_needs(config)) / _elements(config)


def host_bytes(config: RunConfig) -> int:
    """Return the RAM of a host, which keeps the same state as every peer and evaluates it in place."""
    kept = sum(need.size_bytes for need in footprint(config).needs if need.place == "host" and not need.trains)
    return RUNTIME_BYTES + kept + _evaluation_bytes(config)


def evaluator_bytes(config: RunConfig) -> int:
    """Return the bytes of a GPU that a host needs for an evaluation, with the model in float32."""
    return FLOAT_BYTES * _elements(config) + _evaluation_bytes(config)


def _evaluation_bytes(config: RunConfig) -> int:
    """Return the bytes of an evaluation, without the trained model."""
    data, model = config.data, config.model
    windows = 8 * 2 * data.evaluation_tokens  # int64, two of them
    one_pass = sequences_per_pass(data.context_tokens, model.vocabulary, _elements(config)) * data.context_tokens
    one_pass = min(one_pass, max(data.context_tokens, data.evaluation_tokens))
    layer = FLOAT_BYTES * one_pass * (16 * model.hidden_size + 5 * model.intermediate_size)
    logits = 3 * FLOAT_BYTES * one_pass * model.vocabulary
    base = sum(need.size_bytes for need in _base_needs(config))
    return base + windows + layer + logits


def sequences_per_pass(context_tokens: int, vocabulary: int, parameters: int) -> int:
    """Return how many sequences an evaluation passes through a model at once; their logits take the most memory."""
    most = (
        LOGITS_PER_PASS // (context_tokens * vocabulary),
        OPERATIONS_PER_PASS // max(1, 2 * parameters * context_tokens),
    )
    return max(1, min(SEQUENCES_PER_PASS, *most))


def _base_needs(config: RunConfig) -> tuple[Need, ...]:
    """Return the need of an adapter run's base model, which is not exchanged, trained or kept."""
    adapter = config.adapter
    return () if adapter is None else (Need("device", f"the base in {adapter.held}", adapter.base_bytes),)


def _elements(config: RunConfig) -> int:
    return sum(tensor.elements for tensor in parameter_specs(config.model))


def optimizer_bytes(config: RunConfig) -> int:
    """Return the bytes of the inner optimizer's state."""
    name = config.inner.optimizer
    hidden = OPTIMIZER_BYTES[name]
    other = OPTIMIZER_BYTES[BESIDE_MUON.get(name, name)]
    return int(
        sum(
            tensor.elements * (other if tensor.embedding or len(tensor.shape) != 2 else hidden)
            for tensor in parameter_specs(config.model)
        )
    )


def kept_bytes_per_parameter(config: RunConfig) -> float:
    """Return the bytes per parameter on a learner's device between steps: values, gradients, optimizer state."""
    return 2 * DTYPES[config.inner.precision].itemsize + optimizer_bytes(config) / _elements(config)


def rounding_bytes_per_parameter(config: RunConfig) -> int:
    """Return the bytes per parameter, off the device, of the remainders that bfloat16 rounding cuts off."""
    return REMAINDER_BYTES * (config.inner.precision == "bfloat16")


def _withheld_bytes(config: RunConfig) -> int:
    """Return the bytes per element that a learner keeps for the adoption `eager`."""
    return 2 * FLOAT_BYTES * (config.outer.adoption == "eager")


def _state_bytes(config: RunConfig) -> int:
    """Return a certified state's bytes per element: the anchor, and the momentum where steps need it."""
    return FLOAT_BYTES * (2 if config.outer.momentum else 1)


def _steps_bytes(config: RunConfig, least: int, share: float) -> float:
    """Return the bytes per element of `least` steps, or of as many as fit this share of an anchor, if more."""
    encoded = CODECS[config.outer.result_codec].encoded_bytes(1 << 20) / (1 << 20)
    return max(least * encoded, share * FLOAT_BYTES)


def _merged_bytes(config: RunConfig, elements: int) -> int:
    """Return a round's bytes on every peer: merged gradient, applied state, room for the next, encoded results."""
    encoded = CODECS[config.outer.result_codec].encoded_bytes(elements)
    return elements * (FLOAT_BYTES + 2 * _state_bytes(config)) + 2 * encoded


def _contributed_bytes(config: RunConfig, elements: int) -> int:
    """Return a round's further bytes for a learner: its snapshot, and all encoded parts of this and the last round."""
    return elements * FLOAT_BYTES + 4 * CODECS[config.outer.contribution_codec].encoded_bytes(elements)


def activation_bytes(config: RunConfig, sequences: int | None, recompute: bool, on_gpu: bool = True) -> int:
    """Estimate the bytes of activations that a step keeps for its gradient, and of its loss.

    `sequences` go through at once (None: all of a step). A CPU splits a step into pieces, and logits are those of one
    piece on any device. The gradient of the largest tensor, such as the head, is whole before it is added.
    """
    model, data = config.model, config.data
    layer = 16 * model.hidden_size + 5 * model.intermediate_size
    layers = model.layers * model.hidden_size + layer if recompute else model.layers * layer
    most = None if on_gpu else Placement().at_once(data.context_tokens)
    tokens = data.context_tokens * min(sequences or data.sequences_per_step, most or data.sequences_per_step)
    logits = min(tokens * model.vocabulary, max(logits_at_once(on_gpu), model.vocabulary))
    largest = max(tensor.elements for tensor in parameter_specs(model))
    return DTYPES[config.inner.precision].itemsize * (tokens * layers + largest) + LOGITS_COPIES * FLOAT_BYTES * logits


def _norm_bytes(config: RunConfig, on_gpu: bool) -> int:
    """Return the bytes of the float32 copy of a bfloat16 gradient that a CPU makes to compute the norm."""
    return 0 if on_gpu or config.inner.precision != "bfloat16" else FLOAT_BYTES * _elements(config)


def _copies_bytes(config: RunConfig) -> int:
    """Return the bytes of the optimizer's temporary float32 copies.

    8-bit states and rounded parameters are updated through float32 copies, tensor by tensor. Large tensors take some
    rows at a time, unless Muon needs them whole; it keeps a workspace for a batch of matrices.
    """
    largest = max(_copied_at_once(config, tensor) for tensor in parameter_specs(config.model))
    rounding = BYTES_PER_ELEMENT * max(BATCH_ELEMENTS, largest) if config.inner.precision == "bfloat16" else 0
    workspace = MUON_COPIES * FLOAT_BYTES * min(max(MUON_ELEMENTS, _largest_matrix(config)), _elements(config))
    return 5 * FLOAT_BYTES * largest + workspace * (config.inner.optimizer == "muon8bit") + rounding


def _copied_at_once(config: RunConfig, tensor: TensorSpec) -> int:
    """Return how many elements of a tensor the optimizer copies at a time."""
    inner = config.inner
    is_whole = (inner.optimizer == "muon8bit" and not tensor.embedding) or not inner.keeps_8_bits
    return tensor.elements if is_whole else elements_at_once(tensor.shape)


def _largest_matrix(config: RunConfig) -> int:
    """Return the elements of the largest matrix that Muon orthogonalises; 0 for a model of embeddings only."""
    return max((one.elements for one in parameter_specs(config.model) if not one.embedding), default=0)


def least_bytes(config: RunConfig, on_gpu: bool = True, devices: int = 1) -> int:
    """Return the least bytes a learner needs on its device: one sequence at a time, activations recomputed.

    If several `devices` share the model, return the bytes of each. Tensors outside the layers are whole during a step.
    """
    taken = footprint(config, 1, True, on_gpu)
    state = taken.bytes_in("device") - taken.step_bytes
    if devices == 1:
        return state + taken.step_bytes
    embeddings = sum(tensor.elements for tensor in parameter_specs(config.model) if tensor.embedding)
    return state // devices + taken.step_bytes + 2 * FLOAT_BYTES * embeddings


def available_bytes(device: str) -> int:
    """Return the bytes a new process can use now, on this CUDA device or in RAM (`peer.machine.free_memory`)."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_memory_bytes()


def check_memory(needed_bytes: int, free_bytes: int) -> None:
    """Raise UsageError if `needed_bytes` exceeds `free_bytes`."""
    if needed_bytes > free_bytes:
        raise UsageError(
            f"this run needs about {needed_bytes / 2**20:,.0f} MiB of memory here and only "
            f"{max(free_bytes, 0) / 2**20:,.0f} MiB are free or allowed; "
            "close other programs, choose a smaller model or shorter sequences, or use another machine"
        )
