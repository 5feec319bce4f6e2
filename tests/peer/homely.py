"""A small run, as a volunteer is asked about it."""

from __future__ import annotations

from coordinator.run.manifest import Manifest, RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.identity import Identity

ORGANISER = Identity(bytes(32)).peer_id
MODEL = ModelSpec(hidden_size=32, layers=1, heads=2, intermediate_size=64)


def manifest(config: RunConfig | None = None) -> Manifest:
    """Return a manifest whose digests are zero, of no real run."""
    config = config or RunConfig(model=MODEL)
    return Manifest(
        config=config,
        organiser=ORGANISER,
        founders=(ORGANISER,),
        data_digest=bytes(32),
        genesis=(bytes(32),) * config.pace.fragments,
        created_unix_seconds=0,
    )
