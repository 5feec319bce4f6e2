"""A complete `transformers` config as a table: manifests fix it, learners build from it, exports contain it.

Releases of `transformers` differ in their defaults. So the host writes every field down, in the terms of its own
release, and no other machine's defaults matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Table = dict[str, Any]

COMPLETE = "architectures"  # this key marks tables in which every field is written out
WRITTEN_BY = "transformers_version"
# in a config these select code, kernels or number formats instead of the model's shape
_REFUSED = ("auto_map", "quantization_config", "attn_implementation", "experts_implementation", "use_kernels")
_LABELS = ("num_labels", "id2label", "label2id")  # of classifiers: a config makes a table of as many names
_NO_SHAPE = ("model_type", "dtype", "torch_dtype", "problem_type")
_ANSWERS = ("output_attentions", "output_hidden_states", "return_dict")  # further results of a forward pass than logits
ROPE = "rope_parameters"
ROPE_4_NAMES = ("rope_theta", "rope_scaling", "partial_rotary_factor")  # transformers 4: `rope_parameters` in parts
# fields that transformers 4 reads instead of `rope_parameters`, in families with names of their own
_ROPE_4 = {
    "gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
    "gpt_neox_japanese": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
}
_ROPE_TYPES_4 = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
_LOCAL_ROPE_4 = "rope_local_base_freq"  # of layers with a short look-back only, beside `rope_theta` of all others


def is_refused(name: str) -> bool:
    """Whether this field of a config has nothing to do with the model's shape."""
    return name.startswith("_") or name in _REFUSED or name in _LABELS


def is_complete(table: Table) -> bool:
    """Whether this is a whole config rather than some fields of one."""
    return COMPLETE in table


def table_of(config: Any, architecture: str) -> Table:
    """Return all of a config that concerns the model, as JSON represents it: arrays for tuples, strings for keys."""
    return _plain(config.to_dict()) | {COMPLETE: [architecture]}


def _plain(value: Table) -> Table:
    left_out = (*_NO_SHAPE, *_ANSWERS)
    kept = {name: one for name, one in value.items() if name not in left_out and not is_refused(name)}
    return json.loads(json.dumps(without_refused(kept)))  # type: ignore[no-any-return]


def without_refused(value: Any) -> Any:
    """Return the value without refused fields; nested tables keep their `model_type`."""
    if not isinstance(value, dict):
        return value
    return {str(name): without_refused(one) for name, one in value.items() if not is_refused(str(name))}


def names_in(table: Table) -> Iterator[str]:
    """Yield every key, including those of nested tables."""
    for name, value in table.items():
        yield name
        yield from names_in(value) if isinstance(value, dict) else ()


def agree(one: Table, other: Table) -> bool:
    """Whether two tables have the same values wherever they share a key, whichever releases wrote them."""
    common = (one.keys() & other.keys()) - {WRITTEN_BY}
    return all(one[name] == other[name] for name in common)


def with_settings(table: Table, said: Table) -> Table:
    """Return the table with `said` applied; rotary embeddings may be given in either `transformers` release's form."""
    rope, rope_4 = table.get(ROPE), {name: value for name, value in said.items() if name in ROPE_4_NAMES}
    others = {name: value for name, value in said.items() if name not in rope_4}
    if not isinstance(rope, dict) or not rope_4:
        return table | said
    if "rope_scaling" in rope_4:  # replaces the existing scaling
        rope = {name: rope[name] for name in ROPE_4_NAMES if name in rope} | (rope_4.pop("rope_scaling") or {})
    return table | {ROPE: rope | rope_4} | others


def config_file(family: str, table: Table) -> Table:
    """Return the content of `config.json` for a complete table, with rope as transformers 5 and 4 each read it."""
    return {"model_type": family, "dtype": "float32", **rope_of_release_4(family, table), **table}


def rope_of_release_4(family: str, table: Table) -> Table:
    """Return the rotary embedding under the names of transformers 4, as far as that has names for it."""
    rope = table.get(ROPE)
    if not isinstance(rope, dict):
        return {}
    found: Table = {}
    if isinstance(rope.get("sliding_attention"), dict) and isinstance(rope.get("full_attention"), dict):
        found[_LOCAL_ROPE_4] = rope["sliding_attention"].get("rope_theta")
        rope = rope["full_attention"]
    if "rope_theta" not in rope or rope.get("rope_type", "default") not in _ROPE_TYPES_4:
        return {}  # of a type that release 4 lacks, release 5 would read only half of this
    names = _ROPE_4.get(family, {})
    found |= {names.get(key, key): rope[key] for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    scaled = rope.get("rope_type", "default") != "default"
    scaling = {key: value for key, value in rope.items() if key not in ("rope_theta", "partial_rotary_factor")}
    return found | {"rope_scaling": scaling if scaled else None}
