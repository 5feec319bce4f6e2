"""Text on a page. Peers' text is untrusted: it is cleaned here, and escaped wherever Streamlit reads markup."""

from __future__ import annotations

import re
import unicodedata

from coordinator.views.network_view import SAMPLE_CHARACTERS_MAX, NetworkView, PeerView

CHARACTERS_MAX = 120
LINES_MAX = 12
ID_CHARACTERS = 8
WORD_JOINER = "\u2060"
MARKUP = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$:^&\"'=@/])")
LINKS = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)|(?=@)")  # GitHub's Markdown finds these links in spite of escapes
UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # controls, direction marks, characters without a glyph


def plain(text: str, characters_max: int = CHARACTERS_MAX) -> str:
    """Return one line without control and direction characters, cut to a length. For places that read no markup."""
    seen = "".join(" " if unicodedata.category(character) in UNSEEN else character for character in text)
    line = " ".join(seen.split())
    return line if len(line) <= characters_max else line[: characters_max - 1] + "…"


def escaped(text: str, characters_max: int = CHARACTERS_MAX) -> str:
    """Return `plain` text with every character escaped that Markdown, Streamlit's directives or HTML might read."""
    return MARKUP.sub(r"\\\1", LINKS.sub(WORD_JOINER, plain(text, characters_max)))


def paragraph(text: str, lines_max: int = LINES_MAX) -> str:
    """Return several `plain` lines with their indentation, for places that read no markup."""
    lines = text.splitlines()[:lines_max]
    indents = (" " * (len(line) - len(line.lstrip(" "))) for line in lines)
    return "\n".join(indent + plain(line, SAMPLE_CHARACTERS_MAX) for indent, line in zip(indents, lines, strict=True))


def short_id(peer_id: str) -> str:
    """Return the end of a peer id: the beginning is the same for all peers."""
    return "…" + plain(peer_id)[-ID_CHARACTERS:] if peer_id else "–"


def called(peer: PeerView, characters_max: int = 40) -> str:
    """Return a peer's name; a host without one is called "host"."""
    return plain(peer.name, characters_max) or ("host" if peer.role == "host" else "")


def label(peer: PeerView) -> str:
    """Return a peer's name with enough of its id to tell it from others of that name."""
    name = called(peer)
    return f"{name} {short_id(peer.peer_id)}" if name else short_id(peer.peer_id)


def marked(name: str, peer_id: str, own: str) -> str:
    """Return the name, marked if it is the reader's own machine."""
    return f"{name} (mine)" if peer_id == own else name


def labels(view: NetworkView) -> dict[str, str]:
    """Return the labels of all peers and contributors in a view, by peer id."""
    gone = {one.peer_id: f"{plain(one.name, 40)} {short_id(one.peer_id)}".strip() for one in view.credit}
    return gone | {peer.peer_id: label(peer) for peer in view.peers}


def ago(seconds: float) -> str:
    """Say how long ago something was, in one unit: `40 s ago`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
