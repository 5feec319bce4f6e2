"""A run that continues the export of another run, with its weights and the settings of its manifest."""

from __future__ import annotations

from pathlib import Path

from coordinator.run.manifest import RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.errors import UsageError
from dht.identity import KeyVerifier
from peer.export.model_files import TOKENIZER, has_config
from peer.export.verifier import verify_export


def continued(folder: Path) -> RunConfig:
    """Return the config of a new run that continues this export; optimizers and the drawing of data begin anew.

    Raises UsageError or LocalError if the folder is no complete export, or holds no model that can be built from it.
    """
    config = verify_export(folder, KeyVerifier()).manifest.config
    if not has_config(config):
        what = "an adapter" if config.adapter is not None else "a model that its peers brought"
        raise UsageError(f"{folder} is of {what}, which --continue cannot begin with; see docs/how-to/continue.md")
    model = ModelSpec(source=str(folder.absolute()), package=config.model.package)
    tokenizer = str(folder.absolute() / TOKENIZER) if config.data.tokenizer_sha256 else config.data.tokenizer
    data = config.data.model_copy(update={"tokenizer": tokenizer})
    return config.model_copy(update={"model": model, "data": data})
