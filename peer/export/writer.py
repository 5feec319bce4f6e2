"""Writes an export to a folder beside its target, forces it to disk and renames it, so that it is whole or absent."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from coordinator.chain.chain import Rules
from coordinator.chain.proof import FragmentProof, Proof, proving
from coordinator.run.toml_file import reading
from dht.errors import LocalError, UsageError
from dht.files import sync
from dht.identity import KeyVerifier, Signer
from dht.statement import Context, make_statement
from peer.export.adapter_files import stored_name, weights_file
from peer.export.card import model_card
from peer.export.exported import Exported
from peer.export.listing import CARD, LISTING, MANIFEST, PROOF, STATEMENT_KIND, list_files
from peer.export.model_files import TOKENIZER, encoded, has_config, model_files
from peer.model.buffers import run_buffers
from peer.numerics.fragments import whole_tensors
from peer.numerics.outer_optimizer import momentum_root
from peer.storage.anchors import layouts_of
from peer.storage.tensor_file import write_tensors

UNFINISHED = ".unfinished"


def write_export(target: Path, exported: Exported, signer: Signer, unix_seconds: int) -> None:
    """Write a folder that `transformers` loads and `peer.export.verifier` checks; it is on disk when this returns.

    Raises UsageError if the target exists or there is nothing to export yet, LocalError if the disk refuses.
    """
    check_target(target)
    proof = prove(exported)
    files = {name: encoded(value) for name, value in model_files(exported.manifest.config, exported.tokenizer).items()}
    files |= {
        MANIFEST: exported.manifest.to_wire(),
        PROOF: proof.to_wire(),
        CARD: model_card(exported).encode(),
    }
    if exported.tokenizer is not None:
        files[TOKENIZER] = exported.tokenizer
    with unfinished(target) as folder:
        write_tensors(folder / weights_file(exported.manifest.config), named_weights(exported), {"format": "pt"})
        _write(folder, files)
        listing = list_files(folder, unix_seconds)
        context = Context(run_id=exported.manifest.run_id, kind=STATEMENT_KIND, fragment=0, version=0, group=b"")
        _write(folder, {LISTING: make_statement(signer, context, listing).to_wire()})
        for path in folder.iterdir():  # readable for all: an export is passed on, unlike a peer's own files
            path.chmod(0o644)
            sync(path)
        folder.chmod(0o755)
        sync(folder)
        folder.rename(target)
        sync(target.parent)


def check_target(target: Path) -> None:
    """Raise UsageError unless the target is absent or an empty folder."""
    with reading(target):
        is_new = not target.is_symlink() and (not target.exists() or (target.is_dir() and not any(target.iterdir())))
    if not (is_new and target.name):  # nothing can be renamed to "."
        raise UsageError(f"{target} exists already; name a new folder")


def prove(exported: Exported) -> Proof:
    """Return the certificates and momentum roots of these states; raises UsageError if a fragment has no version."""
    captured = exported.captured
    if not all(captured.held):
        raise UsageError("not every fragment has a certified version yet, so there is no model to export")
    passed = exported.passed or ((),) * len(captured.chains)
    memory = Rules.of(exported.manifest, KeyVerifier()).memory
    return Proof(
        fragments=tuple(
            FragmentProof(momentum=momentum_root(state.momentum), certificates=proving(old, certificates, memory))
            for state, old, certificates in zip(captured.states, passed, captured.chains, strict=True)
        )
    )


def named_weights(exported: Exported) -> dict[str, Tensor]:
    """Return every tensor by its name in the weights file.

    Parameters are float32, in the memory of the states. A model's buffers follow from its config, and `transformers`
    would leave them undefined if they were missing. Raises UsageError if the model cannot be built here.
    """
    config = exported.manifest.config
    anchors = [state.anchor for state in exported.captured.states]
    named = {stored_name(config, name): values for name, values in whole_tensors(layouts_of(config), anchors).items()}
    return named | (run_buffers(config.model, config.data.context_tokens) if has_config(config) else {})


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


@contextmanager
def unfinished(target: Path) -> Iterator[Path]:
    """Yield a new folder beside the target, cleared of what a crash left there; removes it unless it was renamed."""
    folder = target.with_name(f".{target.name}{UNFINISHED}")
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        yield folder
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise LocalError(f"no export can be written to {target}: {reason}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
