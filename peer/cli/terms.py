"""What taking part in a run means for the owner of this machine, in words, before anything of it is fetched.

Sizes are computed from the manifest, which is hashed by the invite; the rate of the steps is measured here.
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
from peer.numerics.codec import CODECS
from peer.numerics.plugins import parts_of

HOURS_PER_YEAR = 8766
YEARS_SHOWN_MAX = 100
ENDURANCE_GIGABYTES = 600_000  # what makers of home SSDs of a terabyte promise
FLOPS_PER_PARAMETER_AND_TOKEN = 6  # forward and backward of a dense transformer
FLOPS_PER_FROZEN_AND_TOKEN = 4  # of a base whose weights have no gradient
TEXT_CHARACTERS_MAX = 80  # of what an organiser wrote
TRAINING_SHARE = 0.3  # of a device's speed at matrix products that training reaches
DATA_WORDS = {
    "stdlib": "the source text of this machine's own Python library; nothing is fetched, nothing leaves",
    "own": "what your own loop reads",
}


@dataclass(frozen=True, slots=True)
class Machine:
    """What this machine has: free bytes of RAM and disk, and float32 operations per second of its processor.

    `gpu_bytes` are what the learner may take of the GPU that has most of it, 0 where it would use none.
    """

    memory_bytes: int
    disk_bytes: int
    flops: float
    gpu_bytes: int = 0


def parameters(config: RunConfig) -> int:
    """Trained numbers of the model."""
    return sum(tensor.elements for tensor in parameter_specs(config.model))


def uses_gpu(config: RunConfig, machine: Machine) -> bool:
    """Whether a learner finds room for itself on the GPU."""
    return 0 < least_bytes(config) <= machine.gpu_bytes


def memory_bytes(config: RunConfig, machine: Machine) -> int:
    """Least RAM of the learner and of the peer beside it, each with what it imports."""
    learner = 0 if uses_gpu(config, machine) else least_bytes(config, on_gpu=False)
    return learner + footprint(config).bytes_in("host") + 2 * RUNTIME_BYTES


def disk_bytes(config: RunConfig, base: str = "") -> int:
    """What the checkpoints of this run take at most, while the learner's part lies there twice.

    With the base, if that is given, and not here as a folder of the owner's own.
    """
    file = None if config.adapter is None or base else config.adapter.base_file
    return footprint(config).bytes_in("disk") + (0 if file is None else file.size_bytes)


def upload_bytes_per_version(config: RunConfig, members: int | None = None) -> int:
    """Sent per version of all fragments: own contribution in parts, and as reducer a part's result to everybody.

    Of a group of so many, each keeps its own part; by itself the most that it can be, for a group without end.
    """
    elements = parameters(config)
    codecs = (config.outer.contribution_codec, config.outer.result_codec)
    whole = sum(CODECS[codec].encoded_bytes(elements) for codec in codecs)
    return whole if members is None else whole * (members - 1) // members


def step_seconds_at(config: RunConfig, flops: float) -> float:
    """About how long one inner step takes at this speed."""
    work = FLOPS_PER_PARAMETER_AND_TOKEN * parameters(config)
    if config.adapter is not None:
        work += FLOPS_PER_FROZEN_AND_TOKEN * config.adapter.base_elements
    return work * config.tokens_per_step / (TRAINING_SHARE * flops)


def step_seconds_known(config: RunConfig, machine: Machine) -> float | None:
    """The same on this machine's processor; nobody has measured a GPU, nor a loop of one's own."""
    return None if uses_gpu(config, machine) or config.model.is_own else step_seconds_at(config, machine.flops)


def upload_bytes_per_day(config: RunConfig, flops: float, step_seconds: float) -> float:
    """About what rounds send in a day of training at this speed; giving states to newcomers comes on top."""
    seconds = config.pace.steps_per_version * max(step_seconds_at(config, flops), step_seconds)
    return upload_bytes_per_version(config) * DAY_SECONDS / seconds


def describe(manifest: Manifest, options: NodeOptions, machine: Machine) -> str:
    """Several lines: whose run, which model and data, what it takes from this machine, what others see of it."""
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
    """RAM of the learner, unless that has a GPU, and of the peer beside it."""
    least, free = quantity.size(memory_bytes(config, machine)), quantity.size(machine.memory_bytes)
    beside = f"{quantity.size(footprint(config).bytes_in('host'))} beside the learner"
    programs = f"{quantity.size(2 * RUNTIME_BYTES)} for the programs"
    learner = "" if uses_gpu(config, machine) else f"{learner_words(config, on_gpu=False)}, "
    return f"at least {least}, of {free} free: {learner}{beside}, {programs}"


def gpu_words(config: RunConfig, machine: Machine) -> str:
    """What the learner takes of a GPU."""
    least, free = quantity.size(least_bytes(config)), quantity.size(machine.gpu_bytes)
    return f"at least {least}, of {free} free or allowed: {learner_words(config, on_gpu=True)}"


def learner_words(config: RunConfig, on_gpu: bool) -> str:
    """What a learner takes of its device, state and steps apart: these take more where there is room."""
    least = footprint(config, 1, True, on_gpu)
    state = quantity.size(least.bytes_in("device") - least.step_bytes)
    return f"{state} of state, {quantity.size(least.step_bytes)} or more for a step"


def upload_words(config: RunConfig, machine: Machine, step_seconds: float = 0.0) -> str:
    """A day's, or where nobody knows how fast this machine is, a version's and that of a day of quick steps."""
    if step_seconds_known(config, machine) is None:
        steps, a_version = config.pace.steps_per_version, upload_bytes_per_version(config)
        a_day = quantity.size(a_version / steps * DAY_SECONDS)
        return f"{quantity.size(a_version)} every {steps} steps, which is {a_day} a day at a step a second"
    a_day = quantity.size(upload_bytes_per_day(config, machine.flops, step_seconds))
    return f"about {a_day} a day at this machine's speed"


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
    """What follows from what is free, and from the owner's limit."""
    text = "; that is more than is free" if needed > free else ""
    if not limit_gigabytes:
        return text
    enough = "" if needed <= limit_gigabytes * GIGABYTE_BYTES else ", which is too little"
    return f"{text}; your limit is {limit_gigabytes:g} GB{enough}"


def _late_row(config: RunConfig, machine: Machine) -> list[tuple[str, str]]:
    """Nothing where the processor is fast enough for the run's rounds, or is not what trains."""
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
    """Only for runs that train an adapter."""
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
