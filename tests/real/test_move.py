"""A peer whose machine gets another address in the middle of a run."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from coordinator.views.control import ask, snapshot
from dht.invite import Invite
from peer.chaos.namespaces import UPLINK, Namespaces, _run
from peer.swarm.processes import PeerProcess, end_all, kill_all, make_identity
from tests.real.conftest import RUN
from tests.real.test_nat import wait_for

pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.swarm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"),
]
FOUNDERS = ("peer-1", "peer-2")
NAMES = ("host", *FOUNDERS, "newcomer")
VERSIONS = 4  # that both founders certify before the move, and after it


class Street(Namespaces):
    """Machines on one switch, whose peers listen on every address."""

    def start(self, name: str, data_directory: Path, arguments: Sequence[str], temporary: bool) -> PeerProcess:
        placed = (*arguments, "--listen", "0.0.0.0")
        return PeerProcess.start(name, data_directory, placed, temporary, self.inside(name))

    def move(self, name: str) -> str:
        """Give a machine another address instead of its own; returns the new one."""
        old = self.address(name)
        new = f"{old.rpartition('.')[0]}.{int(old.rpartition('.')[2]) + 100}"
        _run("ip", "-n", self._space(name), "address", "del", f"{old}/16", "dev", UPLINK)
        _run("ip", "-n", self._space(name), "address", "add", f"{new}/16", "dev", UPLINK)
        self._addresses[name] = new
        return new


@pytest.fixture
def street() -> Iterator[Street]:
    place = Street()
    try:
        place.open(NAMES)
        yield place
    finally:
        place.close()


def test_a_peer_whose_address_changes_is_found_and_goes_on(street: Street) -> None:
    """Its connections die silently. It publishes its new address, and a peer with its new invite finds the run."""
    processes: dict[str, PeerProcess] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        ids = {name: make_identity(folder / name) for name in NAMES}

        def start(name: str, *words: str) -> None:
            processes[name] = street.start(name, folder / name, [*words, "--port", "7400"], True)

        def join(name: str, invite: str) -> None:
            start(name, "join", "-", "--yes", "--name", name, "--step-seconds", "0.25")
            processes[name].tell(invite)

        def invite_of(name: str) -> str:
            return str(ask(folder / name, "invite")["invite"])

        def versions_of_both() -> int:
            both = {ids[name] for name in FOUNDERS}
            return sum(
                one.outcome == "certified" and set(one.members) >= both for one in snapshot(folder / "peer-2").rounds
            )

        try:
            (folder / "run.toml").write_text(RUN.format(versions=100_000, optimizer="adamw"))
            start(
                "host",
                "host",
                str(folder / "run.toml"),
                *(word for one in FOUNDERS for word in ("--founder", ids[one])),
            )
            processes["host"].close_input()
            invite = wait_for("an invite", lambda: invite_of("host"))
            for name in FOUNDERS:
                join(name, invite)
            wait_for("versions of both", lambda: versions_of_both() >= VERSIONS)
            address = street.move("peer-1")
            moved_at = snapshot(folder / "peer-2").certified.versions
            wait_for("its new invite", lambda: address in str(Invite.parse(invite_of("peer-1")).addresses))
            wait_for("versions after it", lambda: snapshot(folder / "peer-2").certified.versions >= moved_at + VERSIONS)
            tokens = snapshot(folder / "peer-2").credited_tokens[ids["peer-1"]]
            wait_for("its work", lambda: snapshot(folder / "peer-2").credited_tokens[ids["peer-1"]] > tokens)
            join("newcomer", invite_of("peer-1"))
            wait_for("the newcomer's work", lambda: snapshot(folder / "peer-2").credited_tokens.get(ids["newcomer"], 0))
            for process in processes.values():
                process.process.terminate()
            end_all(list(processes.values()), 60.0)
            assert all(process.exit_code == 0 for process in processes.values())
        finally:
            kill_all(list(processes.values()))
