"""Verifies an export by itself: recomputes every digest from the weights, and checks every signature."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from coordinator.chain.proof import PROOF_BYTES_MAX, Proof, ProvenFragment, check_fragment
from coordinator.run.manifest import Manifest, RunConfig
from dht.errors import LocalError, MusterError, PeerError, UsageError
from dht.identity import PeerId, Verifier
from dht.statement import Statement
from dht.wire import MESSAGE_BYTES_MAX, PROTOCOL_MAJOR, Wire
from peer.export.adapter_files import stored_name, weights_file
from peer.export.listing import (
    CARD,
    LATEST,
    LISTING,
    LISTING_BYTES_MAX,
    MANIFEST,
    PROOF,
    STATEMENT_KIND,
    ListedFile,
    Listing,
    difference,
)
from peer.export.model_files import (
    CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    describes,
    encoded,
    fixed_files,
    has_config,
    token_names,
)
from peer.model.buffers import run_buffers
from peer.model.config_table import WRITTEN_BY
from peer.model.own_module import content_digest
from peer.numerics.fragments import FragmentLayout, gather
from peer.numerics.outer_optimizer import digest_of_roots, state_tree
from peer.storage.anchors import layouts_of

Model = TypeVar("Model", bound=Wire)
SPACING_MAX = 4  # JSON may be formatted otherwise, up to this many times the length of ours
CONFIG_BYTES_MAX = 1 << 18  # of a config.json that the manifest fixes only in part
BUFFERS_BYTES_MAX = 1 << 28  # of a model's buffers, built to compare them with those of an export


@dataclass(frozen=True, slots=True)
class Verified:
    """The facts that an export proves, who wrote it and when."""

    manifest: Manifest
    exporter: PeerId
    written_unix_seconds: int
    parameters: int
    fragments: tuple[ProvenFragment, ...]

    @property
    def fixes_config(self) -> bool:
        """Whether the manifest fixes every field of `config.json`; manifests of earlier versions fix only some."""
        return CONFIG in fixed_files(self.manifest.config) or not has_config(self.manifest.config)

    @property
    def from_founders(self) -> bool:
        """Whether the chain of every fragment goes back to the founders, and none of its versions is minor."""
        return all(one.from_founders for one in self.fragments)

    def signers(self) -> list[tuple[PeerId, int, int]]:
        """Return the signers shown, most first, then by id: id, newest versions signed, versions signed."""
        versions: Counter[PeerId] = Counter()
        heads: Counter[PeerId] = Counter()
        for one in self.fragments:
            versions.update(one.signed)
            heads.update(one.head_voters)
        ranked = sorted(versions, key=lambda peer: (-heads[peer], -versions[peer], peer))
        return [(peer, heads[peer], versions[peer]) for peer in ranked]


def verify_export(folder: Path, verifier: Verifier) -> Verified:
    """Verify this folder; raises UsageError if it is no export, LocalError if anything in it is wrong or changed."""
    if not folder.exists():
        raise UsageError(f"{folder} is no export of Muster: there is no such folder")
    if not (folder / LISTING).is_file():
        newest = folder / LATEST
        hint = f"; did you mean {newest}?" if (newest / LISTING).is_file() else ""
        raise UsageError(f"{folder} is no export of Muster: it has no {LISTING}{hint}")
    try:
        statement = _read(folder, LISTING, Statement, LISTING_BYTES_MAX)
        listing = statement.read(Listing)  # read before the signature: another protocol may sign other bytes
        if listing.protocol_major == PROTOCOL_MAJOR:
            return _verify(folder, statement, listing, verifier)
    except (MusterError, OSError, SafetensorError, ValueError, RecursionError) as error:
        raise LocalError(f"{folder} does not verify: {error}") from None
    raise UsageError(
        f"{folder} was written under protocol {listing.protocol_major}, and this is a muster of protocol "
        f"{PROTOCOL_MAJOR}; install the version that wrote it"
    )


def _verify(folder: Path, statement: Statement, listing: Listing, verifier: Verifier) -> Verified:
    if statement.context.kind != STATEMENT_KIND or not statement.verify(verifier):
        raise PeerError(f"the signature in {LISTING} is not that of {statement.sender}")
    changed = difference(folder, listing)
    if changed is not None:
        raise PeerError(changed)
    manifest = _read(folder, MANIFEST, Manifest, MESSAGE_BYTES_MAX)
    if manifest.run_id != statement.context.run_id:
        raise PeerError(f"{MANIFEST} is of another run")
    proof = _read(folder, PROOF, Proof, PROOF_BYTES_MAX)
    fragments = _check_weights(folder / weights_file(manifest.config), manifest, proof, verifier)
    # last, because they parse and build what a stranger may have written
    _check_model_files(folder, manifest, listing)
    _check_buffers(folder / weights_file(manifest.config), manifest)
    parameters = sum(layout.elements for layout in layouts_of(manifest.config))
    return Verified(manifest, PeerId(statement.sender), listing.written_unix_seconds, parameters, fragments)


def _read(folder: Path, name: str, model: type[Model], bytes_max: int) -> Model:
    path = folder / name
    if path.stat().st_size > bytes_max:
        raise PeerError(f"{name} is larger than any export's")
    data = path.read_bytes()
    value = model.from_wire(data, bytes_max)
    if value.to_wire() != data:  # refuses fields of a newer version too, which we could not check
        raise PeerError(f"{name} is not in canonical encoding")
    return value


def _check_model_files(folder: Path, manifest: Manifest, listing: Listing) -> None:
    """Raise PeerError unless the files are those that follow from the manifest, with no others, signed or not."""
    config, tokenizer = manifest.config, manifest.config.data.tokenizer_sha256
    files, listed = fixed_files(config), {one.name: one for one in listing.files}
    names = {*files, weights_file(config), MANIFEST, PROOF, CARD} | ({TOKENIZER} if tokenizer else set())
    names |= {CONFIG} if has_config(config) else set()
    for name in sorted(listed.keys() ^ names):
        raise PeerError(f"{name} does not belong to an export, or is missing from it")
    if tokenizer and listed[TOKENIZER].digest.hex() != tokenizer:
        raise PeerError(f"{TOKENIZER} is not the run's tokenizer")
    special = token_names(config.data, (folder / TOKENIZER).read_bytes()) if tokenizer else {}
    for name, expected in files.items():
        found = _json(folder / name, listed[name], SPACING_MAX * len(encoded(expected | special)))
        if name == TOKENIZER_CONFIG and isinstance(found, dict):  # earlier exports do not name special tokens
            found = {key: value for key, value in found.items() if key not in special or special[key] != value}
        if found != expected:
            raise PeerError(f"{name} does not describe the run's model")
    if CONFIG in names and CONFIG not in files:
        found = _json(folder / CONFIG, listed[CONFIG], CONFIG_BYTES_MAX)
        if not isinstance(found, dict) or not describes(found, config.model):
            raise PeerError(f"{CONFIG} does not describe the run's model")


def _json(path: Path, listed: ListedFile, bytes_max: int) -> object:
    """Return the JSON in a file; None if the file is too long."""
    return json.loads(path.read_bytes()) if listed.size_bytes <= bytes_max else None


def _check_weights(path: Path, manifest: Manifest, proof: Proof, verifier: Verifier) -> tuple[ProvenFragment, ...]:
    config, layouts = manifest.config, layouts_of(manifest.config)
    if len(proof.fragments) != len(layouts):
        raise PeerError(f"{PROOF} is of a model with another number of fragments")
    found = []
    with safe_open(path, framework="pt") as file:
        if not _trained_names(config) <= set(file.keys()):
            raise PeerError(f"{path.name} holds other tensors than the run's model")
        for layout, one in zip(layouts, proof.fragments, strict=True):
            tensors = {spec.name: file.get_tensor(stored_name(config, spec.name)) for spec in layout.tensors}
            state = digest_of_roots(_root(layout, tensors), one.momentum)
            found.append(check_fragment(manifest, layout.index, one.certificates, state, verifier))
    return tuple(found)


def _check_buffers(path: Path, manifest: Manifest) -> None:
    """Raise PeerError unless the file's other tensors are the model's buffers; earlier exports have none of them."""
    config = manifest.config
    with safe_open(path, framework="pt") as file:
        others = set(file.keys()) - _trained_names(config)
        if not others:
            return
        context_tokens = config.data.context_tokens
        buffers = run_buffers(config.model, context_tokens, BUFFERS_BYTES_MAX) if has_config(config) else {}
        if others != buffers.keys():
            raise PeerError(f"{path.name} holds other tensors than the run's model")
        for name, value in sorted(buffers.items()):
            if not _is_same(file.get_tensor(name), value):
                host = config.model.settings_table.get(WRITTEN_BY)
                raise PeerError(
                    f"the buffer {name} is not the one that the transformers installed here makes of the run's config"
                    + (f"; the run's host had {host}" if host else "")
                )


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape, type and bits."""
    alike = one.shape == other.shape and one.dtype == other.dtype
    return alike and content_digest(one) == content_digest(other)


def _trained_names(config: RunConfig) -> set[str]:
    return {stored_name(config, spec.name) for layout in layouts_of(config) for spec in layout.tensors}


def _root(layout: FragmentLayout, tensors: Mapping[str, Tensor]) -> bytes:
    for spec in layout.tensors:  # checked before memory for a fragment is allocated
        if tuple(tensors[spec.name].shape) != spec.whole_shape or tensors[spec.name].dtype != torch.float32:
            raise PeerError(f"{spec.name} is of another shape or type than the run's model has")
    return state_tree(gather(layout, tensors)).root
