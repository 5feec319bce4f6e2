"""Which tokens of a tokenizer stand before and after a document: the host finds them, and its manifest fixes them.

`tokenizer.json` itself does not say it in so many words. Asked in this order: the `tokenizer_config.json` beside it,
what its template puts around a text, and the names that are in use for it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from dht.errors import UsageError
from peer.data.hub import HUB, from_hub

CONFIG = "tokenizer_config.json"
ENDS = ("</s>", "<eos>", "[EOS]", "<|end_of_text|>", "<|endoftext|>", "<|end▁of▁sentence|>", "[SEP]")


def special_tokens(content: bytes, where: str) -> tuple[int | None, int | None]:
    """Numbers of the begin and the end token of the tokenizer with this content, which was read from `where`.

    A tokenizer may know a begin token and never write it, as GPT-2's does: then documents have none.
    """
    from tokenizers import Tokenizer

    tokenizer, config = Tokenizer.from_buffer(content), _config(where)
    before, after = _template(tokenizer)
    begin = before
    if "add_bos_token" in config:
        begin = _number(tokenizer, config.get("bos_token")) if config["add_bos_token"] else None
    if "eos_token" in config:
        return begin, _number(tokenizer, config["eos_token"])
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    named = (tokenizer.token_to_id(name) for name in ENDS if name in special)
    return begin, next(named, None) if after is None else after


def _number(tokenizer: Any, token: Any) -> int | None:
    """Of a token as a config writes it: its text, or a table that holds it."""
    text = token.get("content") if isinstance(token, dict) else token
    return tokenizer.token_to_id(text) if isinstance(text, str) else None


def _template(tokenizer: Any) -> tuple[int | None, int | None]:
    """What the tokenizer itself writes before and after a text, if that is one token."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a").ids
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            before, after = whole[:start], whole[start + len(bare) :]
            return (before[-1] if before else None), (after[0] if after else None)
    return None, None


def _config(where: str) -> dict[str, Any]:
    path = Path(where).with_name(CONFIG)
    if where.startswith(HUB):
        name = where.removeprefix(HUB)
        try:
            path = Path(from_hub(name, lambda hub: hub.hf_hub_download(name, CONFIG)))
        except UsageError:
            return {}  # it has none
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}
