"""`muster invite`: where an invite can work from, and its QR code."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import Any

import pytest

from dht.addresses import PeerAddress
from dht.identity import Identity
from dht.invite import Invite
from peer.cli import inviting, main

PYTHON = (3, 11)
PEER = Identity(bytes(32)).peer_id


def line(*places: str) -> str:
    return str(Invite(bytes(32), PEER, tuple(PeerAddress.parse(f"{one}/tcp/9/p2p/{PEER}") for one in places)))


LOCAL, PUBLIC = line("/ip4/127.0.0.1"), line("/ip4/192.168.1.5", "/ip4/8.8.8.8")


def test_an_invite_is_checked_by_its_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["invite", LOCAL, "--check"], PYTHON) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["127.0.0.1:9", "from", "the", "same", "machine", "only"]
    assert shown[1].startswith("this invite works on the host's own machine only")
    assert main.run(["invite", PUBLIC, "--check"], PYTHON) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in shown[:2]] == ["192.168.1.5:9", "8.8.8.8:9"]
    assert "muster doctor INVITE" in shown[2]


def test_a_check_is_told_to_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["invite", PUBLIC, "--json"], PYTHON) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["invite"], told["works_from"], told["advice"]) == (PUBLIC, "public", "")
    assert [one["reach"] for one in told["addresses"]] == ["private", "public"]
    assert main.run(["invite", LOCAL, "--check", "--json"], PYTHON) == 1
    assert json.loads(capsys.readouterr().out)["works_from"] == "loopback"


@pytest.mark.parametrize(("text", "warned"), [(LOCAL, True), (PUBLIC, False)])
def test_a_new_invite_that_cannot_work_elsewhere_says_so_beside_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str, warned: bool
) -> None:
    monkeypatch.setattr(inviting, "ask", lambda *_, **__: {"invite": text})
    assert main.run(["invite"], PYTHON) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{text}\n"
    assert ("own machine only" in captured.err) == warned


@pytest.mark.parametrize("words", [[LOCAL], [LOCAL, "--check", "--uses", "2"]])
def test_an_invite_that_there_is_gets_no_limits(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main.run(["invite", *words], PYTHON) == 2
    assert "can only be looked at" in capsys.readouterr().err


def test_a_code_holds_the_invite_in_letters_that_take_little_room(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []

    class Code:
        def terminal(self, out: Any, compact: bool) -> None:
            out.write("▄▀\n")

    segno: Any = ModuleType("segno")
    segno.make = lambda text, **_: drawn.append(text) or Code()
    monkeypatch.setitem(sys.modules, "segno", segno)
    assert main.run(["invite", LOCAL, "--qr"], PYTHON) == 0
    assert "▄▀" in capsys.readouterr().out
    assert drawn == [LOCAL.upper()]
    assert Invite.parse(drawn[0]) == Invite.parse(LOCAL)


def test_without_the_package_for_codes_it_is_told_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "segno", None)
    assert main.run(["invite", LOCAL, "--qr"], PYTHON) == 1
    assert capsys.readouterr().err == "a QR code needs the package segno; install it with: pip install segno\n"
