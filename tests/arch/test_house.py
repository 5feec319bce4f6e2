"""The house limits and the calls that are banned from most of the house, read off the syntax tree."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.checkout import ROOT

PACKAGES = ("dht", "coordinator", "peer", "dashboard")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

MODULE_LINES_MAX = 400
CLASS_LINES_MAX = 250
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 6
FOLDER_MODULES_MAX = 25
SWARM_TESTS_MAX = 8

# File names that occur in several rooms on purpose, each for its room's own side of one thing.
SHARED_FILE_NAMES = frozenset(
    {
        *("__main__.py", "options.py", "process.py", "report.py", "view.py", "text.py", "source.py"),
        *("credit.py", "chaos.py", "dashboard.py", "evaluation.py", "network.py", "plan.py", "presence.py", "swarm.py"),
        *("run.py", "rounds.py", "trust.py", "spot_checks.py"),  # shown, decided and done: screen, frame, core, shell
        *("clock.py", "faults.py", "peer.py", "tensors.py", "events.py"),  # real, and virtual or planned
        *("addresses.py", "attempt.py", "build.py", "commands.py", "data.py", "engine.py", "hub.py", "learner.py"),
        *("messages.py", "node.py", "presets.py", "rows.py", "health.py"),
    }
)

# A name bans everything below it: `pickle` also means `pickle.loads`.
BANNED = {
    "print": "write to the console in peer/cli/ only",
    "pickle": "encode with dht.wire or safetensors",
    "torch.save": "it pickles; use safetensors",
    "torch.load": "it unpickles; use safetensors",
    "os.environ": "configuration is a parameter",
    "os.getenv": "configuration is a parameter",
    "time.sleep": "wait for an event, with a deadline",
    "time.time": "time is a parameter",
    "time.time_ns": "time is a parameter",
    "datetime.datetime.now": "time is a parameter",
    "datetime.datetime.utcnow": "time is a parameter",
}
# Which file may use which banned name. Every entry must be in use; add one only with a reason.
ALLOWED = {
    "dashboard/clock.py": frozenset({"time.time"}),  # says how long ago something was seen
    "peer/machine/clock.py": frozenset({"time.time"}),  # dates records and joins
    "dht/daemon/p2pd.py": frozenset({"os.environ"}),  # how the daemon's collector of garbage is told
    "peer/learner/imports.py": frozenset({"os.environ"}),  # how torch is told to load no compiler
    "peer/machine/paths.py": frozenset({"os.environ"}),  # XDG_DATA_HOME, for the command line only
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def parameters(function: Function) -> int:
    """How many parameters a caller sees: `self` and `cls` do not count."""
    arguments = function.args
    names = [argument.arg for argument in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def is_command(function: Function) -> bool:
    """Typer reads a command's options off its parameters, so their number is the user's business."""
    calls = (decorator.func for decorator in function.decorator_list if isinstance(decorator, ast.Call))
    return any(isinstance(call, ast.Attribute) and call.attr in ("command", "callback") for call in calls)


@cache
def syntax_of(source: str) -> ast.Module:
    """The tree of a module's text, parsed once for all that look at it; nobody changes it."""
    return ast.parse(source)


def excesses(source: str) -> list[str]:
    """Every way in which a module's text exceeds the house limits."""
    found = []
    length = len(source.splitlines())
    if length > MODULE_LINES_MAX:
        found.append(f"the module has {length} lines, over {MODULE_LINES_MAX}")
    for node in ast.walk(syntax_of(source)):
        if isinstance(node, ast.ClassDef) and lines(node) > CLASS_LINES_MAX:
            found.append(f"line {node.lineno}: class {node.name} has {lines(node)} lines, over {CLASS_LINES_MAX}")
        if isinstance(node, Function):
            if lines(node) > FUNCTION_LINES_MAX:
                found.append(f"line {node.lineno}: {node.name} has {lines(node)} lines, over {FUNCTION_LINES_MAX}")
            if parameters(node) > PARAMETERS_MAX and not is_command(node):
                found.append(f"line {node.lineno}: {node.name} has {parameters(node)} parameters")
    return found


def dotted(node: ast.expr) -> list[str]:
    """`a.b.c` as its three names, or nothing if the expression is not such a chain."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (parent := dotted(node.value)):
        return [*parent, node.attr]
    return []


def imported(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """Every name that an import binds, what it stands for, and the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                yield bound, alias.name if alias.asname else bound, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}", node.lineno


def banned_uses(source: str) -> list[tuple[str, int]]:
    """The banned names that a module's text imports or mentions, under whatever alias, with their lines."""
    tree = syntax_of(source)
    imports = list(imported(tree))
    meaning = {bound: full for bound, full, _ in imports}
    mentions = [(full, line) for _, full, line in imports]
    mentions += [
        (".".join([meaning.get(chain[0], chain[0]), *chain[1:]]), node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute) and (chain := dotted(node))
    ]
    return [(name, line) for full, line in mentions for name in BANNED if f"{full}.".startswith(f"{name}.")]


def test_every_module_is_within_the_house_limits() -> None:
    found = {relative(path): excesses(path.read_text(encoding="utf-8")) for path in MODULES}
    assert {name: excess for name, excess in found.items() if excess} == {}


def test_no_module_uses_what_is_banned() -> None:
    found = [(relative(path), *use) for path in MODULES for use in banned_uses(path.read_text(encoding="utf-8"))]
    allowed = {(path, name) for path, names in ALLOWED.items() for name in names}
    assert [f"{path}:{line}: {name}: {BANNED[name]}" for path, name, line in found if (path, name) not in allowed] == []


def test_every_exception_is_needed() -> None:
    used = {name: {use for use, _ in banned_uses((ROOT / name).read_text(encoding="utf-8"))} for name in ALLOWED}
    assert {name: allowed - used[name] for name, allowed in ALLOWED.items() if allowed - used[name]} == {}


def test_no_folder_has_too_many_modules() -> None:
    folders = Counter(path.parent for path in MODULES if path.name != "__init__.py")
    assert {relative(folder): count for folder, count in folders.items() if count > FOLDER_MODULES_MAX} == {}


@pytest.mark.parametrize("package", ["peer", "coordinator"])
def test_every_module_is_in_a_room(package: str) -> None:
    assert [path.name for path in (ROOT / package).glob("*.py")] == ["__init__.py"]


DECIDING_ROOMS = ("core", "group", "round", "cells", "engine")


def reads_told_lines(source: str) -> list[int]:
    """Where code looks whether an action is a line for people: `isinstance` and `case` of a Tell."""
    found = []
    for node in ast.walk(ast.parse(source)):
        looks = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
        if looks or isinstance(node, ast.MatchClass):
            found += [node.lineno for one in ast.walk(node) if isinstance(one, ast.Name) and one.id == "Tell"]  # type: ignore[attr-defined]
    return found


def test_no_decision_follows_from_a_line_for_people() -> None:
    modules = [path for room in DECIDING_ROOMS for path in (ROOT / "coordinator" / room).rglob("*.py")]
    assert modules
    assert [relative(path) for path in modules if reads_told_lines(path.read_text())] == []


@pytest.mark.parametrize("source", ["isinstance(a, Tell)", "isinstance(a, Send | Tell)", "match a:\n case Tell(): 1"])
def test_reading_a_line_is_noticed(source: str) -> None:
    assert reads_told_lines(source)
    assert not reads_told_lines(source.replace("Tell", "Adopt"))


def test_no_two_public_classes_share_a_name() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for node in syntax_of(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(relative(path))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_file_names_are_shared_on_purpose_only() -> None:
    names = Counter(path.name for path in MODULES if path.name != "__init__.py")
    assert {name for name, count in names.items() if count > 1} == SHARED_FILE_NAMES


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_typed(package: str) -> None:
    assert (ROOT / package / "__init__.py").is_file()
    assert (ROOT / package / "py.typed").is_file()


def test_few_tests_start_a_real_swarm(swarm_tests: list[str]) -> None:
    assert len(swarm_tests) <= SWARM_TESTS_MAX, swarm_tests
    assert all(test.startswith("tests/real/") for test in swarm_tests), "`make test` looks for them there"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("print('x')", ["print"]),
        ("import time as t\nt.time()", ["time.time"]),
        ("from time import sleep as rest", ["time.sleep"]),
        ("import os\nos.environ.get('HOME')", ["os.environ", "os.environ"]),
        ("import pickle", ["pickle"]),
        ("import datetime\ndatetime.datetime.now()", ["datetime.datetime.now"]),
        ("import time\ntime.monotonic()\ndef f(time): ...", []),
        ("import os\nos.path.join('a', 'b')", []),
    ],
)
def test_banned_names_are_found_under_any_alias(source: str, names: list[str]) -> None:
    assert [name for name, _ in banned_uses(source)] == names


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("x = 1\n" * MODULE_LINES_MAX, 0),
        ("x = 1\n" * (MODULE_LINES_MAX + 1), 1),
        ("def f():\n" + "    x = 1\n" * (FUNCTION_LINES_MAX - 1), 0),
        ("async def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX, 1),
        ("class C:\n" + "    x = 1\n" * CLASS_LINES_MAX, 1),
        ("class C:\n    def f(self, a, b, c, d, e, f): ...", 0),
        ("def f(a, b, c, *, d, e, f, g): ...", 1),
        ("@app.command()\ndef f(a, b, c, d, e, f, g): ...", 0),
    ],
)
def test_limits_are_measured(source: str, count: int) -> None:
    assert len(excesses(source)) == count
