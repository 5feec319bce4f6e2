"""From an organiser's run file to the manifest's contents: the model's tensors, its values at version 0, no paths.

Only the host reads a folder, a checkpoint or the Hub. All others get names and shapes from the manifest, and the
values from the host, piece by piece and verified (`peer.sync.genesis`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from coordinator.run.data_spec import CHAT, CHAT_TEMPLATE_CHARACTERS_MAX, DataSpec
from coordinator.run.manifest import RunConfig
from coordinator.run.model_spec import TensorEntry
from coordinator.run.validation_errors import first_error
from dht.errors import UsageError
from dht.statement import digest_of
from peer.data.chat import closed_template
from peer.data.hub import HUB, hub_revision
from peer.data.special_tokens import chat_template, special_tokens, token_texts
from peer.data.tokens import encoder, tokenizer_file
from peer.machine.local_files import NO_FILES, LocalFiles
from peer.model.adapter import describe_adapter
from peer.model.build import initial_bound
from peer.model.config_table import agree
from peer.model.families import make_module
from peer.model.given import holds_weights, load_weights, read_safetensors
from peer.model.own_module import named_values
from peer.model.quiet import without_warnings
from peer.model.sketch import check_room
from peer.model.source import checked, folder_of, settled
from peer.model.trial import try_family
from peer.numerics.merge_plugin import with_rule_digest

OWN_DATA = digest_of(b"muster-own-data")  # the digest that stands for the data of runs whose peers bring their own

Named = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Description:
    """A run as its manifest has it.

    `values` are float32 by name, at version 0, unless they are seeded. `files` are the host's own, whose paths stay
    private. `note` is a line for the organiser, if there is anything to say.
    """

    config: RunConfig
    values: Named | None = None
    files: LocalFiles = NO_FILES
    note: str = ""


def describe(config: RunConfig, room_bytes: int | None = None, base: str = "") -> Description:
    """Read everything that the run file refers to; raises UsageError with advice.

    `room_bytes` is the memory this machine has for it: a model that does not fit is refused before it is built.
    `base` is the folder of an adapter's base, if it is not at `model.source`.
    """
    described = _describe_model(with_rule_digest(config), room_bytes, base)
    fixed, files = _describe_data(described.config)
    return replace(described, config=fixed, files=replace(files, base=described.files.base))


def is_same_run(known: RunConfig, described: RunConfig) -> bool:
    """Whether a run file that was described again is that of a known run; releases of `transformers` may differ."""
    settings, model = known.model.settings, described.model
    data = described.data.model_copy(update={"revision": known.data.revision})  # the Hub may have a newer one
    admission = known.admission if described.admission is None else described.admission  # a file need not contain it
    settings_as_known = model.model_copy(update={"settings": settings})
    same = described.model_copy(update={"data": data, "model": settings_as_known, "admission": admission})
    return known == same and agree(known.model.settings_table, model.settings_table)


def _describe_data(config: RunConfig) -> tuple[RunConfig, LocalFiles]:
    data = config.data
    if data.source == "own" or (data.source == "stdlib" and not data.tokenizer):
        return config, NO_FILES
    if data.borders == "closed" and data.source == "tokens":
        raise UsageError('data.borders = "closed" needs documents, which tokens that are ready no longer show')
    if not data.path and data.source != "stdlib":
        raise UsageError(
            f'data.path must say where the data are that data.source = "{data.source}" reads; with `muster host '
            "--continue` say --set data.path=PATH"
        )
    tokenizer = tokenizer_file(data, data.tokenizer)
    if data.source == CHAT:
        data = data.model_copy(update={"chat_template": _chat_template(data, tokenizer)})
    if tokenizer is not None or data.source != "tokens":
        encoder(tokenizer, config.model.vocabulary, data)  # reports now whatever is wrong with the tokenizer
    here = not data.tokenizer.startswith(HUB)
    found = (None, None) if tokenizer is None else special_tokens(tokenizer, data.tokenizer)
    begin, end = (
        own if set_ is None else set_ for own, set_ in zip(found, (data.begin_token, data.end_token), strict=True)
    )
    update = {
        "begin_token": begin,
        "end_token": end,
        "revision": hub_revision(data.path, data.revision) if data.source == "hub" else None,
        "path": data.path if data.source == "hub" else "",
        "tokenizer": "" if here else data.tokenizer,
        "tokenizer_sha256": "" if tokenizer is None else hashlib.sha256(tokenizer).hexdigest(),
    }
    fixed = config.model_copy(update={"data": data.model_copy(update=update)})
    return fixed, LocalFiles(data.path, data.tokenizer if here else "")


def _chat_template(data: DataSpec, tokenizer: bytes | None) -> str | None:
    """Return the run file's chat template, or the tokenizer's; raises UsageError."""
    template = data.chat_template or (chat_template(data.tokenizer) if tokenizer is not None else None)
    if template is None:
        return None
    closed = closed_template(template, token_texts(tokenizer, data.tokenizer))
    if len(closed) > CHAT_TEMPLATE_CHARACTERS_MAX:
        raise UsageError(f"the chat template has more than {CHAT_TEMPLATE_CHARACTERS_MAX:,} characters; shorten it")
    return closed


def _describe_model(config: RunConfig, room_bytes: int | None, base: str) -> Description:
    model = config.model
    if config.adapter is not None:
        fixed, here = describe_adapter(config, base, room_bytes)
        return Description(fixed, files=LocalFiles(base=here))
    if model.is_plain_llama:
        return Description(config)
    if model.is_own:
        return _with_tensors(config, read_safetensors(Path(model.source)), frozenset())
    with without_warnings():
        return _describe_family(config, room_bytes)


def _describe_family(config: RunConfig, room_bytes: int | None) -> Description:
    model = config.model
    folder, note = folder_of(model.source), ""
    model = settled(model, config.data.context_tokens, folder)
    check_room(model, config.data.context_tokens, room_bytes)
    if folder is not None and holds_weights(folder):
        model = model.model_copy(update={"weights": "given"})
        module, note = load_weights(model, config.data.context_tokens, folder)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            module = make_module(model, config.data.context_tokens)
    try_family(module, model, config.data.context_tokens, config.data.is_marked)
    described = config.model_copy(update={"model": model})
    return replace(_with_tensors(described, named_values(module), _embeddings(module), _inputs(module)), note=note)


def own_model(config: RunConfig, module: nn.Module) -> Description:
    """Return the description of a run whose peers bring this model themselves; raises UsageError."""
    model = config.model.model_copy(update={"family": "own", "settings": "", "source": ""})
    data = config.data.model_copy(update={"source": "own", "path": "", "tokenizer": ""})
    own = with_rule_digest(config).model_copy(update={"model": model, "data": data})
    try:
        RunConfig.model_validate(own)  # a copy is not checked, and some keys are only for runs whose data are known
    except ValidationError as error:
        raise UsageError(f"a session does not take this run: {first_error(error, RunConfig)}") from None
    values = named_values(module)
    for name, value in values.items():
        if not bool(torch.isfinite(value).all()):
            raise UsageError(f"{name} holds values that are no finite numbers, and no run begins with those")
    return _with_tensors(own, values, _embeddings(module))


def _with_tensors(
    config: RunConfig, values: Named, embeddings: frozenset[str], inputs: Mapping[str, int] = MappingProxyType({})
) -> Description:
    """Return the description with the model's tensors; `inputs` is the fan-in by name if it is not the last axis."""
    model = config.model
    given = model.weights == "given" or model.is_own
    entries = tuple(
        TensorEntry(
            name=name,
            shape=tuple(value.shape),
            embedding=name in embeddings,
            start="uniform" if given else _start(name, value),
            bound=None if given or value.ndim < 2 else initial_bound(model, name, inputs.get(name, value.shape[-1])),
        )
        for name, value in values.items()
    )
    source = model.source if model.source.startswith(HUB) else ""  # folder names are private
    update = {"tensors": entries, "source": source, "weights": "given" if given else "seeded"}
    fixed = config.model_copy(update={"model": checked(model, update)})
    return Description(fixed, values if given else None)


def _start(name: str, value: Tensor) -> Literal["uniform", "ones", "zeros"]:
    """Return how `transformers` starts this tensor: with ones, zeros, or, for a matrix, numbers around zero."""
    if bool((value == 1).all()):
        return "ones"
    if bool((value == 0).all()):
        return "zeros"
    if value.ndim < 2:
        raise UsageError(f'{name} starts with values of its own kind; write weights = "given" under [model]')
    return "uniform"


def _embeddings(module: nn.Module) -> frozenset[str]:
    """Return the names of input and output embeddings, whose rows are used by some tokens only."""
    tables = [one.weight for one in module.modules() if isinstance(one, nn.Embedding)]
    output = getattr(module, "get_output_embeddings", lambda: None)()
    tables += [] if output is None else [output.weight]
    found = {id(table) for table in tables}
    return frozenset(name for name, parameter in module.named_parameters() if id(parameter) in found)


def _inputs(module: nn.Module) -> dict[str, int]:
    """Return the fan-in of convolutions, and of GPT-2's linear layers, which `transformers` stores transposed."""
    found = {}
    for name, one in module.named_modules():
        weight = getattr(one, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim > 1:
            if type(one).__name__ == "Conv1D":
                found[f"{name}.weight"] = weight.shape[0]
            elif isinstance(one, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
                found[f"{name}.weight"] = weight[0].numel()
    return found
