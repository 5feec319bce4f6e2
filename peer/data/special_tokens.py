"""The tokens that a tokenizer puts before and after a document: the host finds them, and its manifest fixes them.

`tokenizer.json` does not state them directly. The sources are, in this order: the `tokenizer_config.json` beside it,
the tokens its template adds around a text, and names in common use.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from dht.errors import UsageError
from peer.data.hub import HUB, from_hub

CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
ENDS = ("</s>", "<eos>", "[EOS]", "<|end_of_text|>", "<|endoftext|>", "<|end▁of▁sentence|>", "[SEP]")


def special_tokens(content: bytes, where: str) -> tuple[int | None, int | None]:
    """Return the numbers of the begin and end tokens of a tokenizer with this content, read from `where`.

    A tokenizer may have a begin token that it never writes, like GPT-2's: then documents have none.
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


def chat_template(where: str) -> str | None:
    """Return the chat template beside the tokenizer at `where`; None if there is none."""
    text = _beside(where, TEMPLATE)
    if text is not None:
        return text
    found = _config(where).get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def token_texts(content: bytes | None, where: str) -> dict[str, str]:
    """Return the texts of the tokenizer's special tokens, by names such as `eos_token`."""
    if content is None:
        return {}
    from tokenizers import Tokenizer

    named = {name: _text(value) for name, value in _config(where).items() if name.endswith("_token")}
    begin, end = special_tokens(content, where)
    tokenizer = Tokenizer.from_buffer(content)
    found = {"bos_token": begin, "eos_token": end}
    own = {name: tokenizer.id_to_token(number) for name, number in found.items() if number is not None}
    return {name: text for name, text in (own | named).items() if isinstance(text, str)}


def _text(token: Any) -> Any:
    """Return the text of a token in a config, which is a string or a table that contains it."""
    return token.get("content") if isinstance(token, dict) else token


def _number(tokenizer: Any, token: Any) -> int | None:
    text = _text(token)
    return tokenizer.token_to_id(text) if isinstance(text, str) else None


def _template(tokenizer: Any) -> tuple[int | None, int | None]:
    """Return the tokens that the tokenizer itself adds before and after a text, one each at most."""
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
    with suppress(ValueError):
        found = json.loads(_beside(where, CONFIG) or "{}")
        return found if isinstance(found, dict) else {}
    return {}


def _beside(where: str, name: str) -> str | None:
    """Return the text of a file beside a tokenizer, in a local folder or on the Hub; None if there is none."""
    path = Path(where).with_name(name)
    if where.startswith(HUB):
        repository = where.removeprefix(HUB)
        try:
            path = Path(from_hub(repository, lambda hub: hub.hf_hub_download(repository, name)))
        except UsageError:
            return None
    with suppress(OSError, ValueError):
        return path.read_text(encoding="utf-8")
    return None
