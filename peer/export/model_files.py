"""The files that `transformers` reads beside the weights. They follow from the manifest, so a verifier can remake them.

The tokenizer of a model over bytes has one token per byte, numbered as the byte: 256 symbols of byte-level BPE (one
printable character stands for each byte) and no merges. A run's own tokenizer is exported unchanged: the manifest has
its hash.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import RunConfig
from coordinator.run.model_spec import OWN, ModelSpec
from peer.data.windows import BYTE_VOCABULARY
from peer.export.adapter_files import ADAPTER_CONFIG, adapter_config
from peer.model.config_table import Table, config_file, is_complete, is_refused, names_in
from peer.model.families import SPECIAL_TOKENS, architecture, canonical, check_settings, default_config, make_config

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"


def model_files(config: RunConfig, tokenizer: bytes | None = None) -> dict[str, Table]:
    """Return the JSON files of an export by name; a run's own `tokenizer` is written beside them.

    There are none for a model that its peers brought, because only they can build it. An adapter has those that `peft`
    reads.
    """
    files = fixed_files(config)
    if tokenizer is not None and TOKENIZER_CONFIG in files:
        files[TOKENIZER_CONFIG] |= token_names(config.data, tokenizer)
    return files if not has_config(config) or CONFIG in files else {CONFIG: rendered_config(config)} | files


def fixed_files(config: RunConfig) -> dict[str, Table]:
    """Return the files that the manifest alone fixes, whatever is installed: all, unless an earlier version hosts."""
    files, model = {}, config.model
    if model.is_own:
        return {}
    if config.adapter is not None:
        files[ADAPTER_CONFIG] = adapter_config(config)
    elif model.is_plain_llama:
        files[CONFIG] = model_config(config)
    elif is_complete(model.settings_table):
        check_settings(model)  # anybody can be an organiser
        files[CONFIG] = config_file(model.family, model.settings_table)
    if CONFIG in files:
        files[CONFIG] |= _document_tokens(config.data)
    if is_bytewise(config):
        files[TOKENIZER] = byte_tokenizer()
    if is_bytewise(config) or config.data.tokenizer_sha256:
        files[TOKENIZER_CONFIG] = tokenizer_config(config)
    return files


def has_config(config: RunConfig) -> bool:
    """Whether an export holds a whole `transformers` model: no adapter, and no model that only its peers can build."""
    return config.adapter is None and not config.model.is_own


def _document_tokens(data: DataSpec) -> Table:
    """Return the tokens that begin and end documents, if any; the model's own text begins and stops with them."""
    tokens = {"bos_token_id": data.begin_token, "eos_token_id": data.end_token}
    return {name: token for name, token in tokens.items() if token is not None and token >= 0}


def is_bytewise(config: RunConfig) -> bool:
    """Whether a run's tokens are the bytes of its text."""
    is_text = config.data.source not in ("tokens", OWN) and not config.data.tokenizer_sha256
    return is_text and config.model.vocabulary == BYTE_VOCABULARY


def encoded(value: Table) -> bytes:
    """Encode a table as JSON, as exports hold it."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def model_config(config: RunConfig) -> Table:
    """Return the `config.json` of the model that `peer.model.build.llama_config` describes, with every value."""
    model = config.model
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": model.vocabulary,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.heads,
        "head_dim": model.hidden_size // model.heads,
        "hidden_act": "silu",
        "max_position_embeddings": config.data.context_tokens,
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def rendered_config(config: RunConfig) -> Table:
    """Return the config of a model that the manifest fixes in part; the rest are defaults of the installed release."""
    made = make_config(config.model, config.data.context_tokens)
    written: Table = made.to_dict()
    written.pop("transformers_version", None)
    written |= {"architectures": [architecture(made)], "dtype": "float32"}
    # normalised as a reader of the file finds it: tuples become arrays, keys become strings
    return json.loads(json.dumps(written))  # type: ignore[no-any-return]


def describes(found: Table, model: ModelSpec) -> bool:
    """Whether a `config.json` agrees with the part that such a manifest fixes, and holds nothing that runs code."""
    known = default_config(model)
    fixed = {canonical(known, name): value for name, value in model.settings_table.items() if "drop" not in name}
    fixed = {"model_type": model.family} | {name: fixed[name] for name in fixed if name not in SPECIAL_TOKENS}
    return not any(map(is_refused, names_in(found))) and all(found.get(name) == fixed[name] for name in fixed)


def byte_tokenizer() -> Table:
    """Return a file for the `tokenizers` library in which token k is the byte k."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    bpe: Table = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {symbol: byte for byte, symbol in enumerate(_byte_symbols())},
        "merges": [],
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": bpe,
    }


def tokenizer_config(config: RunConfig) -> Table:
    """Return `tokenizer_config.json`: the class that reads `tokenizer.json`, the context length, a chat template."""
    template = config.data.chat_template
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.data.context_tokens,
        "clean_up_tokenization_spaces": False,
    } | ({} if template is None else {"chat_template": template})


def token_names(data: DataSpec, tokenizer: bytes) -> Table:
    """Return the special tokens that begin and end documents, by their text in the tokenizer."""
    try:
        added = json.loads(tokenizer)["added_tokens"]
        special = {one["id"]: one["content"] for one in added if one["special"]}
        numbers = {"bos_token": data.begin_token, "eos_token": data.end_token}
        return {name: special[number] for name, number in numbers.items() if number in special}
    except (ValueError, KeyError, TypeError):
        return {}


def _byte_symbols() -> Iterator[str]:
    """Yield each byte's character in byte-level BPE: itself if it is visible, else the next one from U+0100."""
    others = 0
    for byte in range(BYTE_VOCABULARY):
        if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or 0xAE <= byte <= 0xFF:
            yield chr(byte)
        else:
            yield chr(0x100 + others)
            others += 1
