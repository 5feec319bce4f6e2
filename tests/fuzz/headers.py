"""A good header of every kind of message and of every statement, to start from."""

from __future__ import annotations

import re
from typing import get_args

from coordinator.chain.certificate import Certificate
from coordinator.wire.messages import SIGNED_BODIES, Message
from dht.statement import Statement, digest_of
from dht.wire import PROTOCOL_MAJOR, Wire
from peer.net.frames import (
    HeadsAnswer,
    HeadsAsk,
    ManifestAnswer,
    ManifestAsk,
    ProbeAnswer,
    ProbeAsk,
    StateAsk,
    StatePiece,
    StatusAnswer,
    StatusAsk,
    TailAnswer,
    TailAsk,
    Transfer,
    encode_header,
)
from tests.checkout import ROOT

GOLDEN = ROOT / "tests" / "wire" / f"v{PROTOCOL_MAJOR}"
NOTES = tuple(kind for kind in get_args(Message) if kind is not Statement)


def golden(pattern: str) -> tuple[bytes, ...]:
    """The content of the golden files of this name."""
    found = tuple(path.read_bytes() for path in sorted(GOLDEN.glob(pattern)))
    assert found, f"no golden file is called {pattern}"
    return found


def golden_note(kind: type[Wire]) -> bytes:
    """The golden file of a note, which bears its class's name."""
    (found,) = golden(f"coordinator_{re.sub('(?<!^)(?=[A-Z])', '_', kind.__name__).lower()}.bin")
    return found


def statements() -> tuple[Statement, ...]:
    """A statement with every body that there is."""
    outer = Statement.from_wire(golden("statement.bin")[0])
    return tuple(
        outer.model_copy(
            update={
                "context": outer.context.model_copy(update={"kind": kind}),
                "body": golden(f"coordinator_{kind}.bin")[0],
            }
        )
        for kind in SIGNED_BODIES
    )


def notes() -> tuple[Message, ...]:
    """Every note between the members of a group."""
    return tuple(kind.from_wire(golden_note(kind)) for kind in NOTES)


def transfers() -> tuple[Transfer, ...]:
    """Every question outside of rounds, and every answer."""
    certificate = Certificate.from_wire(golden("coordinator_certificate.bin")[0])
    digest = digest_of(b"certificate")
    return (
        StateAsk(fragment=1, certificate=digest, piece=3),
        StateAsk(fragment=1, certificate=digest, piece=None),
        StatePiece(fragment=1, certificate=digest, piece=3),
        ManifestAsk(),
        ManifestAnswer(manifest=golden("coordinator_manifest.bin")[0]),
        StatusAsk(),
        StatusAnswer(status=b'{"role": "learner", "note": "a", "wall_seconds": 1.5}'),
        ProbeAsk(ticket=1, port=7400),
        ProbeAnswer(ticket=1, unix_milliseconds=1, seen_host="203.0.113.7", reachable=True),
        HeadsAsk(version=5, digest=digest),
        HeadsAnswer(digest=digest, heads=(digest, digest)),
        TailAsk(fragment=1, version=5, head=digest),
        TailAnswer(fragment=0, head=certificate.digest, certificates=(certificate,)),
    )


HEADERS = tuple(encode_header(message) for message in (*statements(), *notes(), *transfers()))
