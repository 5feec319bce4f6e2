"""Where the base of an adapter run lies on this machine."""

from __future__ import annotations

from typing import get_args

from coordinator.run.adapter_spec import HeldPrecision
from coordinator.run.manifest import RunConfig
from dht.errors import UsageError
from peer.data.hub import HUB


def located(config: RunConfig, base: str, precision: str = "") -> RunConfig:
    """The run as this machine builds it: `model.source` is where its base lies here; other runs stay as they are.

    No manifest chooses a folder of ours: it may name one on the Hub, and `base`, the owner's own, goes before that.
    `precision` is the owner's, too; raises UsageError if it is none, or if the run has chosen another.
    """
    source = config.model.source
    return _with_source(held_as(config, precision), base or (source if source.startswith(HUB) else ""))


def unlocated(config: RunConfig) -> RunConfig:
    """The same run as its manifest has it: whose folders are called what is nobody's business."""
    return located(config, "")


def held_as(config: RunConfig, precision: str) -> RunConfig:
    """The run with its base held as this machine's owner wants it, if they want anything."""
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
