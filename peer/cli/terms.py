"""The terms of a run for the owner of this machine, in words, before anything but its manifest is fetched.

Sizes are computed from the manifest, whose hash is in the invite. The speed of steps is estimated from a measurement.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import Manifest, RunConfig
from coordinator.views import quantity
from dht.units import DAY_SECONDS, GIGABYTE_BYTES
from peer.learner.memory_estimate import RUNTIME_BYTES, footprint, least_bytes, saved_bytes
from peer.machine.text import printable, quoted
from peer.model.build import parameter_specs
from peer.model.located import held_as
from peer.node.checkpointer import rest_seconds
from peer.node.options import NodeOptions
from peer.node.slow_steps import TOO_LATE, step_seconds_max, step_words
from peer.numerics.plugins import parts_of
from peer.plan.cost import Workload, sent_bits

HOURS_PER_YEAR = 8766
YEARS_SHOWN_MAX = 100
ENDURANCE_GIGABYTES = 600_000  # makers promise this of home SSDs of a terabyte
FLOPS_PER_PARAMETER_AND_TOKEN = 6  # forward and backward of a dense transformer
FLOPS_PER_FROZEN_AND_TOKEN = 4  # for a base model, whose weights need no gradient
GROUP_TYPICAL = 8  # members of a group: fewer send less, more send up to a quarter more of large fragments
IN_GROUP = f"in a group of {GROUP_TYPICAL}"
TEXT_CHARACTERS_MAX = 80  # shown of a text by the organiser
TRAINING_SHARE = 0.3  # training reaches this share of a device's speed at matrix products
DATA_WORDS = {
    "stdlib": "the source text of this machine's own Python library; nothing is fetched, nothing leaves",
    "own": "what your own loop reads",
}


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources of this machine: free bytes of RAM and disk, and float32 operations per second of its processor.

    `gpu_bytes` is what the learner may take of the GPU with the most room, 0 if it would use none.
    """

    memory_bytes: int
    disk_bytes: int
    flops: float
    gpu_bytes: int = 0


def parameters(config: RunConfig) -> int:
    """Return the number of the model's trained parameters."""
    return sum(tensor.elements for tensor in parameter_specs(config.model))


def uses_gpu(config: RunConfig, machine: Machine) -> bool:
    """Whether a learner fits on the GPU."""
    return 0 < least_bytes(config) <= machine.gpu_bytes


def memory_bytes(config: RunConfig, machine: Machine) -> int:
    """Return the least RAM of the learner and of the peer beside it, each with its imports."""
    learner = 0 if uses_gpu(config, machine) else least_bytes(config, on_gpu=False)
    return learner + footprint(config).bytes_in("host") + 2 * RUNTIME_BYTES


def disk_bytes(config: RunConfig, base: str = "") -> int:
    """Return the most bytes that checkpoints of this run take, reached while the learner's part is there twice.

    They include the base model, unless the owner brings it as the folder `base` or peers do not give it.
    """
    file = None if config.adapter is None or base else config.adapter.base_file
    return footprint(config).bytes_in("disk") + (0 if file is None else file.size_bytes)


def upload_bytes_per_version(config: RunConfig, members: int = GROUP_TYPICAL) -> int:
    """Return the bytes that a member of a group sends per version of all fragments, as the planner counts them.

    They are its contributions, its results as a reducer, opened leaves for spot checks, and statements.
    """
    work = Workload(parameters(config), config.tokens_per_step, config.pace, config.outer)
    return round(config.pace.fragments * sent_bits(work, members) / 8)


def step_seconds_at(config: RunConfig, flops: float) -> float:
    """Estimate the seconds of one inner step at this speed."""
    work = FLOPS_PER_PARAMETER_AND_TOKEN * parameters(config)
    if config.adapter is not None:
        work += FLOPS_PER_FROZEN_AND_TOKEN * config.adapter.base_elements
    return work * config.tokens_per_step / (TRAINING_SHARE * flops)


def step_seconds_known(config: RunConfig, machine: Machine) -> float | None:
    """Estimate the seconds of one inner step on this machine's processor.

    None on a GPU and for a user's own loop: neither is measured.
    """
    return None if uses_gpu(config, machine) or config.model.is_own else step_seconds_at(config, machine.flops)


def upload_bytes_per_day(config: RunConfig, flops: float, step_seconds: float) -> float:
    """Estimate the bytes that rounds send in a day of training at this speed; states for newcomers come on top."""
    seconds = config.pace.steps_per_version * max(step_seconds_at(config, flops), step_seconds)
    return upload_bytes_per_version(config) * DAY_SECONDS / seconds


def describe(manifest: Manifest, options: NodeOptions, machine: Machine) -> str:
    """Return several lines: organiser, model and data, what the run takes from this machine, what others see of it."""
    config = held_as(manifest.config, options.files.base_precision)
    name = f"the name {options.name!r}, " if options.name else ""
    limits = options.limits
    capped = [f"{limits.upload_mbit:g} Mbit/s"] if limits.upload_mbit else []
    capped += [f"{limits.upload_gigabytes_per_day:g} GB a day"] if limits.upload_gigabytes_per_day else []
    cap = f"; your limit is {' and '.join(capped)}" if capped else ""
    memory = memory_words(config, machine)
    memory += _within(memory_bytes(config, machine), machine.memory_bytes, limits.memory_gigabytes)
    versions = quantity.counted(config.versions, "certified version")
    rows = (
        ("run", f"{config.name} {manifest.run_id.hex()[:12]}, ends after {versions}"),
        ("organiser", f"key {manifest.organiser}; founding peers: {len(manifest.founders)}"),
        ("model", _model(config)),
        *_base_row(config),
        ("data", _data(config.data)),
        ("memory", memory),
        *([("GPU memory", gpu_words(config, machine))] if uses_gpu(config, machine) else []),
        (
            "processor",
            f"{limits.threads(options.threads)} of the cores, niceness {max(options.niceness, limits.niceness)}",
        ),
        *_late_row(config, machine),
        ("disk", _disk(config, options, machine)),
        ("upload", f"{upload_words(config, machine, options.step_seconds)}, and as much download{cap}"),
        ("others see", f"this machine's address, a key made for it, {name}its device, progress, loss and traffic"),
        ("code", _code(config)),
    )
    said = config.about.rows() if config.about is not None else []
    return "\n".join(f"  {label:<12}  {printable(text)}" for label, text in (*said, *rows))


def memory_words(config: RunConfig, machine: Machine) -> str:
    """Describe the RAM of the learner, unless it uses a GPU, and of the peer beside it."""
    least, free = quantity.size(memory_bytes(config, machine)), quantity.size(machine.memory_bytes)
    beside = f"{quantity.size(footprint(config).bytes_in('host'))} beside the learner"
    programs = f"{quantity.size(2 * RUNTIME_BYTES)} for the programs"
    learner = "" if uses_gpu(config, machine) else f"{learner_words(config, on_gpu=False)}, "
    return f"at least {least}, of {free} free: {learner}{beside}, {programs}"


def gpu_words(config: RunConfig, machine: Machine) -> str:
    """Describe the GPU memory that the learner takes."""
    least, free = quantity.size(least_bytes(config)), quantity.size(machine.gpu_bytes)
    return f"at least {least}, of {free} free or allowed: {learner_words(config, on_gpu=True)}"


def learner_words(config: RunConfig, on_gpu: bool) -> str:
    """Describe the memory that a learner takes on its device: its state, and its steps, which take more if they can."""
    least = footprint(config, 1, True, on_gpu)
    state = quantity.size(least.bytes_in("device") - least.step_bytes)
    return f"{state} of state, {quantity.size(least.step_bytes)} or more for a step"


def upload_words(config: RunConfig, machine: Machine, step_seconds: float = 0.0) -> str:
    """Describe the upload of a day in a typical group.

    If this machine's speed is unknown, describe the upload per version, and per day at one step a second.
    """
    if step_seconds_known(config, machine) is None:
        steps, a_version = config.pace.steps_per_version, upload_bytes_per_version(config)
        a_day = quantity.size(a_version / steps * DAY_SECONDS)
        every = f"{quantity.size(a_version)} every {steps} steps, which is {a_day} a day at a step a second"
        return f"{every}, {IN_GROUP}"
    a_day = quantity.size(upload_bytes_per_day(config, machine.flops, step_seconds))
    return f"about {a_day} a day at this machine's speed, {IN_GROUP}"


def _disk(config: RunConfig, options: NodeOptions, machine: Machine) -> str:
    needed, limits = disk_bytes(config, options.files.base), options.limits
    room = f"{quantity.size(needed)} in {options.data_directory}, of {quantity.size(machine.disk_bytes)} free"
    room += _within(needed, machine.disk_bytes, limits.disk_gigabytes)
    saved = f"saved about every {quantity.rough(rest_seconds(saved_bytes(config), limits))}"
    hourly = limits.written_gigabytes_per_hour
    if not hourly:
        return f"{room}; {saved}"
    years = ENDURANCE_GIGABYTES / (hourly * HOURS_PER_YEAR)
    bears = f"{years:.1f} years" if years < YEARS_SHOWN_MAX else f"over {YEARS_SHOWN_MAX} years"
    written = f"with at most {hourly:g} GB an hour written on average"
    lasts = f"an SSD rated for 600 TB would last {bears} with that"
    return f"{room}; {saved}, {written}; {lasts}"


def _within(needed: int, free: int, limit_gigabytes: float) -> str:
    """Compare a need with the free room and with the owner's limit, 0 for none."""
    text = "; that is more than is free" if needed > free else ""
    if not limit_gigabytes:
        return text
    enough = "" if needed <= limit_gigabytes * GIGABYTE_BYTES else ", which is too little"
    return f"{text}; your limit is {limit_gigabytes:g} GB{enough}"


def _late_row(config: RunConfig, machine: Machine) -> list[tuple[str, str]]:
    """Warn if the processor trains and is too slow for the run's rounds."""
    seconds = step_seconds_known(config, machine)
    if seconds is None or seconds <= step_seconds_max(config.pace):
        return []
    return [("steps", f"estimated: {step_words(seconds, config.pace)}. {TOO_LATE}")]


def _code(config: RunConfig) -> str:
    brought = [f"{part.name} of the package {part.package}" for part in parts_of(config)]
    also = f", for this run also {' and '.join(brought)}" if brought else ""
    chat = "; the organiser's chat template runs in a sandbox" if config.data.chat_template else ""
    return f"none comes from the network: Muster runs only what is installed here{also}{chat}"


def _model(config: RunConfig) -> str:
    model, count = config.model, quantity.count(parameters(config))
    if model.is_own:
        return f"{count} parameters of a model that every peer brings"
    what = "parameters" if config.adapter is None else f"parameters of an adapter of rank {config.adapter.rank}"
    return f"{model.family}, {count} {what}, {quantity.counted(model.layers, 'layer')} of width {model.hidden_size}"


def _base_row(config: RunConfig) -> list[tuple[str, str]]:
    """Describe the base model, if the run trains an adapter."""
    adapter, source = config.adapter, config.model.source
    if adapter is None:
        return []
    download = f"about {quantity.size(2 * adapter.base_elements)} in 16 bits"
    hub = f"the Hugging Face Hub ({quoted(source, TEXT_CHARACTERS_MAX)})"
    fetched = f"from {hub}, {download}, unless you name a copy with --base"
    owner = ", or as you say with --base-precision" if adapter.base_precision == "any" else ""
    where = fetched if source else "of your own, which you name with --base"
    if (file := adapter.base_file) is not None:
        where = f"from peers of the run, {quantity.size(file.size_bytes)}, unless you name a copy with --base"
    held = f"{quantity.size(adapter.base_bytes)} in {adapter.held}{owner}"
    return [("base", f"{quantity.count(adapter.base_elements)} parameters {where}; {held}; it stays as it is")]


def _data(spec: DataSpec) -> str:
    if spec.source == "hub":
        return f"the data set {quoted(spec.path, TEXT_CHARACTERS_MAX)}, from the Hugging Face Hub"
    return DATA_WORDS.get(spec.source, f"{spec.source} files of your own, which you name with --corpus")
