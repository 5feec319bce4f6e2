"""Checks of pages' syntax trees: they render no stranger's markup, and none of them can write to a network."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkout import ROOT

CONTROL = re.compile(r"control\.\w+")  # the client of the peer's socket
DASHBOARD = ROOT / "dashboard"
MODULES = sorted(DASHBOARD.rglob("*.py"))
APART = ("demo", "publish", "page_server")  # processes of their own: with a simulator in it; for the public page

NO_MARKUP = frozenset({"text", "dataframe", "vega_lite_chart"})  # what they are given stays text
NO_TEXT = frozenset(
    {
        *("columns", "container", "form", "fragment", "rerun", "cache_resource", "cache_data", "navigation", "Page"),
        *("TextColumn", "NumberColumn", "DatetimeColumn", "ProgressColumn", "get", "set_page_config"),
    }
)
MARKUP = frozenset(  # may render markup, so they take only literals or `escaped(…)`
    {
        *("header", "subheader", "badge", "metric", "button", "toggle", "segmented_control", "text_input"),
        *("multiselect", "download_button", "form_submit_button", "number_input", "warning", "success"),
        *("expander", "code", "html"),
    }
)
FREE = frozenset(  # no text of a page
    {
        *("key", "on_click", "default", "value", "disabled", "options", "icon", "data", "max_chars", "step", "format"),
        "language",
    }
)
TITLED = frozenset({"words", "number", "time_of_day"})  # in `show`: their literal title becomes a column's

IMPORTS = frozenset(
    {
        *(
            "argparse",
            "collections",
            "contextlib",
            "dataclasses",
            "datetime",
            "functools",
            "hmac",
            "html",
            "ipaddress",
            "itertools",
            "json",
            "math",
        ),
        *("pathlib", "re", "statistics", "sys", "threading", "time", "typing", "unicodedata", "__future__"),
        *("streamlit", "dashboard", "pandas", "pyarrow"),
        *(
            "coordinator.views.control",
            "coordinator.views.credit",
            "coordinator.trust.evidence",
            "coordinator.views.network_view",
        ),
        *(
            "coordinator.views.owner_limits",
            "dht.units",
            "coordinator.trust.statement_slots",
            "coordinator.views.quantity",
            "coordinator.views.snapshot",
        ),
        *("coordinator.views.view_file", "dht.errors", "dht.identity", "dht.statement"),
    }
)
WRITES = frozenset({"open", "write_text", "write_bytes", "write_view", "unlink", "mkdir", "rename"})


def name_of(path: Path) -> str:
    return path.relative_to(DASHBOARD).as_posix()


def pages() -> list[Path]:
    return [path for path in MODULES if not name_of(path).startswith(APART)]


def calls_on_streamlit(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Yield every call that begins with `st.`, with the last part of its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            root: ast.expr = node.func
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id == "st":
                yield node.func.attr, node


def is_harmless(value: ast.expr) -> bool:
    """Whether a value is a literal, a list of literals, an escaped text, or a choice between such."""
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.List | ast.Tuple):
        return all(map(is_harmless, value.elts))
    if isinstance(value, ast.IfExp):
        return is_harmless(value.body) and is_harmless(value.orelse)
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "escaped"


def faults(source: str) -> list[str]:
    """Return the calls of a module that are not allowed."""
    tree, found = ast.parse(source), []
    for name, call in calls_on_streamlit(tree):
        keywords = {keyword.arg or "**": keyword.value for keyword in call.keywords}
        if "unsafe_allow_html" in keywords or name not in NO_MARKUP | NO_TEXT | MARKUP:
            found.append(f"line {call.lineno}: st.{name}")
        if name in MARKUP:
            text = [*call.args[:1], *(value for key, value in keywords.items() if key not in FREE)]
            if name == "metric":
                text += call.args[1:]
            found += [f"line {one.lineno}: st.{name} of {ast.unparse(one)}" for one in text if not _may_stand(one)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TITLED:
            found += [f"line {one.lineno}: a title" for one in node.args if not _may_stand(one)]
    return found


def _may_stand(value: ast.expr) -> bool:
    """Whether a value is harmless, or a constant of ours such as a width."""
    return is_harmless(value) or (isinstance(value, ast.Name) and value.id.isupper())


@pytest.mark.parametrize("path", pages(), ids=name_of)
def test_strangers_words_are_escaped(path: Path) -> None:
    assert faults(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", pages(), ids=name_of)
def test_no_page_can_reach_a_network(path: Path) -> None:
    """Pages import nothing that reaches a network; they have only the control socket of this machine's peer."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            imported |= {f"{module}.{alias.name}" if module == "coordinator.views" else module for alias in node.names}
    assert {name for name in imported if name not in IMPORTS and name.partition(".")[0] not in IMPORTS} == set()


@pytest.mark.parametrize("path", pages(), ids=name_of)
def test_no_page_writes_anything(path: Path) -> None:
    called = {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    }
    assert called & WRITES == set()


def test_only_my_peer_gives_orders_and_only_four() -> None:
    """Checks every call of the control client, with the commands that it sends."""
    orders: dict[str, set[str]] = {}
    for path in pages():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and CONTROL.fullmatch(ast.unparse(node.func)):
                constants = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant)]
                called = ast.unparse(node.func)
                orders.setdefault(name_of(path), set()).update(constants if called == "control.ask" else [called])
    assert orders == {
        "own_peer.py": {"status"},
        "screens/my_peer.py": {"control.snapshot", "control.limits", "credit", "pause", "resume", "drain"},
        "limits_form.py": {"control.limits"},
    }


@pytest.mark.parametrize(
    "source",
    [
        "st.markdown('x')",
        "st.html(peer.name)",
        "st.write(peer.name)",
        "st.subheader(peer.name)",
        "st.subheader(f'{peer.name}')",
        "st.badge('a', help=peer.name)",
        "st.metric('Name', peer.name)",
        "st.button('x' if ok else peer.name)",
        "st.text('x', unsafe_allow_html=True)",
        "st.sidebar.title(peer.name)",
        "show.words(peer.name)",
    ],
)
def test_faults_are_found(source: str) -> None:
    assert faults(source)


@pytest.mark.parametrize(
    "source", ["st.text(peer.name)", "st.badge(escaped(peer.name))", "st.header('Run')", "st.metric('a', escaped(x))"]
)
def test_harmless_code_passes(source: str) -> None:
    assert faults(source) == []
