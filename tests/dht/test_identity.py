from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from dht.errors import LocalError, PeerError, UsageError
from dht.identity import Identity, KeyVerifier, PeerId, peer_id_of, public_key_of
from tests.dht.conftest import ALICE, BOB

verifier = KeyVerifier()


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=100))
def test_anyone_verifies_from_the_peer_id_alone(seed: bytes, message: bytes) -> None:
    identity = Identity(seed)
    assert verifier.verify(identity.peer_id, message, identity.sign(message))
    assert not verifier.verify(identity.peer_id, message + b"x", identity.sign(message))


@given(st.binary(min_size=32, max_size=32))
def test_the_peer_id_contains_the_key(public: bytes) -> None:
    assert public_key_of(peer_id_of(public)).public_bytes_raw() == public


@given(st.text(max_size=80), st.binary(max_size=80), st.binary(max_size=80))
def test_hostile_input_never_raises_in_verify(peer_id: str, message: bytes, signature: bytes) -> None:
    assert not verifier.verify(PeerId(peer_id), message, signature)


@given(st.text(max_size=80))
def test_hostile_peer_ids_raise_only_peer_error(peer_id: str) -> None:
    with pytest.raises(PeerError):
        public_key_of(PeerId(peer_id))


@given(st.integers(0, 63), st.integers(1, 255))
def test_a_changed_signature_is_refused(index: int, flip: int) -> None:
    signature = bytearray(ALICE.sign(b"message"))
    signature[index] ^= flip
    assert not verifier.verify(ALICE.peer_id, b"message", bytes(signature))


def test_signatures_of_another_peer_are_refused() -> None:
    assert not verifier.verify(BOB.peer_id, b"message", ALICE.sign(b"message"))


@given(st.binary(max_size=20), st.binary(max_size=20), st.text(max_size=3), st.booleans())
def test_a_remembered_signature_makes_nothing_else_true(message: bytes, other: bytes, more: str, by_bob: bool) -> None:
    one, signature = KeyVerifier(), ALICE.sign(message)
    for _ in range(2):
        assert one.verify(ALICE.peer_id, message, signature)
    claimed = BOB.peer_id if by_bob else PeerId(ALICE.peer_id + more)
    true = (claimed, other) == (ALICE.peer_id, message)
    assert one.verify(claimed, other, signature) is true
    assert one.verify(PeerId(f"{ALICE.peer_id}{message.decode('latin-1')}"), b"", signature) is (message == b"")


@pytest.mark.parametrize("text", ["{}\r", "{} ", "{}\n"])
def test_a_key_has_one_id(text: str) -> None:
    claimed = PeerId(text.format(ALICE.peer_id))
    with pytest.raises(PeerError):
        public_key_of(claimed)
    assert not verifier.verify(claimed, b"", ALICE.sign(b""))


def test_each_true_signature_costs_one_look_while_it_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[PeerId] = []

    def counted(peer_id: PeerId) -> Ed25519PublicKey:
        looked_at.append(peer_id)
        return public_key_of(peer_id)

    monkeypatch.setattr("dht.identity.public_key_of", counted)
    monkeypatch.setattr("dht.identity.VERIFIED_KEPT", 2)
    one, said = KeyVerifier(), [(message, ALICE.sign(message)) for message in (b"a", b"b", b"c")]
    for message, signature in (said[0], said[0], said[1], said[0]):
        assert one.verify(ALICE.peer_id, message, signature)
    assert len(looked_at) == 2
    for _ in range(2):  # forgeries are looked at each time, and drive nothing out
        assert not one.verify(ALICE.peer_id, b"a", said[1][1])
    assert one.verify(ALICE.peer_id, *said[0])
    assert len(looked_at) == 4
    for message, signature in (said[2], said[1], said[0]):  # the third drives the first out
        assert one.verify(ALICE.peer_id, message, signature)
    assert len(looked_at) == 6


def test_the_file_is_private_and_survives_a_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "identity"
    ALICE.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Identity.load(path).peer_id == ALICE.peer_id
    assert Identity.load_or_create(path).peer_id == ALICE.peer_id


def test_a_key_is_made_on_first_use_and_kept(tmp_path: Path) -> None:
    first = Identity.load_or_create(tmp_path / "identity")
    assert Identity.load_or_create(tmp_path / "identity").peer_id == first.peer_id
    assert Identity.load_or_create(tmp_path / "other").peer_id != first.peer_id


def test_an_existing_key_is_never_overwritten(tmp_path: Path) -> None:
    ALICE.save(tmp_path / "identity")
    with pytest.raises(UsageError, match="already holds a key"):
        BOB.save(tmp_path / "identity")
    assert Identity.load(tmp_path / "identity").peer_id == ALICE.peer_id


def test_where_no_key_can_be_kept_it_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LocalError, match=r"cannot be written: File exists; .* choose another folder \(--data\)"):
        ALICE.save(tmp_path / "file" / "identity")


def test_files_that_are_no_keys_are_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "identity"
    with pytest.raises(UsageError, match="no key file"):
        Identity.load(path)
    path.write_bytes(b"-----BEGIN RSA PRIVATE KEY-----")
    with pytest.raises(UsageError, match="not an Ed25519"):
        Identity.load(path)
    good = ALICE.libp2p_private_key()
    path.write_bytes(good[:-1])
    with pytest.raises(UsageError, match="not an Ed25519"):
        Identity.load(path)
    path.write_bytes(good[:-32] + BOB.libp2p_private_key()[-32:])
    with pytest.raises(UsageError, match="damaged"):
        Identity.load(path)


def test_seeds_have_one_length() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Identity(b"short")
