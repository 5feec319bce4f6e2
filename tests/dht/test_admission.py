"""A pass proves to anybody, offline, that its peer may take part; nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.trust.orders import delegate
from dht.addresses import PeerAddress
from dht.admission import (
    PASS_BYTES_MAX,
    USES_MAX,
    AdmissionAuthority,
    Grant,
    Pass,
    SignedGrant,
    Ticket,
    admit,
    pass_of,
    read_pass,
    sign_grant,
)
from dht.errors import PeerError
from dht.identity import Identity, KeyVerifier, PeerId
from dht.invite import TOKEN_BYTES_MAX, Invite
from tests.dht.conftest import ALICE, BOB, CAROL, DAVE, RUN_ID

ORGANISER, DEPUTY, INVITE_SEED = ALICE, BOB, b"i" * 32
INVITE_KEY = Identity(INVITE_SEED)
AUTHORITY = AdmissionAuthority(RUN_ID, ORGANISER.peer_id, KeyVerifier())
DELEGATION = delegate(ORGANISER, RUN_ID, DEPUTY.peer_id).signature

grants = st.builds(
    Grant,
    key=st.just(INVITE_KEY.peer_id),
    role=st.sampled_from(["trainer", "witness", "observer"]),
    uses=st.none() | st.integers(1, USES_MAX),
    expires_unix_seconds=st.none() | st.integers(0, 2**40),
)
words = st.builds(
    lambda grant, by_deputy: (
        sign_grant(DEPUTY, RUN_ID, grant, DELEGATION) if by_deputy else sign_grant(ORGANISER, RUN_ID, grant)
    ),
    grants,
    st.booleans(),
)


def shown(word: SignedGrant, peer: PeerId = CAROL.peer_id) -> bytes:
    return pass_of(Ticket(word=word, seed=INVITE_SEED), RUN_ID, peer).to_wire()


WORD = sign_grant(ORGANISER, RUN_ID, Grant(key=INVITE_KEY.peer_id, uses=5))
PASS = shown(WORD)


@given(words)
def test_the_holder_of_an_invite_is_let_in_as_it_says(word: SignedGrant) -> None:
    data = shown(word)
    found = read_pass(data, CAROL.peer_id, AUTHORITY)
    assert len(data) <= PASS_BYTES_MAX
    assert found.grant.to_wire() == word.grant
    assert found.invite == INVITE_KEY.peer_id
    assert found.issuer == (ORGANISER.peer_id if word.issuer is None else DEPUTY.peer_id)


@given(words)
def test_a_pass_is_of_one_peer_and_one_run(word: SignedGrant) -> None:
    data = shown(word)
    with pytest.raises(PeerError, match="another peer"):
        read_pass(data, DAVE.peer_id, AUTHORITY)
    with pytest.raises(PeerError):
        read_pass(data, CAROL.peer_id, AdmissionAuthority(bytes(32), ORGANISER.peer_id, KeyVerifier()))
    with pytest.raises(PeerError):
        read_pass(data, CAROL.peer_id, AdmissionAuthority(RUN_ID, DAVE.peer_id, KeyVerifier()))


@given(st.integers(0, 8 * len(PASS) - 1))
def test_no_bit_of_a_pass_may_be_another(bit: int) -> None:
    changed = bytearray(PASS)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(PeerError):
        read_pass(bytes(changed), CAROL.peer_id, AUTHORITY)


@given(st.binary(max_size=PASS_BYTES_MAX + 8))
def test_arbitrary_bytes_raise_only_peer_errors(data: bytes) -> None:
    with pytest.raises(PeerError):
        read_pass(data, CAROL.peer_id, AUTHORITY)


def test_a_grant_that_names_its_peer_is_a_pass_by_itself() -> None:
    word = sign_grant(ORGANISER, RUN_ID, Grant(key=CAROL.peer_id))
    data = pass_of(Ticket(word=word), RUN_ID, CAROL.peer_id).to_wire()
    assert read_pass(data, CAROL.peer_id, AUTHORITY).invite is None
    with pytest.raises(PeerError, match="another peer"):
        read_pass(data, DAVE.peer_id, AUTHORITY)


def test_only_the_organiser_and_its_deputies_grant() -> None:
    grant = Grant(key=INVITE_KEY.peer_id)
    forged = [
        sign_grant(DAVE, RUN_ID, grant),
        sign_grant(DAVE, RUN_ID, grant, DELEGATION),
        sign_grant(DAVE, RUN_ID, grant, delegate(DAVE, RUN_ID, DAVE.peer_id).signature),
        sign_grant(ORGANISER, RUN_ID, grant).model_copy(update={"issuer": DEPUTY.peer_id}),
        sign_grant(DEPUTY, RUN_ID, grant, DELEGATION).model_copy(update={"delegation": None}),
    ]
    for word in forged:
        with pytest.raises(PeerError):
            read_pass(shown(word), CAROL.peer_id, AUTHORITY)


def test_the_limits_of_an_invite_cannot_be_widened() -> None:
    wider = Grant(key=INVITE_KEY.peer_id, uses=USES_MAX)
    with pytest.raises(PeerError, match="did not sign"):
        read_pass(shown(WORD.model_copy(update={"grant": wider.to_wire()})), CAROL.peer_id, AUTHORITY)


def test_an_admission_to_one_grant_is_none_to_another_of_the_same_key() -> None:
    narrow, wide = WORD, sign_grant(ORGANISER, RUN_ID, Grant(key=INVITE_KEY.peer_id))
    moved = Pass(word=wide, admission=admit(INVITE_KEY, RUN_ID, narrow, CAROL.peer_id).admission)
    with pytest.raises(PeerError, match="another peer"):
        read_pass(moved.to_wire(), CAROL.peer_id, AUTHORITY)


@given(words)
def test_an_invite_carries_its_ticket_and_still_fits_a_line(word: SignedGrant) -> None:
    here = PeerAddress.parse(f"/ip4/203.0.113.7/tcp/7331/p2p/{ORGANISER.peer_id}")
    ticket = Ticket(word=word, seed=INVITE_SEED)
    text = str(Invite(RUN_ID, ORGANISER.peer_id, (here,), ticket=ticket))
    found = Invite.parse(text)
    assert len(ticket.to_wire()) <= TOKEN_BYTES_MAX
    assert len(text) < 900
    assert found.ticket == ticket
    assert read_pass(found.pass_for(CAROL.peer_id), CAROL.peer_id, AUTHORITY).invite == INVITE_KEY.peer_id
