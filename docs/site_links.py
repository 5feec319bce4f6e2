"""A hook of MkDocs: links from pages to files outside docs/ lead to the repository."""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)")
FOLDERS = ("results", "grafana")  # inside docs/, and no pages


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The page with those links replaced; MkDocs calls this by its name."""
    del files
    here = posixpath.dirname(page.file.src_uri)

    def replaced(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", here, found[1]))
        inside = target.startswith("docs/") and target.split("/")[1] not in FOLDERS
        return found[0] if inside else f"]({config.extra['repository']}/blob/main/{target}"

    return LINK.sub(replaced, markdown)
