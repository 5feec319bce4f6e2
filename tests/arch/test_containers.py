"""What docker-compose.yml leaves a container, whichever service it is of."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.checkout import ROOT

SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_container_may_do_little_and_take_little(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert 0 < service["pids_limit"] <= 1024
    assert service["mem_limit"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
