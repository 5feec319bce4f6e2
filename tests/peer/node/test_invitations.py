"""Invites that an organiser issues: how they are asked for and kept, and what becomes of peers that came by one."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from coordinator.run.admission_spec import AdmissionMode, AdmissionSpec
from coordinator.simulator.simulation import World
from coordinator.trust.orders import delegate
from dht.admission import AdmissionAuthority, Grant, Ticket, pass_of, read_pass, sign_grant
from dht.errors import LocalError, UsageError
from dht.identity import Identity, PeerId
from dht.refusal import ADVICE, Refusal
from peer.node.invitations import Invitations, WantedInvite
from peer.node.membership import REFUSED_SECONDS, UNSEEN_SECONDS, Membership
from peer.node.organiser_rights import OrganiserRights
from peer.storage.invite_file import INVITES_FILE, read_invites
from tests.coordinator.builders import presence
from tests.peer.node.test_membership import Driven
from tests.sim.worlds import LINKS, PACE

GUEST = Identity(b"g" * 32)


class Home:
    """The organiser of a run with this admission mode, with real keys and a data folder."""

    def __init__(self, folder: Path, mode: AdmissionMode = "invite") -> None:
        spec = AdmissionSpec(mode=mode) if mode != "open" else None
        self.world = World(PACE, [2.0, 2.0], [0], 1, LINKS, real_keys=True, admission=spec)
        for peer in self.world.peers:
            peer.start()
        self.peer, self.other = self.world.peers
        assert self.peer.engine is not None
        self.core = self.peer.engine.core
        self.folder = folder
        self.organiser_rights = OrganiserRights(self.core, self.peer.signer, folder)
        self.invitations = Invitations(self.core, self.organiser_rights, folder, None)
        driver: Any = Driven(self.world, self.peer)
        self.membership = Membership(driver, self.organiser_rights, self.invitations, "home")

    def ticket(self, *words: str) -> Ticket:
        found = self.invitations.ticket(words, self.world.clock.now)
        assert found is not None
        return found

    def refusal(self, ticket: Ticket, peer: PeerId = GUEST.peer_id) -> Refusal | None:
        shown = pass_of(ticket, self.core.rules.run_id, peer).to_wire()
        return self.core.admission.refusal(peer, shown, self.core.unix_seconds(self.world.clock.now))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_the_usual_invite_is_one_and_the_same_until_it_is_withdrawn(home: Home) -> None:
    first = home.ticket()
    assert home.ticket() == first
    assert home.ticket("note=for Ann") != first
    assert home.ticket() == first
    assert home.refusal(first) is None
    home.membership.order(first.grant.key[-8:], "leaked", revoked=True)
    assert home.refusal(first) is Refusal.WITHDRAWN
    second = home.ticket()
    assert second != first
    assert home.refusal(second) is None


@pytest.mark.parametrize("letters", [0, 1, 5])
def test_an_invite_is_not_withdrawn_by_a_few_letters(home: Home, letters: int) -> None:
    ticket = home.ticket()
    subject = ticket.grant.key[len(ticket.grant.key) - letters :]
    for text in (subject, f"…{subject}"):
        with pytest.raises(UsageError, match="by the last 6 letters"):
            home.membership.order(text, "", revoked=True)
    assert home.refusal(ticket) is None
    assert home.invitations.find(ticket.grant.key[-6:]) == ticket.grant.key


def test_limits_go_into_the_grant_and_the_note_does_not(home: Home) -> None:
    ticket = home.ticket("uses=5", "expires=7d", "note=for Ann")
    unix_seconds = int(home.core.unix_seconds(home.world.clock.now))
    grant = ticket.grant
    assert (grant.uses, grant.role, grant.expires_unix_seconds) == (5, "trainer", unix_seconds + 7 * 86_400)
    assert b"Ann" not in ticket.to_wire()
    (view,) = home.invitations.views()
    assert (view.note, view.uses, view.used, view.role) == ("for Ann", 5, 0, "trainer")
    assert home.invitations.find("for Ann") == grant.key


def test_an_invite_may_be_for_one_peer_alone(home: Home) -> None:
    ticket = home.ticket(f"peer={GUEST.peer_id}")
    assert ticket.seed is None
    assert home.refusal(ticket) is None
    assert home.refusal(ticket, home.other.me) is Refusal.FALSE_PASS


def test_a_list_takes_named_peers_only(tmp_path: Path) -> None:
    home = Home(tmp_path, "list")
    for words in ((), ("uses=5",)):
        with pytest.raises(UsageError, match="--peer ID"):
            home.ticket(*words)
    assert home.refusal(home.ticket(f"peer={GUEST.peer_id}")) is None


def test_where_anybody_may_come_no_invite_has_limits(tmp_path: Path) -> None:
    home = Home(tmp_path, "open")
    assert home.invitations.ticket((), 0.0) is None
    with pytest.raises(UsageError, match="anybody may take part"):
        home.ticket("uses=5")


def test_a_peer_that_came_by_an_invite_hands_it_on_and_limits_nothing(home: Home) -> None:
    assert home.other.engine is not None
    core, ticket = home.other.engine.core, home.ticket()
    organiser_rights = OrganiserRights(core, home.other.signer, home.folder / "other")
    theirs = Invitations(core, organiser_rights, home.folder / "other", ticket)
    assert theirs.ticket((), 0.0) == ticket
    with pytest.raises(UsageError, match="only the organiser"):
        theirs.ticket(("uses=5",), 0.0)
    alone = Invitations(core, organiser_rights, home.folder / "other", home.ticket(f"peer={home.other.me}"))
    with pytest.raises(UsageError, match="for it alone; ask the organiser"):
        alone.ticket((), 0.0)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("uses=many",), "no number"),
        (("uses=0",), "greater than or equal to 1"),
        (("expires=soon",), "no time"),
        (("expires=0d",), "no time"),
        (("role=king",), "choose one of trainer, observer"),
        (("role=witness",), "choose one of trainer, observer"),
        (("uses=2", "role=observer"), "counts peers that train"),
        (("colour=red",), "nothing that an invite has"),
    ],
)
def test_an_option_that_no_invite_can_have_is_refused_in_words(home: Home, words: tuple[str, ...], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        home.ticket(*words)
    assert read_invites(home.folder) == ()


def test_invites_are_kept_for_the_owner_s_eyes_only_and_a_damaged_file_is_told(home: Home) -> None:
    home.ticket()
    path = home.folder / INVITES_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("[{]")
    with pytest.raises(LocalError, match="restore it from a backup"):
        home.ticket()


@pytest.mark.parametrize("everybody", [False, True])
def test_a_peer_that_came_by_a_withdrawn_invite_stays_unless_all_shall_go(home: Home, everybody: bool) -> None:
    ticket, guest = home.ticket("uses=3"), home.other.me
    shown = pass_of(ticket, home.core.rules.run_id, guest).to_wire()
    home.other.own_pass = shown
    home.other.crash()
    home.other.start()
    home.world.run(10.0)
    assert guest in home.core.admission.shown
    (row,) = (one for one in home.membership.view({}).members if one.peer_id == guest)
    assert row.invite == ticket.grant.key
    assert home.membership.open_invite_of(guest) == ticket.grant.key
    assert home.membership.is_invite(home.membership.order(ticket.grant.key, "leaked", everybody, revoked=True))
    unix_seconds = home.core.unix_seconds(home.world.clock.now)
    assert home.core.admission.refusal(guest, shown, unix_seconds) is (Refusal.REVOKED if everybody else None)
    assert home.membership.open_invite_of(guest) is None
    assert home.refusal(ticket) is Refusal.WITHDRAWN
    assert ticket.grant.key not in {one.peer_id for one in home.membership.view({}).members}
    home.membership.order(ticket.grant.key, "", revoked=False)
    assert home.refusal(ticket) is None


@pytest.mark.parametrize("mode", ["invite", "list"])
def test_a_named_peer_is_a_member_and_is_shown_out_like_any_other(tmp_path: Path, mode: AdmissionMode) -> None:
    home = Home(tmp_path, mode)
    guest = home.other.me
    ticket = home.ticket(f"peer={guest}", "note=for Ann")
    assert home.refusal(ticket, guest) is None  # so that its pass was seen
    home.core.presence.see(guest, presence(1), home.world.clock.now)
    for subject in (f"…{guest[-8:]}", "for Ann"):
        assert home.membership.order(subject, "a quarrel", revoked=True) == guest
        assert not home.membership.is_invite(guest)
        rows = {one.peer_id: one.out for one in home.membership.view({}).members}
        assert rows[guest] == "removed by the organiser: a quarrel"
        assert home.refusal(ticket, guest) is Refusal.REVOKED
        assert home.membership.order(subject, "", revoked=False) == guest
        assert {one.peer_id: one.out for one in home.membership.view({}).members}[guest] == ""


def test_a_co_organiser_gives_invites_and_orders_until_it_is_shown_out(home: Home) -> None:
    other, folder = home.other, home.folder / "other"
    folder.mkdir()
    other.own_pass = pass_of(home.ticket(), home.core.rules.run_id, other.me).to_wire()
    other.crash()
    other.start()
    assert other.engine is not None
    organiser_rights = OrganiserRights(other.engine.core, other.signer, folder)
    invitations = Invitations(other.engine.core, organiser_rights, folder, None)
    driver: Any = Driven(home.world, other)
    membership = Membership(driver, organiser_rights, invitations, "other")
    home.world.run(5.0)
    with pytest.raises(UsageError, match="only the organiser of the run and its co-organisers"):
        membership.order(home.peer.me, "", revoked=True)
    with pytest.raises(UsageError, match="only the organiser appoints"):
        membership.deputise(home.peer.me)
    peer, word = home.membership.deputise(other.me[-8:])
    assert peer == other.me
    for wrong in ("", "zz", word[2:], bytes(64).hex()):
        with pytest.raises(UsageError, match="not the organiser's word"):
            organiser_rights.accept(wrong)
    organiser_rights.accept(word)
    ticket = invitations.ticket(("uses=2",), home.world.clock.now)
    assert ticket is not None
    assert home.refusal(ticket) is None
    with pytest.raises(UsageError, match="cannot remove itself"):
        membership.order(home.peer.me, "", revoked=True)
    membership.order(ticket.grant.key, "", revoked=True)
    home.world.run(5.0)
    assert home.refusal(ticket) is Refusal.WITHDRAWN
    again = invitations.ticket(("uses=3",), home.world.clock.now)
    assert again is not None
    assert home.refusal(again) is None
    guest = Identity(b"c" * 32).peer_id
    shown = pass_of(again, home.core.rules.run_id, guest).to_wire()
    unix_seconds = home.core.unix_seconds(home.world.clock.now)
    assert other.engine.core.admission.refusal(guest, shown, unix_seconds) is None
    for engine in (other.engine, home.peer.engine):
        assert engine is not None
        engine.core.presence.see(guest, presence(), home.world.clock.now)
    home.membership.order(guest, "", revoked=True)
    home.membership.order(guest, "", revoked=False)
    home.world.run(1.0)
    with pytest.raises(UsageError, match=f"order about {guest} does not count"):
        membership.order(again.grant.key, "", True, revoked=True)
    assert other.engine.core.bans.orders.is_revoked(PeerId(again.grant.key))  # revoked all the same, as all others
    membership.order(again.grant.key, "", revoked=False)
    home.membership.order(other.me, "", revoked=True)
    assert home.refusal(again) is Refusal.WITHDRAWN
    home.world.run(5.0)
    with pytest.raises(UsageError, match="does not count: the organiser has said otherwise"):
        membership.order(again.grant.key, "", revoked=True)


def test_a_guest_of_a_co_organiser_that_was_shown_out_can_be_let_in_again(home: Home) -> None:
    run_id, deputy, invite = home.core.rules.run_id, Identity(b"d" * 32), Identity(b"i" * 32)
    word = delegate(home.peer.signer, run_id, deputy.peer_id).signature
    ticket = Ticket(word=sign_grant(deputy, run_id, Grant(key=invite.peer_id), word), seed=b"i" * 32)
    assert home.refusal(ticket) is None
    with pytest.raises(UsageError, match="cannot be readmitted"):
        home.membership.order(GUEST.peer_id, "", revoked=False)
    home.membership.order(deputy.peer_id, "", revoked=True)
    assert home.refusal(ticket) is Refusal.WITHDRAWN
    home.membership.order(GUEST.peer_id, "", revoked=False)
    assert home.refusal(ticket) is None


def note_result_arrival(home: Home, shown: bytes) -> Membership:
    """Restart the other peer with this pass, and return its membership."""
    other = home.other
    other.own_pass = shown
    other.crash()
    other.start()
    assert other.engine is not None
    organiser_rights = OrganiserRights(other.engine.core, other.signer, home.folder)
    driver: Any = Driven(home.world, other)
    invitations = Invitations(other.engine.core, organiser_rights, home.folder, None)
    return Membership(driver, organiser_rights, invitations, "other")


def granted(home: Home, **limits: Any) -> bytes:
    """Return the other peer's pass by an invite with these limits, which the organiser signs by itself."""
    key, run_id = Identity(b"k" * 32), home.core.rules.run_id
    word = sign_grant(home.peer.signer, run_id, Grant(key=key.peer_id, **limits))
    return pass_of(Ticket(word=word, seed=b"k" * 32), run_id, home.other.me).to_wire()


@pytest.mark.parametrize(
    ("refusal", "mode", "limits", "seconds"),
    [
        (Refusal.ONLY_OBSERVES, "invite", {"role": "observer"}, REFUSED_SECONDS),
        (Refusal.ONLY_VOTES, "invite", {"role": "witness"}, REFUSED_SECONDS),
        (Refusal.NOT_NAMED, "list", {}, REFUSED_SECONDS),
        (Refusal.FALSE_PASS, "invite", None, REFUSED_SECONDS),
        (Refusal.EXPIRED, "invite", {"expires_unix_seconds": 1}, UNSEEN_SECONDS),
        (Refusal.FULL, "invite", {"uses": 3}, UNSEEN_SECONDS),
    ],
)
def test_a_peer_that_is_not_let_in_ends_with_what_to_do_and_not_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Refusal,
    mode: AdmissionMode,
    limits: dict[str, Any] | None,
    seconds: float,
) -> None:
    """Not at once, because its admission may be on its way; but also if it is cut off and so never hears of it."""
    if refusal is Refusal.FULL:
        monkeypatch.setattr("coordinator.core.admission_control.INVITED_MAX", 0)
    home = Home(tmp_path, mode)
    theirs = note_result_arrival(home, b"false" if limits is None else granted(home, **limits))
    assert theirs.exclusion_reason == ""
    home.world.run(seconds - 1)
    assert theirs.exclusion_reason == ""
    home.world.run(2.0)
    assert theirs.exclusion_reason == ADVICE[refusal]
    assert home.membership.exclusion_reason == ""


def test_the_list_of_members_shows_what_each_may_do(home: Home) -> None:
    """It also lists observers, and peers that have only shown a pass."""
    run_id, unix_seconds = home.core.rules.run_id, home.core.unix_seconds(home.world.clock.now)
    deputy, looks, comes = (Identity(name * 32) for name in (b"d", b"l", b"c"))
    word = delegate(home.peer.signer, run_id, deputy.peer_id).signature
    for peer, grant, issuer in ((looks, "observer", home.peer.signer), (comes, "trainer", deputy)):
        signed = sign_grant(issuer, run_id, Grant(key=peer.peer_id, role=grant), word if issuer is deputy else None)
        shown = pass_of(Ticket(word=signed), run_id, peer.peer_id).to_wire()
        assert home.core.admission.refusal(peer.peer_id, shown, unix_seconds) is None
    roles = {one.peer_id: one.role for one in home.membership.view({}).members}
    assert roles == {
        home.peer.me: "organiser",
        deputy.peer_id: "co-organiser",
        looks.peer_id: "observer",
        comes.peer_id: "newcomer",
    }
    assert {one.peer_id: one.role for one in home.membership.view({comes.peer_id: 7}).members}[
        comes.peer_id
    ] == "trainer"


def test_somebody_who_only_looked_is_no_member_and_can_be_let_in_by_its_id_all_the_same(home: Home) -> None:
    ticket = home.ticket()
    assert home.refusal(ticket) is None  # so that its pass was seen
    assert [one.peer_id for one in home.membership.view({}).members] == [home.peer.me]
    home.membership.order(ticket.grant.key, "leaked", revoked=True)
    assert home.membership.order(f"…{GUEST.peer_id[-8:]}", "", revoked=False) == GUEST.peer_id
    assert home.refusal(ticket) is None


def test_wanted_invites_have_a_short_form() -> None:
    assert WantedInvite.parse(()) == WantedInvite()
    assert WantedInvite.parse(("expires=2w",)).expires_seconds == 1_209_600


def test_a_ticket_proves_itself_to_whoever_knows_the_organiser(home: Home) -> None:
    ticket = home.ticket("uses=2")
    authority = AdmissionAuthority(home.core.rules.run_id, home.peer.me, home.core.verifier)
    assert (
        read_pass(pass_of(ticket, authority.run_id, GUEST.peer_id).to_wire(), GUEST.peer_id, authority).grant.uses == 2
    )
