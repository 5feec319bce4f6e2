"""The run's tokenizer in the run's folder, for exports: the owner's own file may move away meanwhile."""

from __future__ import annotations

import hashlib
from pathlib import Path

from coordinator.run.data_spec import DataSpec
from dht.errors import LocalError, UsageError
from dht.files import write_whole
from peer.data.tokens import tokenizer_file

TOKENIZER_FILE = "tokenizer.json"


def keep_tokenizer(folder: Path, spec: DataSpec, given: str) -> None:
    """Copy the run's tokenizer, if any, into the run's folder; `given` is the owner's file or source.

    Raises UsageError if it is not available, LocalError if it cannot be written.
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
    """Return the copy in the run's folder; None if it is missing or not the run's."""
    try:
        content = (folder / TOKENIZER_FILE).read_bytes()
    except OSError:
        return None
    return content if hashlib.sha256(content).hexdigest() == spec.tokenizer_sha256 else None


def exported_tokenizer(folder: Path, spec: DataSpec, given: str = "") -> bytes | None:
    """Return the tokenizer for an export of this run, None if the run has none; raises UsageError if it is missing."""
    if not spec.tokenizer_sha256:
        return None
    content = read_tokenizer(folder, spec) or tokenizer_file(spec, given)
    if content is None:  # `tokenizer_file` returns None if bytes are the tokens
        raise UsageError("the run's tokenizer is not here; name its tokenizer.json with --tokenizer")
    return content
