"""Golden bytes: what a major version wrote, every later reader of it must read, and every writer must still write.

The files lie in `tests/wire/`, in the folder of the major version. If a format changes on purpose, raise
`dht.wire.PROTOCOL_MAJOR` (or `dht.invite.INVITE_VERSION`), add a folder for the new version and write its files with

    python -m tests.dht.test_golden

The files of a version that has been released are never written again.
"""

from __future__ import annotations

import pytest

from dht.addresses import PeerAddress
from dht.identity import Identity, KeyVerifier
from dht.invite import INVITE_VERSION, Invite
from dht.records import RecordBody, make_record, parse_record, presence_key
from dht.statement import Context, Statement, make_statement
from dht.validation import RecordRules
from dht.wire import PROTOCOL_MAJOR, Wire
from tests.checkout import ROOT
from tests.dht.checking import check_record

FOLDER = ROOT / "tests" / "wire" / f"v{PROTOCOL_MAJOR}"
SIGNER = Identity(bytes(range(32)))
RUN_ID = bytes(range(32, 64))
ISSUED_UNIX_MILLISECONDS = 1_800_000_000_123


class Vote(Wire):
    """A body with every shape that the encoding knows."""

    number: int
    share: float
    text: str
    data: bytes
    nothing: bytes | None
    many: tuple[int, ...]


VOTE = Vote(number=-5, share=0.25, text="größer", data=b"\x00\xff", nothing=None, many=(1, 300, 70000))
KEY = presence_key(RUN_ID, 3)
BODY = RecordBody(
    payload=b"payload", issued_unix_milliseconds=ISSUED_UNIX_MILLISECONDS, lifetime_milliseconds=9000, work=42
)
INVITE = Invite(
    RUN_ID,
    SIGNER.peer_id,
    (
        PeerAddress.parse(f"/ip4/203.0.113.7/tcp/7331/p2p/{SIGNER.peer_id}"),
        PeerAddress.parse(f"/dns4/relay.example.org/udp/4001/quic-v1/p2p/{Identity(bytes(32)).peer_id}"),
    ),
    heads_digest=bytes(32),
    heads_version=300,
)


def golden() -> dict[str, bytes]:
    """Name and content of every golden file, as this version writes them."""
    context = Context(run_id=RUN_ID, kind="vote", fragment=3, version=2**40, group=b"g" * 32)
    return {
        "statement.bin": make_statement(SIGNER, context, VOTE).to_wire(),
        "record.bin": make_record(SIGNER, KEY, BODY).value,
        "invite.txt": f"{INVITE}\n".encode(),
    }


def test_the_folder_is_that_of_the_version() -> None:
    assert str(INVITE).startswith(f"muster{INVITE_VERSION}a")
    assert {path.name for path in FOLDER.iterdir()} >= set(golden())


@pytest.mark.parametrize("name", list(golden()))
def test_writers_write_what_this_version_wrote(name: str) -> None:
    assert golden()[name] == (FOLDER / name).read_bytes()


def test_readers_read_a_statement() -> None:
    statement = Statement.from_wire((FOLDER / "statement.bin").read_bytes())
    assert statement.verify(KeyVerifier())
    assert statement.sender == SIGNER.peer_id
    assert statement.read(Vote) == VOTE


def test_readers_read_a_record() -> None:
    value = (FOLDER / "record.bin").read_bytes()
    record = parse_record(value)
    assert (record.key, record.body) == (KEY, BODY)
    expires = (ISSUED_UNIX_MILLISECONDS + 9000) / 1000
    rules = RecordRules(RUN_ID, KeyVerifier())
    assert check_record(KEY, SIGNER.peer_id, value, expires, expires - 1, rules) is None


@pytest.mark.parametrize("name", ["invite.txt", "invite_token.txt"])  # the latter holds what is not looked at any more
def test_readers_read_an_invite(name: str) -> None:
    assert Invite.parse((FOLDER / name).read_text()) == INVITE


def write() -> None:
    """Write the golden files of a new version."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in golden().items():
        (FOLDER / name).write_bytes(content)


if __name__ == "__main__":
    write()
