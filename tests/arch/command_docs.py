"""Writes the reference of the commands from the commands themselves: `python -m tests.arch.command_docs`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from typer.main import get_command

from peer.cli.commands import app
from peer.cli.help import GROUPS, OTHERS
from tests.checkout import ROOT

FOLDER = ROOT / "docs/reference/commands"
MADE = "<!-- Made by `python -m tests.arch.command_docs`; a test fails when it is out of date. -->\n"
EXIT_CODES = """\
## Exit codes

| code | meaning |
| --- | --- |
| 0 | It worked. A run of the lab that diverges is a result, so it ends with 0 as well. |
| 1 | It failed: this machine, a peer, the network, or no peer runs here. The sentence says which, and what to do. |
| 2 | It was used wrongly: a file, a key or an option cannot work. The sentence names it. |

The sentence goes to standard error, so `--json` on standard output stays clean. A bug of ours
ends with 1 and names the file to send us.
"""
INTRODUCTION = """\
# Commands

Every command has `--help`, with an example. `muster --install-completion` completes names in your shell.
Most commands look at the peer in `~/.local/share/muster`; `--data FOLDER` chooses another one.

"""


def pages() -> dict[Path, str]:
    """Every page of the reference with its text."""
    root: Any = get_command(app)
    shown = {name: one for name, one in root.commands.items() if not one.hidden}
    left = tuple(name for name in shown if not any(name in names for names in GROUPS.values()))
    groups = {title: names for title, names in (*GROUPS.items(), (OTHERS, left)) if names}
    made = {
        FOLDER / f"{_file(title)}.md": _group(title, {name: shown[name] for name in names if name in shown})
        for title, names in groups.items()
    }
    rows = "".join(
        f"| [`{name}`]({_file(title)}.md#muster-{name}) | {shown[name].get_short_help_str(200)} |\n"
        for title, names in groups.items()
        for name in names
        if name in shown
    )
    table = f"| command | what it does |\n| --- | --- |\n{rows}\n"
    return {FOLDER / "README.md": INTRODUCTION.replace("\n", f"\n\n{MADE}", 1) + table + EXIT_CODES, **made}


def _file(title: str) -> str:
    return title.lower().replace(" ", "-")


def _group(title: str, commands: Mapping[str, Any]) -> str:
    parts = [f"# Commands: {title.lower()}\n\n{MADE}"]
    for name, command in commands.items():
        parts += _command(f"muster {name}", command)
    return "\n".join(parts)


def _command(path: str, command: Any) -> Iterator[str]:
    """The section of a command, then those of its subcommands."""
    context = command.make_context(path, [], resilient_parsing=True)
    usage = command.get_usage(context).removeprefix("Usage: ")
    text = inspect.cleandoc(command.help or "").replace("\f", "\n")
    text = re.sub(r"\x08\n(.*)\n", r"\1\n\n", text)  # a list that the terminal does not wrap
    text = re.sub(r"^  (\S+) +", r"- `\1`: ", text, flags=re.MULTILINE)
    example = inspect.cleandoc(command.epilog or "").removeprefix("Example: ")
    lines = "\n".join(filter(None, (re.sub(r"\s+", " ", usage), f"\n{example}" if example else "")))
    yield f"## {path}\n\n{text}\n\n```\n{lines}\n```\n"
    rows = [record for one in command.get_params(context) if (record := one.get_help_record(context))]
    rows = [(left, right) for left, right in rows if not left.startswith("--help")]
    if rows:
        yield "| argument or option | meaning |\n| --- | --- |\n" + "".join(f"| {_cells(row)} |\n" for row in rows)
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from _command(f"{path} {name}", below)


def _cells(row: tuple[str, str]) -> str:
    left, right = (re.sub(r"\s+", " ", cell).replace("|", "\\|").strip() for cell in row)
    return f"`{left}` | {right.replace('*', chr(92) + '*').replace('<', '&lt;')}"


if __name__ == "__main__":
    for page, content in pages().items():
        page.parent.mkdir(exist_ok=True)
        page.write_text(content, encoding="utf-8")
