"""Pages that people read: every link leads somewhere, every page is in the index, and none is too long."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

import pytest

from coordinator.views.report import ChaosReport, SwarmReport
from peer.lab.report import LabReport
from peer.session.api import Session
from tests.arch import command_docs
from tests.arch.prose import USER_PAGES, sentences, words
from tests.checkout import ROOT

README_LINES_MAX = 150
PAGE_LINES_MAX = 400
MEDIAN_WORDS_MAX = 20
WORDS_MAX = 25
AWKWARD = re.compile(r"\bwhoever\b|\bdesign §|^Of (?!course)", re.IGNORECASE)
TOP = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
PAGES = sorted([*(ROOT / name for name in TOP), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")


def links(page: Path) -> list[tuple[Path, str]]:
    """Where a page's links to files lead, each with its anchor."""
    found = LINK.findall(re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))
    parts = [link.partition("#") for link in found if not link.startswith(("http", "mailto:"))]
    return [(page.parent / path if path else page, anchor) for path, _, anchor in parts]


def anchors(page: Path) -> set[str]:
    """The anchors that headings of a page get, here as on the site."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head).strip().lower() for head in heads]
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in plain}


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}#{anchor}"
        for page in PAGES
        for target, anchor in links(page)
        if not target.exists() or (anchor and anchor not in anchors(target))
    ]
    assert broken == []


def test_no_page_is_too_long() -> None:
    lines = {page.relative_to(ROOT).as_posix(): len(page.read_text(encoding="utf-8").splitlines()) for page in PAGES}
    assert {page: count for page, count in lines.items() if count > PAGE_LINES_MAX} == {}


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES_MAX


def test_every_page_can_be_reached_from_the_index() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop().resolve()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        waiting += [target for target, _ in links(page)]
    assert {page.relative_to(ROOT).as_posix() for page in PAGES if page.resolve() not in reached} == set()


def test_the_reference_of_commands_is_current() -> None:
    made = command_docs.pages()
    stale = [page.name for page, text in made.items() if not page.exists() or page.read_text(encoding="utf-8") != text]
    assert stale == [], "run: python -m tests.arch.command_docs"
    assert set(command_docs.FOLDER.iterdir()) == set(made)


def first_cells(page: str) -> set[str]:
    """All names in the first column of a page's tables."""
    rows = re.findall(r"^\| (`[^|]*) \|", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_the_reference_of_reports_has_every_field_and_no_other() -> None:
    fields = SwarmReport.model_fields | LabReport.model_fields | ChaosReport.model_fields
    assert first_cells("docs/reference/report.md") == fields.keys()


def test_the_reference_of_sessions_has_every_name_of_a_session() -> None:
    public = {name for name in vars(Session) if not name.startswith("_")} | {"config"}
    named = {
        found for cell in first_cells("docs/reference/session.md") for found in re.findall(r"^session\.(\w+)", cell)
    }
    assert named == public


def test_every_page_is_on_the_site() -> None:
    listed = re.findall(r"- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(page for page in pages if page == "adr/README.md" or not page.startswith("adr/"))


def test_sentences_on_pages_for_users_are_short() -> None:
    found = {page: sentences(page.read_text(encoding="utf-8")) for page in USER_PAGES}
    medians = {page.relative_to(ROOT).as_posix(): median(map(words, one)) for page, one in found.items() if one}
    assert {page: words for page, words in medians.items() if words > MEDIAN_WORDS_MAX} == {}
    assert [one for sentences in found.values() for one in sentences if words(one) > WORDS_MAX] == []


def test_pages_for_users_say_it_plainly() -> None:
    found = [
        f"{page.relative_to(ROOT)}: {sentence}"
        for page in USER_PAGES
        for sentence in sentences(page.read_text(encoding="utf-8"))
        if AWKWARD.search(sentence)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("One is here. Two is there.\n\n| no | row |\n", ["One is here.", "Two is there."]),
        (
            "# No heading at all\n- an item of three\n- and one more `x.y` word.\n",
            ["an item of three", "and one more `x.y` word."],
        ),
        ("```\nno code at all.\n```\nA [link that leads](x.md) somewhere.", ["A link that leads somewhere."]),
    ],
)
def test_sentences_are_told_apart(page: str, expected: list[str]) -> None:
    assert sentences(page) == expected


def test_no_file_is_cited_that_is_not_here() -> None:
    """Notes that were never in the repository, in pages and in code."""
    notes = re.compile(r"\b(byzantine|peers|style|decoupled-diloco)\.md\b")
    files = [
        *PAGES,
        *(path for folder in ("dht", "coordinator", "peer", "dashboard") for path in (ROOT / folder).rglob("*.py")),
    ]
    assert [path.relative_to(ROOT).as_posix() for path in files if notes.search(path.read_text(encoding="utf-8"))] == []
