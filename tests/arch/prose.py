"""The sentences of a page: `python -m tests.arch.prose` counts their words, page by page."""

from __future__ import annotations

import re
from statistics import median

from tests.checkout import ROOT

USER_PAGES = sorted(
    [
        *(
            ROOT / name
            for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/README.md")
        ),
        *(
            page
            for folder in ("tutorials", "how-to", "reference", "explanation", "contributing")
            for page in (ROOT / "docs" / folder).rglob("*.md")
        ),
    ]
)
WORDS_MIN = 3  # what is shorter is a label
ITEM = re.compile(r"([-*]|\d+\.) ")


def sentences(page: str) -> list[str]:
    """All sentences outside code, tables and headings; an item of a list ends one."""
    text = re.sub(r"```.*?```|<!--.*?-->", "\n\n", page, flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    blocks: list[list[str]] = [[]]
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith(("|", "#")):
            blocks.append([])
        elif found := ITEM.match(line):
            blocks.append([line[found.end() :]])
        else:
            blocks[-1].append(line)
    parts = (re.split(r"(?<=[.!?])[\"”)*_`]*\s+(?=[A-Z`*\"(\d])", " ".join(block)) for block in blocks)
    return [sentence for part in parts for sentence in part if words(sentence) >= WORDS_MIN]


def words(sentence: str) -> int:
    """How many of what stands between blanks have a letter or a digit."""
    return len(re.findall(r"\S*\w\S*", sentence))


if __name__ == "__main__":
    for path in USER_PAGES:
        counts = [words(sentence) for sentence in sentences(path.read_text(encoding="utf-8"))]
        print(f"{median(counts or [0]):5.1f}  {max(counts, default=0):3}  {path.relative_to(ROOT)}")
