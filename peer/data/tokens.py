"""Text into tokens: bytes, or a `tokenizer.json` whose hash the manifest holds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.run.manifest import DataSpec
from dht.errors import UsageError
from peer.data.hub import HUB, from_hub

Encode = Callable[[str], np.ndarray[Any, np.dtype[Any]]]
"""Text into token numbers, shape (tokens,)."""


def encode_bytes(text: str) -> np.ndarray[Any, np.dtype[Any]]:
    """UTF-8, a token each: uint8."""
    return np.frombuffer(text.encode(), dtype=np.uint8)


def tokenizer_file(spec: DataSpec, given: str) -> bytes | None:
    """The tokenizer that the run names or this machine's owner does; None for bytes. Raises UsageError.

    What is not the manifest's is refused: the same number has to mean the same piece of text everywhere.
    """
    where = given or (spec.tokenizer if spec.tokenizer.startswith(HUB) else "")  # no manifest names a file here
    if not where and not spec.tokenizer_sha256:
        return None
    if not where:
        raise UsageError("this run has a tokenizer that every peer brings; name its tokenizer.json with --tokenizer")
    if where.startswith(HUB):
        name = where.removeprefix(HUB)
        where = from_hub(name, lambda hub: hub.hf_hub_download(name, "tokenizer.json"))
    try:
        content = Path(where).read_bytes()
    except OSError as error:
        raise UsageError(f"the tokenizer {where} cannot be read: {error.strerror}") from None
    if spec.tokenizer_sha256 and hashlib.sha256(content).hexdigest() != spec.tokenizer_sha256:
        raise UsageError(f"{where} is not the run's tokenizer; ask its organiser for the file")
    return content


def encoder(content: bytes | None, vocabulary: int) -> Encode:
    """What turns text into tokens below `vocabulary`; raises UsageError if the tokenizer has more of them."""
    if content is None:
        if vocabulary < 256:
            raise UsageError("bytes are 256 tokens; write model.vocabulary = 256 or name a tokenizer")
        return encode_bytes
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # noqa: BLE001 - tokenizers raises bare exceptions
        raise UsageError(f"the tokenizer cannot be read: {error}") from None
    size = tokenizer.get_vocab_size()
    if size > vocabulary:
        raise UsageError(f"the tokenizer has {size} tokens; write model.vocabulary = {size}")
    return lambda text: np.array(tokenizer.encode(text).ids, dtype=np.int32)
