"""The Hugging Face Hub: files by name, and one sentence if they cannot be had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dht.errors import UsageError

REASON_CHARACTERS = 300
HUB = "hub:"  # in front of a name in a run file


def from_hub(name: str, get: Callable[[Any], Any]) -> Any:
    """What `get` gets with `huggingface_hub`; raises UsageError in one sentence, whatever goes wrong."""
    import huggingface_hub

    try:
        return get(huggingface_hub)
    except Exception as error:  # noqa: BLE001 - its own, those of HTTP libraries, and of sockets
        reason = " ".join(str(error).split())[:REASON_CHARACTERS]
        raise UsageError(
            f"{name} cannot be had from the Hugging Face Hub: {type(error).__name__}: {reason}; check the name and the "
            "network, or give the path of a copy on this machine"
        ) from None


def hub_revision(name: str, wanted: str | None) -> str:
    """The commit of a data set that `wanted` begins, or today's; raises UsageError."""
    return str(from_hub(name, lambda hub: hub.HfApi().dataset_info(name, revision=wanted).sha))
