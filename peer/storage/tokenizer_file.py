"""The run's tokenizer in the run's folder, from where exports take it: the owner's own file may move away meanwhile."""

from __future__ import annotations

import hashlib
from pathlib import Path

from coordinator.run.data_spec import DataSpec
from dht.errors import LocalError, UsageError
from dht.files import write_whole
from peer.data.tokens import tokenizer_file

TOKENIZER_FILE = "tokenizer.json"


def keep_tokenizer(folder: Path, spec: DataSpec, given: str) -> None:
    """Copy the run's tokenizer into the run's folder, if it has one; `given` is where this machine's owner has it.

    Raises UsageError if it cannot be had, LocalError if it cannot be written.
    """
    if not spec.tokenizer_sha256 or read_tokenizer(folder, spec) is not None:
        return
    content = tokenizer_file(spec, given)
    path = folder / TOKENIZER_FILE
    try:
        write_whole(path, content or b"")
    except OSError as error:
        raise LocalError(f"{path} cannot be written: {error.strerror}") from None


def read_tokenizer(folder: Path, spec: DataSpec) -> bytes | None:
    """The copy in the run's folder; None if it is missing or not the run's."""
    try:
        content = (folder / TOKENIZER_FILE).read_bytes()
    except OSError:
        return None
    return content if hashlib.sha256(content).hexdigest() == spec.tokenizer_sha256 else None


def exported_tokenizer(folder: Path, spec: DataSpec, given: str = "") -> bytes | None:
    """The tokenizer that an export of this run holds, None if the run has none; raises UsageError if it is not here."""
    if not spec.tokenizer_sha256:
        return None
    content = read_tokenizer(folder, spec) or tokenizer_file(spec, given)
    if content is None:  # `tokenizer_file` has none for bytes only
        raise UsageError("the run's tokenizer is not here; name its tokenizer.json with --tokenizer")
    return content
