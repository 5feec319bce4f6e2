"""A systemd user unit that runs a peer. This module only writes it; its owner starts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coordinator.views.control import SAVE_SECONDS_MAX
from dht.errors import LocalError
from dht.files import write_whole

STOP_SECONDS = 120 + int(SAVE_SECONDS_MAX)  # SIGTERM drains: rounds under way end and all is saved first
TEMPLATE = """\
[Unit]
Description=Muster: training a language model together
Documentation=https://github.com/musterml/muster
After=network-online.target

[Service]
ExecStart={command}
Restart=on-failure
RestartSec=30
RestartPreventExitStatus=2
KillMode=mixed
TimeoutStopSec={stop_seconds}
Nice=5
NoNewPrivileges=true
UMask=0077

[Install]
WantedBy=default.target
"""


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit for one command line."""

    command: Sequence[str]

    def text(self) -> str:
        """Return the unit file; an argument may hold anything except a line break."""
        return TEMPLATE.format(command=" ".join(map(_quoted, self.command)), stop_seconds=STOP_SECONDS)


def write_unit(path: Path, text: str) -> Path:
    """Write the unit, readable only by its owner because it holds an invite; raises LocalError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode(), mode=0o600)
    except OSError as error:
        raise LocalError(f"{path} cannot be written: {error.strerror}") from None
    return path


def _quoted(argument: str) -> str:
    """Quote an argument for systemd, with `%` and `$` doubled."""
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
