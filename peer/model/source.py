"""The config of a model: a family with the run file's sizes, or a folder or the Hub as `AutoConfig` reads it.

In both cases the manifest gets the whole config (`peer.model.config_table`), from which every machine builds the same
model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError

from coordinator.run.model_spec import ModelSpec
from coordinator.run.validation_errors import first_error
from dht.errors import UsageError
from peer.data.hub import HUB, from_hub
from peer.machine.text import first_line
from peer.model.config_table import Table, table_of, with_settings
from peer.model.families import (
    SPECIAL_TOKENS,
    architecture,
    canonical,
    check_known,
    check_settings,
    config_from,
    default_config,
    is_causal,
    make_config,
    without_dropout,
)

log = structlog.get_logger(__name__)

CONFIG_ONLY = ("config.json",)  # of a folder on the Hub
_HUB_FILES = (*CONFIG_ONLY, "*.safetensors", "*.safetensors.index.json")
_SIZES = {  # keys of ModelSpec, under the names that configs understand
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "vocabulary": "vocab_size",
}
_NEEDED = ("hidden_size", "layers", "vocabulary")  # without them, a family's own sizes would be built
_TEXT = "text_config"


def folder_of(source: str, files: Sequence[str] = _HUB_FILES) -> Path | None:
    """Return the folder of `model.source`, after fetching these files if it is on the Hub; None if there is no source.

    Raises UsageError.
    """
    if not source:
        return None
    if source.startswith(HUB):
        name, _, revision = source.removeprefix(HUB).partition("@")
        wanted = {"revision": revision or None, "allow_patterns": list(files)}
        return Path(from_hub(name, lambda hub: hub.snapshot_download(name, **wanted)))
    if not Path(source).is_dir():
        raise UsageError(f"model.source: there is no folder {source}; for one on the Hub write hub:{source}")
    return Path(source)


def settled(model: ModelSpec, context_tokens: int, folder: Path | None) -> ModelSpec:
    """Return the spec with a complete table of settings and the sizes that follow from it; raises UsageError."""
    if folder is None:
        config = _sized(model, context_tokens)
    else:
        model, config = _read(model, folder)
    table = table_of(without_dropout(config), architecture(config))
    _forget_strange_tokens(table, _text_part(model, config).vocab_size)
    table = _known(model, table)
    config.allow_global_per_layer_attribute_access = True  # a size that differs between layers: the most common
    sizes = {key: getattr(config, name, None) for key, name in _SIZES.items()}
    update = {key: value for key, value in sizes.items() if isinstance(value, int) and value > 0}
    return checked(model, {"settings": table} | update)


def _text_part(model: ModelSpec, config: Any) -> Any:
    """Return the config of the part that reads text, or the whole config; raises UsageError."""
    try:
        return config.get_text_config()
    except ValueError:
        raise UsageError(
            f"a {model.family} is made of several models, and more than one of them reads text; choose a family that "
            "generates text"
        ) from None


def checked(model: ModelSpec, update: dict[str, Any]) -> ModelSpec:
    """Return the spec with these values replaced; raises UsageError if no manifest can hold them."""
    try:
        return ModelSpec.model_validate(model.model_dump() | update)
    except ValidationError as error:
        raise UsageError(f"this model does not go into a manifest: model.{first_error(error, ModelSpec)}") from None


def _sized(model: ModelSpec, context_tokens: int) -> Any:
    """Return the config of a family with the run file's sizes; raises UsageError if it comes out with others."""
    known = default_config(model)
    _check_parts(model, known)
    unset = dict.fromkeys(_meaningless(known))
    config = make_config(checked(model, {"settings": unset | model.settings_table}), context_tokens)
    for key in _NEEDED:
        name = _SIZES[key]
        asked = getattr(model, key)
        if canonical(known, name) in {canonical(known, one) for one in model.settings_table}:
            continue  # given in the family's own terms, which have priority
        if getattr(config, name, None) != asked and not (model.settings and not hasattr(known, name)):
            own = ", ".join(sorted(one for one in vars(known) if "size" in one or "layers" in one)[:8])
            raise UsageError(
                f"a {model.family} takes no {name} of {asked}; set its sizes under [model.settings] in its own words"
                + (f": {own}" if own else "")
            )
    return config


def _meaningless(known: Any) -> list[str]:
    """Return the special tokens to unset, as they belong to another tokenizer.

    The padding token stays in families that began as encoders: they count positions by it.
    """
    kept = {"pad_token_id"} if hasattr(known, "is_decoder") else set()
    return [name for name in SPECIAL_TOKENS if hasattr(known, name) and name not in kept]


def _check_parts(model: ModelSpec, known: Any) -> None:
    """Raise UsageError for a family made of several models, which does not take our sizes."""
    parts = [name for name in known.sub_configs if name not in model.settings_table]
    if _TEXT not in parts:
        return
    text = getattr(known, _TEXT).model_type
    advice = f"write its sizes under [model.settings] as {_TEXT} = {{ hidden_size = …, num_hidden_layers = … }}"
    if is_causal(text):
        advice = f"its part for text is the family {text}: name that"
    raise UsageError(f"a {model.family} is made of several models ({', '.join(parts)}); {advice}")


def _read(model: ModelSpec, folder: Path) -> tuple[ModelSpec, Any]:
    """Return family and config of a folder, as `AutoConfig` reads them, with the run file's settings applied."""
    from transformers import AutoConfig

    try:
        family = str(json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"model.source: {folder} has no config.json of a transformers model") from None
    model = checked(model, {"family": family, "tensors": ()})
    known = default_config(model)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001 - transformers raises errors of any kind about a damaged config
        raise UsageError(f"model.source: {folder}/config.json cannot be used: {first_line(error)}") from None
    if getattr(config, "quantization_config", None) is not None:
        raise UsageError(f"model.source: the weights in {folder} are quantised; train on those that they were made of")
    check_settings(model)
    check_known(model, known)
    if model.settings:
        said = {canonical(known, name): value for name, value in model.settings_table.items()}
        config = config_from(model, with_settings(table_of(config, architecture(config)), said))
    return model, config


def _known(model: ModelSpec, table: Table) -> Table:
    """Return the table without fields that no class of this family reads, which other machines would reject."""
    known = default_config(model)
    strange = sorted(name for name in table if not hasattr(known, name))
    if strange:
        log.warning("config_fields_left_out", family=model.family, fields=", ".join(strange))
    return {name: value for name, value in table.items() if name not in strange}


def _forget_strange_tokens(table: Table, vocabulary: int) -> None:
    """Unset special tokens beyond the vocabulary: they belong to another tokenizer."""
    for name in SPECIAL_TOKENS:
        if isinstance(table.get(name), int) and table[name] >= vocabulary:
            table[name] = None
