"""`muster check`: whether a run file is valid, and what the run takes from the machines that join it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from coordinator.run.manifest import RunConfig
from peer.cli import arguments

FULL_STEP_SECONDS = 1.0  # of a machine to which lines are told: one that makes a step a second
TUNED_WIDTH = 128  # at which these rates are the best that we measured; what is wider wants less, by 1/√width
TUNED_RATES = {"muon8bit": 1.5e-2, "muon": 1.5e-2, "adamw8bit": 4.5e-3, "adamw": 4.5e-3}
RATE_TIMES_MAX = 2.0  # that much more than what suits a width is worth a warning
CARD_SIZES = (4, 6, 8, 10, 12, 16, 24, 32, 48, 80)  # GB
RAM_SIZES = (4, 8, 16, 32, 64, 128, 256)
FREE_SHARE = 0.85  # that the rest of the machine leaves
CUT_SHARE_MAX = 0.9  # of the memory beside a learner that even fragments take, if that is worth a word
WHOLE_FROM = 10  # Mbit/s that are told without a fraction
SPREAD = 3  # lines: how many times this much is a line that no round waits for


def check(
    file: Annotated[Path, typer.Argument(help="The run file (TOML).")],
    step_seconds: Annotated[
        float, typer.Option(min=1e-3, help="How long an inner step takes on the machines that you expect.")
    ] = FULL_STEP_SECONDS,
) -> None:
    """Say whether a run file is valid, and what the run takes."""
    config = arguments.run_config(file, None)
    from peer.learner.memory_estimate import available_bytes
    from peer.model.description import describe
    from peer.model.sketch import lacks_base, with_shapes

    known = with_shapes(config) if lacks_base(config) else describe(config, available_bytes("cpu")).config
    typer.echo(findings(known, file, step_seconds))


def findings(config: RunConfig, file: Path, step_seconds: float) -> str:
    """Several lines, for the organiser; sizes are those of one machine that takes part."""
    from coordinator.views import quantity
    from peer.cli import terms
    from peer.cli.terms import Machine
    from peer.learner.memory_estimate import RUNTIME_BYTES, footprint, host_bytes, least_bytes

    steps = config.pace.steps_per_version
    per_version = terms.upload_bytes_per_version(config)
    a_day = per_version * terms.SECONDS_PER_DAY / (steps * step_seconds)
    mbit = SPREAD * 8 * per_version / (steps * step_seconds) / 1e6
    card_bytes, ram_bytes = least_bytes(config), footprint(config).bytes_in("host") + 2 * RUNTIME_BYTES
    without_bytes = terms.memory_bytes(config, Machine(0, 0, 1.0))
    disk, line = quantity.size(terms.disk_bytes(config)), f"{mbit:,.0f}" if mbit >= WHOLE_FROM else f"{mbit:.2g}"
    rows = (
        (
            "valid",
            f"{file}: the run {config.name}, {config.versions} versions of {config.pace.fragments} fragments",
        ),
        ("model", f"{config.model.family}, {quantity.count(terms.parameters(config))} parameters"),
        *_base_rows(config),
        (
            "on a GPU",
            f"{quantity.size(card_bytes)} of the card ({terms.learner_words(config, on_gpu=True)}), "
            f"{quantity.size(ram_bytes)} of RAM",
        ),
        ("without", f"{quantity.size(without_bytes)} of RAM ({terms.learner_words(config, on_gpu=False)})"),
        ("a host", f"{quantity.size(host_bytes(config))} of RAM; it keeps and evaluates, and trains nothing"),
        ("disk", disk),
        *_cut_rows(config),
        *_rate_rows(config),
        ("pace", f"a version of each fragment every {steps} steps, about {quantity.rough(steps * step_seconds)}"),
        ("traffic", f"{quantity.size(a_day)} a day up and as much down, at {step_seconds:g} s a step"),
        ("line", f"{line} Mbit/s each way, so that no round waits for it"),
        ("machines", f"{_machines(card_bytes, ram_bytes, without_bytes)}; {disk} of disk and {line} Mbit/s each way"),
        ("next", f"try it here: muster lab {file}; begin it: muster host {file} --listen 0.0.0.0 --port 7400"),
    )
    return "\n".join(f"  {label:<8}  {text}" for label, text in rows)


def _machines(card_bytes: int, ram_bytes: int, without_bytes: int) -> str:
    """The smallest that are sold and can take part; some of a card and of RAM others have already."""
    card, ram, without = (
        next((f"{size} GB" for size in sizes if size * FREE_SHARE >= needed / (1 << 30)), f"over {sizes[-1]} GB")
        for sizes, needed in ((CARD_SIZES, card_bytes), (RAM_SIZES, ram_bytes), (RAM_SIZES, without_bytes))
    )
    return f"a card of {card} with {ram} of RAM, or {without} of RAM without a card"


def _base_rows(config: RunConfig) -> tuple[tuple[str, str], ...]:
    """What an adapter is of; its base may not be here yet."""
    from coordinator.views import quantity
    from peer.model.sketch import lacks_base

    adapter = config.adapter
    if adapter is None:
        return ()
    held = f"{quantity.size(adapter.base_bytes)} in {adapter.held}"
    text = f"{quantity.count(adapter.base_elements)} parameters, {held}; every peer brings it, and nobody sends it"
    missing = f"{config.model.source} has only its config.json: bring its weights before muster host"
    return (("base", text), *([("missing", missing)] if lacks_base(config) else []))


def _cut_rows(config: RunConfig) -> tuple[tuple[str, str], ...]:
    """Advice, if an embedding makes one fragment so large that the memory of rounds is mostly its own."""
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
    """A warning, if the peak rate is one that suits a smaller model; none for models that peers bring."""
    tuned = TUNED_RATES.get(config.inner.optimizer)
    if tuned is None or config.model.is_own:
        return ()
    suits = tuned * math.sqrt(TUNED_WIDTH / config.model.hidden_size)
    if config.inner.learning_rate <= RATE_TIMES_MAX * suits:
        return ()
    told = f"inner.learning_rate = {config.inner.learning_rate:g} suits a smaller model"
    return (("warning", f"{told}; for {config.model.hidden_size} wide, begin with {suits:.1g}"),)
