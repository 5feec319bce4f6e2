"""The run files that ship with Muster: inside an installed package, or in the examples of a checkout."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from dht.errors import UsageError

TINY = "tiny"
PRESETS = {
    TINY: "four learners on two processor cores, bytes of Python's own source text, five minutes",
    "gpt2-124m": "GPT-2 with 124 million parameters, from your own text and tokenizer",
    "invite": "for friends: everybody with an invite takes part, and audits are on",
    "public": "for anybody: strangers on probation, bounded in every group, audited",
    "continue": "goes on with a model that there is, on your own text",
    "chat-lora": "teaches a model that there is to talk, by an adapter of it in four bits, on your own conversations",
}
_PACKAGED = "presets"
_CHECKOUT = Path(__file__).resolve().parents[2] / "examples"  # the same files before they are packed into a wheel


def preset_text(name: str) -> str:
    """The text of a run file that ships; raises UsageError if none has this name."""
    if name not in PRESETS:
        raise UsageError(f"there is no preset {name!r}; choose one of {', '.join(PRESETS)}")
    packaged = files("peer") / _PACKAGED / f"{name}.toml"
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    return (_CHECKOUT / f"{name}.toml").read_text(encoding="utf-8")
