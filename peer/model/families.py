"""Causal language models of every family in `transformers`, built from a config alone.

Only classes of the installed `transformers` are used, or of a package that the owner has installed
(`peer.numerics.plugins`), never code that comes with a model. Config fields that would fetch or run code are refused,
because a volunteer's machine builds what an organiser's manifest says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, cast

from torch import nn

from coordinator.run.model_spec import ModelSpec
from coordinator.run.validation_errors import nearest
from dht.errors import UsageError
from peer.machine.text import first_line
from peer.model.config_table import ROPE, ROPE_4_NAMES, WRITTEN_BY, Table, is_complete, is_refused
from peer.numerics.plugins import family_part

LAYERS_MAX = 256  # as in `ModelSpec.layers`: a config of millions of layers would take minutes and all memory
SETTING_MAX = 1 << 24  # no real size is larger; an object for each of so many would fill any memory
_COUNTED = ("layer", "block", "depth", "stage")  # parts of names that count things a config creates
_SIZES = ("size", "depthwise")  # parts of names that are sizes nevertheless, as `vocab_size_per_layer_input`
SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def make_module(spec: ModelSpec, context_tokens: int) -> nn.Module:
    """Return the model in float32 on the CPU, with the values that `transformers` draws from global random state.

    Raises UsageError if the family is unknown or its config does not take these settings.
    """
    from transformers import AutoModelForCausalLM

    config = make_config(spec, context_tokens)
    try:
        return cast(nn.Module, AutoModelForCausalLM.from_config(config))
    except Exception as error:  # noqa: BLE001 - any error of a model class about its config is the organiser's mistake
        raise UsageError(_complaint(spec, error)) from None


def make_config(spec: ModelSpec, context_tokens: int) -> Any:
    """Return the `transformers` config: the manifest's complete table, or `spec`'s keys overridden by its `settings`.

    Dropout is off: a step depends on its window alone, so that other peers can redo it (design §9).
    """
    check_settings(spec)
    known = default_config(spec)
    if is_complete(spec.settings_table):
        return _config_of_table(spec, known)
    values = {canonical(known, name): value for name, value in spec.settings_table.items()}
    check_known(spec, known)
    for name, value in _plain_settings(spec, context_tokens).items():
        if hasattr(known, name):
            values.setdefault(canonical(known, name), value)
    for name in SPECIAL_TOKENS:
        token = values.get(name, getattr(known, name, None))
        if isinstance(token, int) and token >= values[canonical(known, "vocab_size")]:
            values[name] = None
    return without_dropout(config_from(spec, values))


def _config_of_table(spec: ModelSpec, known: Any) -> Any:
    """Return the config that a host has written out in full; raises UsageError if this release lacks a field of it."""
    table = spec.settings_table
    for name, value in table.items():
        if value and not hasattr(known, name):
            raise UsageError(
                f"the run's model has a {name}, which the transformers that is installed here does not know; install "
                f"the host's, {table.get(WRITTEN_BY, 'a newer one')}"
            )
    return config_from(spec, table)


def config_from(spec: ModelSpec, values: Table) -> Any:
    """Return the config of the spec's family with these values; raises UsageError if the family does not take them."""
    from transformers import AutoConfig

    try:
        return AutoConfig.for_model(spec.family, **values)
    except Exception as error:  # noqa: BLE001 - see make_module
        raise UsageError(_complaint(spec, error)) from None


def without_dropout(config: Any) -> Any:
    """Return the same config with every dropout at zero, including the configs of its parts."""
    for name, value in vars(config).items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    for name in config.sub_configs:
        if (part := getattr(config, name, None)) is not None and hasattr(part, "sub_configs"):
            without_dropout(part)
    return config


def check_settings(spec: ModelSpec) -> None:
    """Raise UsageError for settings that no run's model may have, before anything is built from them."""
    for name, value in _entries(spec.settings_table):
        if is_refused(name):
            raise UsageError(f"model.settings must not hold {name}; a run's model is its shape only")
        limit = LAYERS_MAX if _is_counted(name) else SETTING_MAX
        if isinstance(value, int) and "theta" not in name and not -SETTING_MAX <= value <= limit:
            raise UsageError(f"model.settings: {name} is at most {limit}, not {_short(value)}")


def check_known(spec: ModelSpec, known: Any) -> None:
    """Raise UsageError for settings that the family does not have."""
    for name in spec.settings_table:
        if not hasattr(known, name) and not (name in ROPE_4_NAMES and hasattr(known, ROPE)):
            raise UsageError(f"model.settings: a model of family {spec.family} has no {name}")


def _short(value: int) -> str:
    return str(value) if abs(value) < 1 << 63 else "a number of more than 64 bits"


def _is_counted(name: str) -> bool:
    return any(part in name for part in _COUNTED) and not any(part in name for part in _SIZES)


def _entries(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every number and text with its field's name, including those in nested tables and lists."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, None  # names are checked, too, even without a value
            yield from _entries(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _entries(inner, name)
    else:
        yield name, value


def default_config(spec: ModelSpec) -> Any:
    """Return the default config of this family in `transformers`; raises UsageError for an unknown family."""
    from transformers import AutoConfig
    from transformers import __version__ as version

    if (part := family_part(spec)) is not None:
        part.load()
    if spec.package is None and not is_causal(spec.family):
        raise UsageError(
            f"model.family: transformers {version} has no causal language model {spec.family!r}"
            f"{nearest(spec.family, _causal_families())}; try gpt2, or name the model.package that brings it"
        )
    try:
        found = AutoConfig.for_model(spec.family)
    except Exception as error:  # noqa: BLE001 - see make_module; some families refuse their own defaults
        if spec.package is not None and isinstance(error, ValueError):
            raise UsageError(f"the package {spec.package} registers no {spec.family!r} with transformers") from None
        raise UsageError(_complaint(spec, error)) from None
    found.allow_global_per_layer_attribute_access = True  # names are looked up in it; nothing is built from it
    return found


def is_causal(family: str) -> bool:
    """Whether `transformers` itself has a causal language model of this family."""
    return family in _causal_families()


def _causal_families() -> Collection[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return cast("Collection[str]", MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def shapes_of(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of every trained tensor by name; works on the meta device, too."""
    return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}


def architecture(config: Any) -> str:
    """Return the name of the class that `make_module` builds from a config; raises UsageError if there is none."""
    from transformers import AutoModelForCausalLM

    try:
        return str(AutoModelForCausalLM._model_mapping[type(config)].__name__)
    except KeyError:
        raise UsageError(f"transformers has no causal language model of family {config.model_type!r}") from None


def _plain_settings(spec: ModelSpec, context_tokens: int) -> dict[str, int]:
    """Return the sizes in `ModelSpec` under the names that all configs understand."""
    return {
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.heads,
        "intermediate_size": spec.intermediate_size,
        "vocab_size": spec.vocabulary,
        "max_position_embeddings": context_tokens,
    }


def canonical(config: Any, name: str) -> str:
    """Return a field's name in this family, which may differ from the usual one."""
    return str(config.attribute_map.get(name, name))


def _complaint(spec: ModelSpec, error: Exception) -> str:
    return f"transformers builds no {spec.family} from these model settings: {first_line(error)}"
