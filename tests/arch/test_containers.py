"""What docker-compose.yml leaves a container, whichever service it is of."""

from __future__ import annotations

import re
import subprocess
import tomllib
from fnmatch import fnmatch
from typing import Any

import pytest
import yaml

from dht.addresses import PeerAddress, could_be_of
from dht.identity import Identity
from tests.checkout import ROOT

SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


GPU: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.gpu.yml").read_text())["services"]


@pytest.mark.parametrize("name", sorted(GPU))
def test_gpus_change_nothing_else_of_a_service(name: str) -> None:
    service, before = GPU[name], SERVICES[name]
    assert set(service) == {"deploy", "command", "mem_limit"}  # the image has one name, so it is built in one way
    assert service["command"][: len(before["command"])] == before["command"]


def test_the_image_runs_without_rights_keeps_its_key_and_says_how_it_is() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    assert lines[-1].startswith("HEALTHCHECK ")
    assert lines[-1].endswith('CMD ["muster", "status"]')
    assert "USER muster" in lines
    assert any("XDG_DATA_HOME=/data" in line for line in lines)


def test_the_engine_gets_every_file_that_the_image_is_made_of() -> None:
    given = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    lines = [line.split() for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("COPY ")]
    copied = [source for _, *sources, _ in lines if not sources[0].startswith("--from") for source in sources]
    for source in copied:  # patterns, too: what they stand for in this checkout, if anything
        for file in ROOT.glob(source):
            assert any(fnmatch(file.relative_to(ROOT).as_posix(), pattern) for pattern in given), source
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    for file in (*wheel["force-include"], *wheel["packages"], project["project"]["readme"]):
        assert any(fnmatch(file, pattern) for pattern in copied), file


def started_by(role: str) -> list[str]:
    """The words with which a container of this role starts its peer, with nothing of the engine."""
    script = (ROOT / "docker/role").read_text()
    defined = re.findall(r"^(?:own_address\(\) .*|[A-Z]+=[^$\n]*|LISTEN=.*)$", script, flags=re.MULTILINE)
    (case,) = re.findall(rf"^{role}(?: [^\n]*)?\)\n(.*?);;", script, flags=re.MULTILINE | re.DOTALL)
    line = case[case.index("exec muster") :].split("< <")[0].replace("exec muster", "echo")
    faked = "hostname() { echo 172.20.0.5; }; slot=1 ROLE=peer; set --"
    words = ["bash", "-euc", "\n".join([*defined, faked, line])]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def test_a_host_announces_an_address_that_others_call() -> None:
    """Nobody calls a name of a private network that a stranger announces (docs/adr/0057)."""
    said = started_by("host")
    first, name = (said[place + 1] for place, word in enumerate(said) if word == "--announce")
    assert could_be_of(PeerAddress.parse(f"{first}/p2p/{Identity(bytes(32)).peer_id}"), {"172.20.0.2"})
    assert name.startswith("/dns4/host/")


def test_a_peer_announces_nothing_so_that_its_address_may_change() -> None:
    """One that the engine had moved went on to announce where it was before, and was called there by nobody."""
    said = started_by("peer")
    assert "--announce" not in said
    assert said[said.index("--listen") + 1] == "0.0.0.0"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_container_may_do_little_and_take_little(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert 0 < service["pids_limit"] <= 1024
    assert service["mem_limit"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
