"""Muster with the next minor version of the protocol: `python -m tests.real.next_minor join INVITE`.

Everything that it signs, sends or publishes has one more field, wherever one may be appended.
"""

from __future__ import annotations

import importlib

from coordinator.core import context
from coordinator.wire.presence import Presence
from dht import wire
from tests.next_minor import next_minor_bytes, next_minor_statement


def main() -> None:
    wire.PROTOCOL_MINOR += 1
    Presence.model_fields["protocol_minor"].default = wire.PROTOCOL_MINOR
    Presence.model_rebuild(force=True)
    context.make_statement = next_minor_statement  # type: ignore[attr-defined]
    Presence.to_wire = next_minor_bytes
    frames = importlib.import_module("peer.net.frames")
    encode_older = frames.encode_header
    frames.encode_header = lambda message: encode_older(message)[:1] + next_minor_bytes(message)  # type: ignore[attr-defined]
    importlib.import_module("peer.cli.main").main()  # imported last, because senders import `encode_header` by name


if __name__ == "__main__":
    main()
