"""Files of the Hugging Face Hub by name, with a one-sentence error if they cannot be fetched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dht.errors import UsageError

REASON_CHARACTERS = 300
HUB = "hub:"  # prefix of a name in a run file


def from_hub(name: str, get: Callable[[Any], Any]) -> Any:
    """Return the result of `get` with `huggingface_hub`; raises a one-sentence UsageError for any failure."""
    import huggingface_hub

    try:
        return get(huggingface_hub)
    except Exception as error:  # noqa: BLE001 - errors of the library, of HTTP libraries, and of sockets
        reason = " ".join(str(error).split())[:REASON_CHARACTERS]
        raise UsageError(
            f"{name} cannot be had from the Hugging Face Hub: {type(error).__name__}: {reason}; check the name and the "
            "network, or give the path of a copy on this machine"
        ) from None


def hub_revision(name: str, wanted: str | None) -> str:
    """Return the commit of a data set that `wanted` abbreviates, or the newest; raises UsageError."""
    return str(from_hub(name, lambda hub: hub.HfApi().dataset_info(name, revision=wanted).sha))
