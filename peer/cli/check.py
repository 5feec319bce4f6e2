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
    from peer.learner.memory_estimate import RUNTIME_BYTES, footprint, least_bytes

    steps = config.pace.steps_per_version
    per_version = terms.upload_bytes_per_version(config)
    a_day = per_version * terms.SECONDS_PER_DAY / (steps * step_seconds)
    mbit = SPREAD * 8 * per_version / (steps * step_seconds) / 1e6
    host_bytes = footprint(config).bytes_in("host") + 2 * RUNTIME_BYTES
    without_gpu = terms.memory_bytes(config, Machine(0, 0, 1.0))
    rows = (
        (
            "valid",
            f"{file}: the run {config.name}, {config.versions} versions of {config.pace.fragments} fragments",
        ),
        ("model", f"{config.model.family}, {quantity.count(terms.parameters(config))} parameters"),
        *_base_rows(config),
        ("on a GPU", f"{quantity.size(least_bytes(config))} of the card, {quantity.size(host_bytes)} of RAM"),
        ("without", f"{quantity.size(without_gpu)} of RAM"),
        ("disk", quantity.size(terms.disk_bytes(config))),
        *_rate_rows(config),
        ("pace", f"a version of each fragment every {steps} steps, about {quantity.rough(steps * step_seconds)}"),
        ("traffic", f"{quantity.size(a_day)} a day up and as much down, at {step_seconds:g} s a step"),
        ("line", f"{mbit:.2g} Mbit/s each way, so that no round waits for it"),
        ("next", f"try it here: muster lab {file}; begin it: muster host {file} --listen 0.0.0.0 --port 7400"),
    )
    return "\n".join(f"  {label:<8}  {text}" for label, text in rows)


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
