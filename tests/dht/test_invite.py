from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.addresses import PeerAddress
from dht.errors import UsageError
from dht.identity import Identity
from dht.invite import ADDRESSES_MAX, Invite, _encode, _framed, looks_like_invite
from tests.dht.conftest import ALICE, BOB, RUN_ID

HERE = PeerAddress.parse(f"/ip4/203.0.113.7/tcp/7331/p2p/{ALICE.peer_id}")
RELAYED = PeerAddress.parse(f"/dns4/relay.example.org/tcp/1/p2p/{BOB.peer_id}/p2p-circuit/p2p/{ALICE.peer_id}")
INVITE = Invite(RUN_ID, ALICE.peer_id, (HERE, RELAYED), heads_digest=b"h" * 32)
TEXT = str(INVITE)

seeds = st.binary(min_size=32, max_size=32)
addresses = st.builds(
    lambda host, port, seed: PeerAddress.parse(f"/ip{host.version}/{host}/tcp/{port}/p2p/{Identity(seed).peer_id}"),
    st.ip_addresses(),
    st.integers(1, 65535),
    st.sampled_from([b"a" * 32, b"b" * 32]),
)
invites = st.builds(
    Invite,
    run_id=st.binary(min_size=32, max_size=32),
    organiser=seeds.map(lambda seed: Identity(seed).peer_id),
    addresses=st.lists(addresses, min_size=1, max_size=ADDRESSES_MAX).map(tuple),
    heads_digest=st.none() | st.binary(min_size=32, max_size=32),
    heads_version=st.none() | st.integers(0, 2**53),
)


@given(invites)
def test_round_trip(invite: Invite) -> None:
    text = str(invite)
    assert Invite.parse(text) == invite
    assert text.startswith("muster1a")
    assert text.isalnum()


def test_the_common_invite_is_short_enough_to_paste() -> None:
    assert len(str(Invite(RUN_ID, ALICE.peer_id, (HERE,)))) < 200


def test_wrapping_capitals_and_spaces_do_no_harm() -> None:
    wrapped = "\n ".join(TEXT[start : start + 40] for start in range(0, len(TEXT), 40))
    assert Invite.parse(f"  {wrapped.upper()}\n") == INVITE


@pytest.mark.parametrize("label", ["invite: ", " invite:", "INVITE:\n"])
def test_an_invite_may_be_pasted_with_its_label(label: str) -> None:
    assert Invite.parse(label + TEXT) == INVITE
    assert looks_like_invite(label + TEXT)
    assert not looks_like_invite(label + "run.toml")


def test_every_truncation_is_refused_as_one() -> None:
    for length in range(1, len(TEXT)):
        with pytest.raises(UsageError, match="cut short"):
            Invite.parse(TEXT[:length])


@given(st.integers(len("muster1"), len(TEXT) - 1), st.sampled_from("abcdefghijklmnopqrstuvwxyz234567"))
def test_every_changed_letter_is_refused(index: int, letter: str) -> None:
    changed = TEXT[:index] + letter + TEXT[index + 1 :]
    if changed == TEXT:
        return
    with pytest.raises(UsageError, match=r"damaged|cut short|after the end|newer Muster"):
        Invite.parse(changed)


@given(st.text(max_size=60) | st.text(max_size=60).map("muster1a".__add__))
def test_arbitrary_text_raises_only_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        Invite.parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not an invite"),
        ("/ip4/203.0.113.7/tcp/7331", "not an invite"),
        ("muster2" + TEXT[7:], "newer Muster; update"),
        ("muster12" + TEXT[7:], "newer Muster; update"),
        ("muster0" + TEXT[7:], "damaged"),
        (TEXT[:50] + "0" + TEXT[51:], "damaged"),
        (TEXT[:50] + "ü" + TEXT[51:], "damaged"),
        (TEXT + "aaaaaaaa", "after the end"),
        ("muster1" + _encode(_framed(b"\x93\x01\x02\x03")), "cannot read"),
    ],
)
def test_errors_are_in_words(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Invite.parse(text)


def test_an_invite_has_addresses_and_fits_a_line() -> None:
    with pytest.raises(UsageError, match="1 to 8 addresses"):
        str(Invite(RUN_ID, ALICE.peer_id, ()))
    with pytest.raises(UsageError, match="1 to 8 addresses"):
        str(Invite(RUN_ID, ALICE.peer_id, (HERE,) * 9))
    long = PeerAddress.parse(f"/dns4/{'.'.join(['x' * 60] * 4)}/tcp/1/p2p/{BOB.peer_id}")
    with pytest.raises(UsageError, match="fewer addresses"):
        str(Invite(RUN_ID, ALICE.peer_id, (long,) * 8))
