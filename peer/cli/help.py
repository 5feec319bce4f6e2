"""The words of the command-line parser: `--help` in groups and plain words, and sentences about wrong input."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from typer.core import TyperGroup

from coordinator.run.validation_errors import describe_error, nearest

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
TYPES: Mapping[str, str] = {"str": "TEXT", "int": "NUMBER", "float": "NUMBER", "path": "PATH", "dir": "FOLDER"}
_LIST = re.compile(r"<list\[(.*)\]>")
_TYPE = re.compile(r"<(\w+)(?: range)?>", re.IGNORECASE)
_RANGE = re.compile(r"([-\d.]+)<=x<=([-\d.]+)")
_BOUND = re.compile(r"x([<>])=([-\d.]+)")
_NO_COMMAND = re.compile(r"No such command '(.*?)'")
_TOO_MANY = re.compile(r"unexpected extra arguments?\S* \((.*)\)")


class GroupedHelp(TyperGroup):
    """A command group that lists its commands by GROUPS, in that order, and commands of no group last."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        _say_plainly(self)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # click's types, of which typer has its own copy
        commands = {name: one for name in self.list_commands(ctx) if (one := self.get_command(ctx, name)) is not None}
        shown = {name: one for name, one in commands.items() if not one.hidden}
        left = tuple(name for name in shown if not any(name in names for names in GROUPS.values()))
        width = formatter.width - 6 - max(map(len, shown), default=0)
        for title, names in (*GROUPS.items(), (OTHERS, left)):
            rows = [(name, shown[name].get_short_help_str(width)) for name in names if name in shown]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _say_plainly(command: Any) -> None:
    """Make this command and its subcommands show the types and ranges of options in words."""
    for one in command.params:
        one.get_help_record = _plain(one, one.get_help_record)
    for below in getattr(command, "commands", {}).values():
        _say_plainly(below)


def _plain(parameter: Any, record: Any) -> Any:
    """Wrap `record` so that its row of the help has plain words for types and ranges."""

    def plainly(context: Any) -> tuple[str, str] | None:
        row = record(context)
        if row is None:
            return None
        left, right = _LIST.sub(r"<\1>", row[0]), _RANGE.sub(r"\1 to \2", row[1])
        if parameter.param_type_name == "argument":
            left = _TYPE.sub("", left).rstrip()
        left = _TYPE.sub(lambda found: TYPES.get(found[1].lower(), found[1].upper()), left)
        right = _BOUND.sub(lambda found: f"{'at most' if found[1] == '<' else 'at least'} {found[2]}", right)
        return left, right

    return plainly


def misuse(error: Any) -> str:
    """Return a sentence for people about this error of the command-line parser."""
    context = getattr(error, "ctx", None)
    if context is None:
        return f"{_said(error)}; see: muster --help"
    return f"{_wrong(error, context)}; see: {context.command_path} --help"


def _wrong(error: Any, context: Any) -> str:
    command, parameter = context.command_path, getattr(error, "param", None)
    kind, words = type(error).__name__, str(error.format_message())
    if kind == "NoSuchOption":
        known = [name for one in context.command.params if not getattr(one, "hidden", False) for name in one.opts]
        return f"{command} has no option {error.option_name}{nearest(error.option_name, known)}"
    if found := _NO_COMMAND.search(words):
        return f"{command} has no command {found[1]}{nearest(found[1], context.command.list_commands(context))}"
    if found := _TOO_MANY.search(words):
        return f"{command} takes no further argument; leave out: {found[1]}"
    if kind == "MissingParameter" and parameter is not None:
        example = (context.command.epilog or "").removeprefix("Example: ")
        return f"{command} needs {_called(parameter).upper()}" + (f", as in: {example}" if example else "")
    if kind == "BadParameter" and parameter is not None:
        return _bad_value(error, _called(parameter))
    return _said(error)


def _bad_value(error: Any, name: str) -> str:
    """Say what is wrong with a value that pydantic or our own code refused."""
    faults = getattr(error.__cause__, "errors", None)
    if faults is not None and faults()[0]["type"] != "value_error":
        return f"{name} {describe_error(faults()[0])}"
    return f"{name}: {error.message.removeprefix('Value error, ').rstrip('.')}"


def _said(error: Any) -> str:
    words = str(error.format_message()).rstrip(".")
    return re.sub(r"^Option '(.*)' requires an argument$", r"\1 needs a value", words)


def _called(parameter: Any) -> str:
    return " / ".join(parameter.opts) if parameter.param_type_name == "option" else str(parameter.name)
