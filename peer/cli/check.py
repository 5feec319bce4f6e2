"""`muster check`: validate a run file, and say what the run takes from the machines that join it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from coordinator.run.manifest import RunConfig
from dht.errors import UsageError
from dht.units import DAY_SECONDS
from peer.cli import arguments
from peer.cli.common import AsJson, RunFileOption, print_json

FULL_STEP_SECONDS = 1.0  # the default pace for which traffic and network speed are told
TUNED_WIDTH = 128  # the model width at which these rates were best; a wider model wants less, by 1/√width
TUNED_RATES = {"muon8bit": 1.5e-2, "muon": 1.5e-2, "adamw8bit": 4.5e-3, "adamw": 4.5e-3}
RATE_TIMES_MAX = 2.0  # a rate above this multiple of the one that suits the width gets a warning
CARD_SIZES = (4, 6, 8, 10, 12, 16, 24, 32, 48, 80)  # GB
RAM_SIZES = (4, 8, 16, 32, 64, 128, 256)
FREE_SHARE = 0.85  # of a machine's memory, which other programs leave free
CUT_SHARE_MAX = 0.9  # advise even fragments if they take at most this share of the memory beside a learner
WHOLE_FROM = 10  # Mbit/s from which no fraction is shown
SPREAD = 3  # no round waits for a line with this many times the average rate


def check(
    file: Annotated[Path | None, typer.Argument(help="The run file (TOML).")] = None,
    config: RunFileOption = None,
    step_seconds: Annotated[
        float, typer.Option(min=1e-3, help="How long an inner step takes on the machines that you expect.")
    ] = FULL_STEP_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Say whether a run file is valid, and what the run takes."""
    path = arguments.run_file(file, config)
    if path is None:
        raise UsageError("name the run file to check, as in: muster check run.toml")
    run = arguments.run_config(path, None)
    from peer.learner.memory_estimate import available_bytes
    from peer.model.description import Description, describe
    from peer.model.sketch import lacks_base, with_shapes

    described = Description(with_shapes(run)) if lacks_base(run) else describe(run, available_bytes("cpu"))
    if described.note:
        typer.echo(described.note, err=True)
    known = described.config
    if not as_json:
        typer.echo(findings(known, path, step_seconds))
        return
    print_json(
        {
            "file": str(path),
            "name": known.name,
            "versions": known.versions,
            "fragments": known.pace.fragments,
            "needs": Needs.of(known, step_seconds),
            "remarks": dict((*_base_rows(known), *_cut_rows(known), *_rate_rows(known))),
        }
    )


@dataclass(frozen=True, slots=True)
class Needs:
    """The resources that a run takes from its host and from one participant, with a GPU or without."""

    parameters: int
    card_bytes: int
    ram_bytes: int
    ram_bytes_without_card: int
    host_ram_bytes: int
    disk_bytes: int
    version_seconds: float
    upload_bytes_per_day: float
    line_mbit: float

    @classmethod
    def of(cls, config: RunConfig, step_seconds: float) -> Needs:
        """Compute the needs for machines on which an inner step takes so long."""
        from peer.cli import terms
        from peer.learner.memory_estimate import RUNTIME_BYTES, footprint, host_bytes, least_bytes

        seconds = config.pace.steps_per_version * step_seconds
        per_version = terms.upload_bytes_per_version(config)
        return cls(
            parameters=terms.parameters(config),
            card_bytes=least_bytes(config),
            ram_bytes=footprint(config).bytes_in("host") + 2 * RUNTIME_BYTES,
            ram_bytes_without_card=terms.memory_bytes(config, terms.Machine(0, 0, 1.0)),
            host_ram_bytes=host_bytes(config),
            disk_bytes=terms.disk_bytes(config),
            version_seconds=seconds,
            upload_bytes_per_day=per_version * DAY_SECONDS / seconds,
            line_mbit=SPREAD * 8 * per_version / seconds / 1e6,
        )


def findings(config: RunConfig, file: Path, step_seconds: float) -> str:
    """Return several lines for the organiser; sizes are for one participating machine, unless they name the host."""
    from coordinator.views import quantity
    from peer.cli.terms import IN_GROUP, learner_words

    need, steps = Needs.of(config, step_seconds), config.pace.steps_per_version
    card, ram, without, host, disk, a_day = map(
        quantity.size,
        (
            *(need.card_bytes, need.ram_bytes, need.ram_bytes_without_card, need.host_ram_bytes),
            *(need.disk_bytes, need.upload_bytes_per_day),
        ),
    )
    always = f"for a machine that is on all day {IN_GROUP}"  # `muster plan swarm` counts hours and groups
    line = f"{need.line_mbit:,.0f}" if need.line_mbit >= WHOLE_FROM else f"{need.line_mbit:.2g}"
    rows = (
        (
            "valid",
            f"{file}: the run {config.name}, {config.versions} versions of {config.pace.fragments} fragments",
        ),
        ("model", f"{config.model.family}, {quantity.count(need.parameters)} parameters"),
        *_base_rows(config),
        ("on a GPU", f"{card} of GPU memory ({learner_words(config, on_gpu=True)}), {ram} of RAM"),
        ("no GPU", f"{without} of RAM ({learner_words(config, on_gpu=False)})"),
        ("a host", f"{host} of RAM; it evaluates and exports, and does not train"),
        ("disk", disk),
        *_cut_rows(config),
        *_rate_rows(config),
        ("pace", f"a version of each fragment every {steps} steps, about {quantity.rough(need.version_seconds)}"),
        ("traffic", f"{a_day} a day up and as much down, {always}, at {step_seconds:g} s a step"),
        ("network", f"{line} Mbit/s each way, so that no round waits for it"),
        *_machine_rows(need, f"{disk} of disk, and {line} Mbit/s each way"),
        ("next", f"try it here: muster lab {file}; begin it: muster host {file} --listen 0.0.0.0 --port 7400"),
    )
    return "\n".join(f"  {label:<8}  {text}" for label, text in rows)


def _machine_rows(need: Needs, besides: str) -> tuple[tuple[str, str], ...]:
    """Describe the smallest machines on sale that can join, with FREE_SHARE of their memory free."""
    gpu, ram, without = (
        next(
            (f"at least {size} GB" for size in sizes if size * FREE_SHARE >= needed / (1 << 30)),
            f"more than {sizes[-1]} GB",
        )
        for sizes, needed in (
            (CARD_SIZES, need.card_bytes),
            (RAM_SIZES, need.ram_bytes),
            (RAM_SIZES, need.ram_bytes_without_card),
        )
    )
    return (
        ("can join", f"a machine whose GPU has {gpu}, with {ram} of RAM"),
        ("", f"or a machine without a GPU, with {without} of RAM"),
        ("", f"each with {besides}"),
    )


def _base_rows(config: RunConfig) -> tuple[tuple[str, str], ...]:
    """Describe the base model of an adapter; its weights may not be here yet."""
    from coordinator.views import quantity
    from peer.model.sketch import lacks_base

    adapter = config.adapter
    if adapter is None:
        return ()
    held = f"{quantity.size(adapter.base_bytes)} in {adapter.held}"
    who = "every peer brings it, and nobody sends it"
    if adapter.give_base:
        size = "" if adapter.base_file is None else f" {quantity.size(adapter.base_file.size_bytes)}"
        who = f"peers without a copy get it from the others,{size} once"
    text = f"{quantity.count(adapter.base_elements)} parameters, {held}; {who}"
    missing = f"{config.model.source} has only its config.json: bring its weights before muster host"
    return (("base", text), *([("missing", missing)] if lacks_base(config) else []))


def _cut_rows(config: RunConfig) -> tuple[tuple[str, str], ...]:
    """Advise cutting embeddings, if one makes its fragment so large that rounds take much more memory."""
    from coordinator.views import quantity
    from peer.learner.memory_estimate import footprint

    if config.outer.moment_correction is not None:
        return ()
    even = config.model_copy(update={"pace": config.pace.model_copy(update={"cut_embeddings": True})})
    needed, less = (footprint(one).bytes_in("host") for one in (config, even))
    if less > CUT_SHARE_MAX * needed:
        return ()
    told = f"pace.cut_embeddings = true takes {quantity.size(needed - less)} less RAM: one embedding makes a fragment"
    return (("advice", f"{told} much larger than the others"),)


def _rate_rows(config: RunConfig) -> tuple[tuple[str, str], ...]:
    """Warn if the peak learning rate suits a smaller model; never for models that peers bring."""
    tuned = TUNED_RATES.get(config.inner.optimizer)
    if tuned is None or config.model.is_own:
        return ()
    suits = tuned * math.sqrt(TUNED_WIDTH / config.model.hidden_size)
    if config.inner.learning_rate <= RATE_TIMES_MAX * suits:
        return ()
    told = f"inner.learning_rate = {config.inner.learning_rate:g} suits a smaller model"
    return (("warning", f"{told}; for {config.model.hidden_size} wide, begin with {suits:.1g}"),)
