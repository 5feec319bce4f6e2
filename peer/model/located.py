"""Where the base of an adapter run lies on this machine."""

from __future__ import annotations

from coordinator.run.manifest import RunConfig
from peer.data.hub import HUB


def located(config: RunConfig, base: str) -> RunConfig:
    """The run as this machine builds it: `model.source` is where its base lies here; other runs stay as they are.

    No manifest chooses a folder of ours: it may name one on the Hub, and `base`, the owner's own, goes before that.
    """
    source = config.model.source
    return _with_source(config, base or (source if source.startswith(HUB) else ""))


def unlocated(config: RunConfig) -> RunConfig:
    """The same run as its manifest has it: whose folders are called what is nobody's business."""
    return located(config, "")


def _with_source(config: RunConfig, source: str) -> RunConfig:
    if config.adapter is None or config.model.source == source:
        return config
    return config.model_copy(update={"model": config.model.model_copy(update={"source": source})})
