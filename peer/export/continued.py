"""A run that continues the export of another run, with its weights and the settings of its manifest."""

from __future__ import annotations

from pathlib import Path

from coordinator.run.data_spec import NO_TOKEN, DataSpec
from coordinator.run.manifest import RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.errors import UsageError
from dht.identity import KeyVerifier
from peer.data.hub import HUB
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
    return config.model_copy(update={"model": model, "data": _read_alike(config.data, folder)})


def _read_alike(data: DataSpec, folder: Path) -> DataSpec:
    """Return the data of a run that turns text into the same tokens.

    A tokenizer of the Hub stays there, where peers find it. No token around documents is a choice of the first run: the
    tokenizer in the export would bring one.
    """
    if not data.tokenizer_sha256:
        return data
    update = {
        "tokenizer": data.tokenizer if data.tokenizer.startswith(HUB) else str(folder.absolute() / TOKENIZER),
        "begin_token": NO_TOKEN if data.begin_token is None else data.begin_token,
        "end_token": NO_TOKEN if data.end_token is None else data.end_token,
    }
    return data.model_copy(update=update)
