"""The place of an adapter run's base on this machine."""

from __future__ import annotations

from typing import get_args

from coordinator.run.adapter_spec import HeldPrecision
from coordinator.run.manifest import RunConfig
from dht.errors import UsageError
from peer.data.hub import HUB


def located(config: RunConfig, base: str, precision: str = "") -> RunConfig:
    """Return the run as this machine builds it, with its base's place here as `model.source`; other runs are unchanged.

    No manifest chooses a folder on this machine: it may name a base on the Hub, and the owner's own `base` overrides
    that. `precision` is the owner's choice, too; raises UsageError if it is unknown or the run has fixed another.
    """
    source = config.model.source
    return _with_source(held_as(config, precision), base or (source if source.startswith(HUB) else ""))


def unlocated(config: RunConfig) -> RunConfig:
    """Return the same run as its manifest has it, because folder names are private."""
    return located(config, "")


def held_as(config: RunConfig, precision: str) -> RunConfig:
    """Return the run with its base in the precision that this machine's owner wants, if any."""
    if not precision:
        return config
    adapter, known = config.adapter, get_args(HeldPrecision)
    if precision not in known:
        raise UsageError(f"a base is held in {', '.join(known)}; {precision!r} is none of them")
    if adapter is None or adapter.base_precision not in ("any", precision):
        what = "has no base" if adapter is None else f"holds its base in {adapter.base_precision} everywhere"
        raise UsageError(f"this run {what}; leave out --base-precision")
    return config.model_copy(update={"adapter": adapter.model_copy(update={"base_precision": precision})})


def _with_source(config: RunConfig, source: str) -> RunConfig:
    if config.adapter is None or config.model.source == source:
        return config
    return config.model_copy(update={"model": config.model.model_copy(update={"source": source})})
