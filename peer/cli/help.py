"""`muster --help` in groups: what a person wants to do, then the commands for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typer.core import TyperGroup

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Take part": (
        *("join", "doctor", "status", "pause", "resume", "stop", "drain"),
        *("limits", "service", "logs", "id", "runs"),
    ),
    "Start a run": ("init", "check", "host", "invite", "members", "revoke", "readmit", "deputise", "export", "verify"),
    "Look": ("top", "dashboard", "credit", "sample", "eval"),
    "Try out": ("swarm", "lab", "chaos", "plan"),
}
OTHERS = "Others"


class GroupedHelp(TyperGroup):
    """Lists the commands by GROUPS, in that order; those that no group names come last."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # of click, which typer brings in its own copy
        commands = {name: one for name in self.list_commands(ctx) if (one := self.get_command(ctx, name)) is not None}
        shown = {name: one for name, one in commands.items() if not one.hidden}
        left = tuple(name for name in shown if not any(name in names for names in GROUPS.values()))
        width = formatter.width - 6 - max(map(len, shown), default=0)
        for title, names in (*GROUPS.items(), (OTHERS, left)):
            rows = [(name, shown[name].get_short_help_str(width)) for name in names if name in shown]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
