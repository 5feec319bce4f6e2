"""The base of an adapter run: a folder that every peer brings, and that must hold exactly the run's tensors.

The manifest has a digest of each tensor as its files have it, before any quantisation. A peer with another base is
told which tensor differs. A base is not sent, unless its organiser gives it to peers (`peer.sync.base_fetch`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from coordinator.run.adapter_spec import GIVEN_BASE_BYTES_MAX, AdapterSpec, BaseFile, BaseTensor
from coordinator.run.model_spec import TENSORS_MAX
from coordinator.views import quantity
from coordinator.wire.merkle import long_leaf_digest, root_of_leaves
from dht.errors import UsageError
from dht.statement import digest_of
from peer.machine.text import first_line
from peer.model.given import holds_weights
from peer.model.own_module import content_digest
from peer.model.source import folder_of
from peer.numerics.outer_optimizer import STATE_PIECE_BYTES

BASE_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def base_folder(source: str) -> Path:
    """Return the base's folder of a `located` run; raises UsageError if none is named or it has no weights."""
    folder = folder_of(source)
    if folder is None:
        raise UsageError("this run trains an adapter of a base model that every peer brings; name its folder: --base")
    if not holds_weights(folder):
        raise UsageError(f"{folder} holds no weights; a base is a folder of save_pretrained")
    return folder


def base_tensors(folder: Path) -> tuple[BaseTensor, ...]:
    """Return names and digests of all tensors in the folder's files, in order of name; raises UsageError."""
    return tuple(BaseTensor(name=name, sha256=_sha256(value)) for name, value in _stored(folder))


def check_tensor_count(folder: Path) -> None:
    """Raise UsageError if a manifest cannot name all tensors in the folder's files; reads no values."""
    count = len(_places(folder))
    if count > TENSORS_MAX:
        raise UsageError(
            f"the base in {folder} has {count:,} tensors, and a manifest names {TENSORS_MAX:,} at most; choose a base "
            "with fewer, such as one without experts"
        )


def leaves_of(path: Path) -> tuple[bytes, ...]:
    """Return the digests of a file's pieces, as peers send them; () if there is no such file. Raises OSError."""
    if not path.exists():
        return ()
    with path.open("rb") as file:
        return tuple(long_leaf_digest(piece) for piece in iter(partial(file.read, STATE_PIECE_BYTES), b""))


def given_file(folder: Path) -> BaseFile:
    """Return the manifest's entry for a base that is given to peers without one; raises UsageError if it cannot be."""
    path = folder / BASE_FILE
    if not path.is_file():
        raise UsageError(
            f"adapter.give_base: a base is handed out as one file, and {folder} has no {BASE_FILE}; save it again "
            'with max_shard_size="4GB", or leave the key out'
        )
    size_bytes = path.stat().st_size
    if size_bytes > GIVEN_BASE_BYTES_MAX:
        raise UsageError(
            f"adapter.give_base: {path} has {quantity.size(size_bytes)}, and peers hand out "
            f"{quantity.size(GIVEN_BASE_BYTES_MAX)} at most; leave the key out, and have everybody bring the base"
        )
    return BaseFile(size_bytes=size_bytes, root=root_of_leaves(leaves_of(path)).hex())


def check_base(spec: AdapterSpec, folder: Path) -> None:
    """Raise UsageError naming the first tensor in which this folder differs from the run's base."""
    wanted, found = ({one.name: one.sha256 for one in tensors} for tensors in (spec.base, base_tensors(folder)))
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            what = "has other values, or another type or shape, than in the run's"
            if name not in found:
                what = "is missing"
            elif name not in wanted:
                what = "is none of the run's"
            raise UsageError(f"the base in {folder} is not this run's: {name} {what}; ask the organiser which it is")


def base_counts(module: nn.Module) -> tuple[int, int]:
    """Return how many numbers a base has, and how many of them NF4 quantises: linear layers, except the head."""
    head = cast(Any, module).get_output_embeddings()
    linear = [
        cast(Tensor, one.weight).numel()
        for one in module.modules()
        if (isinstance(one, nn.Linear) or type(one).__name__ == "Conv1D") and one is not head
    ]
    return sum(one.numel() for one in module.parameters()), sum(linear)


def _sha256(value: Tensor) -> str:
    return digest_of(b"muster-base", f"{value.dtype} {tuple(value.shape)}".encode(), content_digest(value)).hex()


def _stored(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor by name, one at a time, because all may exceed the memory."""
    places = _places(folder)
    with _readable(folder):
        for name, path in sorted(places.items()):
            with safe_open(path, framework="pt") as file:
                yield name, file.get_tensor(name)


def _places(folder: Path) -> dict[str, Path]:
    """Return the file of every tensor by name."""
    places: dict[str, Path] = {}
    with _readable(folder):
        for path in _files(folder):
            with safe_open(path, framework="pt") as file:
                places |= dict.fromkeys(file.keys(), path)
    return places


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise UsageError(f"the base in {folder} cannot be read: {first_line(error)}") from None


def _files(folder: Path) -> list[Path]:
    """Return the files that `transformers` reads, which may not be all that are there."""
    if not (folder / BASE_FILE).exists() and (folder / _INDEX).exists():
        names = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()
        return [folder / Path(name).name for name in sorted(set(names))]
    return [folder / BASE_FILE]
