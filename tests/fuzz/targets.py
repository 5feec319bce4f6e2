"""Everything that reads what strangers wrote, each with good inputs to start from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from coordinator.chain.certificate import Certificate, Vote
from coordinator.chain.proof import Proof
from coordinator.run.manifest import Manifest, RunConfig
from coordinator.wire.messages import SIGNED_BODIES, STATEMENT_BODIES
from coordinator.wire.presence import Presence
from dht.addresses import PeerAddress
from dht.identity import KeyVerifier
from dht.invite import Invite
from dht.records import parse_record
from dht.statement import Statement
from dht.wire import Wire
from peer.export.listing import Listing
from peer.learner.messages import decode_frame
from peer.net.frames import StatusAnswer, decode_header
from peer.net.transport import FrameReader
from peer.numerics.codec import CODECS, Codec
from peer.rounds.public_status import decode_status
from tests.dht.conftest import ALICE, BOB
from tests.fuzz.courtroom import COURT_TARGETS
from tests.fuzz.headers import HEADERS, golden
from tests.fuzz.record_store import STORE_TARGETS
from tests.fuzz.spot_checks import INSPECTION_TARGETS
from tests.fuzz.strangers import STRANGER_TARGETS
from tests.fuzz.target import Target

ELEMENTS = 300  # of the vectors that codecs decode
PAYLOAD_BYTES_MAX = 1 << 16


def _header(data: bytes) -> object:
    message = decode_header(data)
    if isinstance(message, Statement):
        body = SIGNED_BODIES.get(message.context.kind)
        message.verify(KeyVerifier())
        return None if body is None else message.read(body)
    if isinstance(message, StatusAnswer):
        return decode_status(message)
    return message


def _frames(data: bytes) -> object:
    reader = FrameReader(PAYLOAD_BYTES_MAX)
    frames = [*reader.feed(data[: len(data) // 2]), *reader.feed(data[len(data) // 2 :])]
    assert reader.held_bytes <= len(data)
    return [decode_header(frame.header) for frame in frames]


def _frame(header: bytes, payload: bytes) -> bytes:
    return len(header).to_bytes(4, "big") + len(payload).to_bytes(4, "big") + header + payload


def _codec(codec: Codec) -> Target:
    vector = torch.linspace(-1, 1, ELEMENTS)

    def read(data: bytes) -> object:
        decoded = codec.decode(data, ELEMENTS)
        assert decoded.shape == (ELEMENTS,)
        assert bool(decoded.isfinite().all())
        return decoded

    return Target(read, (bytes(codec.encode(vector)),))


def _wire(model: type[Wire], pattern: str) -> Target:
    return Target(model.from_wire, golden(pattern))


def _address(data: bytes) -> str:
    """What a presence record, an invite or an owner calls an address: kept in files of ASCII."""
    text = PeerAddress.parse(data.decode("latin-1")).text  # so that a changed byte is a letter
    assert text.isascii()
    return text


ADDRESSES = tuple(
    f"{place}/p2p/{ALICE.peer_id}".encode()
    for place in (
        "/ip4/192.0.2.1/tcp/7400",
        "/dns4/peer.example/tcp/7400",
        "/ip6/fe80::1/udp/7400/quic-v1",
        f"/dns/relay.example/tcp/443/wss/p2p/{BOB.peer_id}/p2p-circuit",
    )
)

TARGETS: Mapping[str, Target] = {
    "header": Target(_header, HEADERS, prefix_bytes=1),
    "frames": Target(_frames, tuple(_frame(header, b"payload") * 2 for header in HEADERS), prefix_bytes=9),
    "certificate": _wire(Certificate, "coordinator_certificate.bin"),
    "manifest": _wire(Manifest, "coordinator_manifest.bin"),
    "proof": _wire(Proof, "coordinator_proof.bin"),
    "listing": _wire(Listing, "export_listing.bin"),
    "presence": _wire(Presence, "coordinator_presence.bin"),
    "address": Target(_address, ADDRESSES),
    "record": Target(parse_record, golden("record.bin")),
    "invite": Target(lambda data: Invite.parse(data.decode("utf-8", "replace")), golden("invite.txt")),
    "vote": _wire(Vote, "coordinator_vote.bin"),
    "learner": Target(decode_frame, (b"\x09\x93\x01\x02\x03", b"\x05\x91\x01"), prefix_bytes=1),
    "run_file": Target(
        lambda data: RunConfig.parse(data.decode("utf-8", "replace"), "a run file"),
        (Path("examples/tiny.toml").read_bytes(),),
    ),
    **{f"body_{kind}": _wire(model, f"coordinator_{kind}.bin") for kind, model in STATEMENT_BODIES.items()},
    **{f"codec_{name}": _codec(codec) for name, codec in CODECS.items()},
    **COURT_TARGETS,
    **INSPECTION_TARGETS,
    **STRANGER_TARGETS,
    **STORE_TARGETS,
}
