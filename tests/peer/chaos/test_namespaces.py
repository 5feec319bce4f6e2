"""Network namespaces of peers: reachable, cut, healed, shaped, and gone afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dht.errors import UsageError
from peer.chaos import namespaces
from peer.chaos.executor import LinkFault
from peer.chaos.namespaces import Namespaces, discipline, sweep
from peer.swarm.processes import PeerProcess

NAMES = ("host", "peer-1", "peer-2")
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None,
    reason="needs root and iproute2",
)
# connects within a second, or says why not
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 7), 1.0)"
ROUND_TRIP = """
import socket, sys, time
began = time.monotonic()
try:
    socket.create_connection((sys.argv[1], 7))
except ConnectionRefusedError:
    print(time.monotonic() - began)
"""
LEFT_BEHIND = """
import os
from peer.chaos.namespaces import Namespaces
place = Namespaces()
place.open(["peer-1"])
print(os.getpid(), flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    ("link", "words"),
    [
        (LinkFault(), ""),
        (LinkFault(delay_seconds=0.05), "netem limit 10000 delay 50000us"),
        (LinkFault(loss_share=0.015), "netem limit 10000 loss 1.5000%"),
        (LinkFault(0.1, 0.5, 2e6), "netem limit 10000 delay 100000us loss 50.0000% rate 2000000bit"),
        (LinkFault(bits_per_second=1e6), "tbf rate 1000000bit burst 16384 latency 200ms"),
        (LinkFault(bits_per_second=1e9), "tbf rate 1000000000bit burst 1250000 latency 200ms"),
    ],
)
def test_a_bad_link_in_the_words_of_tc(link: LinkFault, words: str) -> None:
    assert " ".join(discipline(link)) == words


def test_missing_rights_and_commands_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="sudo"):
        Namespaces().open(NAMES)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda command: None if command == "tc" else "/sbin/ip")
    with pytest.raises(UsageError, match="apt install iproute2"):
        Namespaces().open(NAMES)


def test_trials_are_allowed_in_the_network_of_the_switch_and_in_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(PeerProcess, "start", lambda name, folder, words, temporary, inside: started.append(words))
    place = Namespaces()
    place._addresses["peer-1"] = "10.77.0.2"
    for words in (("join", "-"), ("join", "-", "--attack", "zero"), ("join", "-", "--skew-file", "skew")):
        place.start("peer-1", Path(), words, temporary=True)
    named = ("--trial-network", namespaces.NETWORK)
    assert [one[-2:] for one in started] == [("--listen", "10.77.0.2"), named, named]


@pytest.fixture
def place() -> Iterator[Namespaces]:
    place = Namespaces()
    try:
        place.open(NAMES)
        yield place
    finally:
        place.close()
    assert ours() == []


def ours() -> list[str]:
    prefix = f"{namespaces.PREFIX}{os.getpid()}-"
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.startswith(prefix)]


def reaches(place: Namespaces, one: str, other: str) -> bool:
    """Whether one machine reaches the other: a port without a listener refuses, while a cut is silent."""
    command = ["ip", "netns", "exec", place._space(one), sys.executable, "-c", CONNECT, place._addresses[other]]
    return "ConnectionRefused" in subprocess.run(command, capture_output=True, text=True, check=False).stderr


@pytest.mark.netns
@needs_root
def test_a_network_is_cut_and_healed(place: Namespaces) -> None:
    assert len(ours()) == len(NAMES) + 1
    assert reaches(place, "peer-1", "peer-2")
    place.partition([{"peer-1", "host"}, {"peer-2"}])
    assert reaches(place, "host", "peer-1")
    assert not reaches(place, "peer-1", "peer-2")
    place.partition([{"host"}, {"peer-1"}, {"peer-2"}])
    assert not reaches(place, "host", "peer-1")
    place.partition([])
    assert reaches(place, "peer-1", "peer-2")


@pytest.mark.netns
@needs_root
def test_a_link_is_shaped_by_the_kernel_if_it_can_and_else_by_a_process(place: Namespaces) -> None:
    probe = ["tc", "-n", place._space("switch"), "qdisc", "add", "dev", "lo", "root", *discipline(LinkFault(0, 0, 1e6))]
    in_kernel = subprocess.run(probe, capture_output=True, check=False).returncode == 0
    for link, present in (
        (LinkFault(bits_per_second=1e6), True),
        (LinkFault(bits_per_second=2e6), True),
        (LinkFault(), False),
    ):
        place.shape("peer-1", link)
        for space, interface in ((place._space("peer-1"), namespaces.UPLINK), (place._space("switch"), "port1")):
            shown = subprocess.run(
                ["tc", "-n", space, "qdisc", "show", "dev", interface], capture_output=True, text=True, check=True
            ).stdout
            assert ("tbf" in shown) == (present and in_kernel)
        assert ("peer-1" in place._user_links) == (present and not in_kernel)
    assert reaches(place, "peer-1", "peer-2")


@pytest.mark.netns
@needs_root
def test_a_long_link_survives_a_cut_and_is_a_good_one_again(place: Namespaces) -> None:
    def round_trip_seconds() -> float:
        command = ["ip", "netns", "exec", place._space("peer-1"), sys.executable, "-c", ROUND_TRIP]
        return float(subprocess.run([*command, place._addresses["host"]], capture_output=True, check=True).stdout)

    place.shape("peer-1", LinkFault(delay_seconds=0.05))
    assert reaches(place, "peer-1", "host")
    assert round_trip_seconds() >= 0.1
    place.shape("peer-1", LinkFault(delay_seconds=0.03, bits_per_second=1e7))
    assert round_trip_seconds() >= 0.06
    place.partition([{"host", "peer-2"}, {"peer-1"}])
    assert not reaches(place, "peer-1", "host")
    place.partition([])
    assert round_trip_seconds() >= 0.06
    place.shape("peer-1", LinkFault())
    assert reaches(place, "peer-1", "host")
    assert place._user_links == {}


@pytest.mark.netns
@needs_root
def test_a_link_that_loses_everything_is_none(place: Namespaces) -> None:
    place.shape("peer-1", LinkFault(loss_share=0.999999))
    assert not reaches(place, "peer-1", "host")


@pytest.mark.netns
@needs_root
def test_the_next_run_removes_what_a_killed_one_has_left() -> None:
    with subprocess.Popen([sys.executable, "-c", LEFT_BEHIND], stdout=subprocess.PIPE, text=True) as harness:
        assert harness.stdout is not None
        pid = harness.stdout.readline().strip()

    def left() -> bool:
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        return f"{namespaces.PREFIX}{pid}-" in listed

    assert left()
    sweep()
    assert not left()
