"""The source of views, and the cleaning of strangers' text."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.views.network_view import VIEW_BYTES_MAX, NetworkView, PeerView, RunFacts
from coordinator.views.view_file import read_view, write_view
from dashboard.source import SeenView, Source
from dashboard.text import CHARACTERS_MAX, WORD_JOINER, ago, escaped, plain
from dht.errors import LocalError


def source(path: Path, now: float = 100.0) -> Source:
    return Source(path, lambda: now)


def test_a_written_view_is_read(demo: NetworkView, tmp_path: Path) -> None:
    write_view(tmp_path / "view.json", demo)
    assert read_view(tmp_path / "view.json") == demo
    assert [path.name for path in tmp_path.iterdir()] == ["view.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"peers": 1}', b"\xff\xfe", b'{"taken_unix_seconds": NaN}'])
def test_a_broken_file_leaves_the_last_good_view(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "view.json"
    reader = source(path)
    assert reader.see().view.note.startswith("waiting")
    write_view(path, NetworkView(name="good"))
    assert reader.see().view.name == "good"
    path.write_bytes(content)
    assert reader.see().view.name == "good"
    assert reader.see().view.note == f"the view {path} is damaged, or of another version of Muster"
    path.unlink()
    assert reader.see().view.name == "good"


@pytest.mark.parametrize(
    ("states", "left"), [(("draining", "hosting"), True), (("draining", "training"), False), ((), False)]
)
def test_all_peers_have_left_where_all_said_so(states: tuple[str, ...], left: bool) -> None:
    peers = tuple(PeerView(peer_id=str(at), state=state) for at, state in enumerate(states))
    assert SeenView(NetworkView(peers=peers), 60.0).left == left
    assert not SeenView(NetworkView(peers=peers), 1.0).left  # they are still there


def test_a_file_without_end_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "view.json"
    with path.open("wb") as file:
        file.truncate(VIEW_BYTES_MAX + 1)
    with pytest.raises(LocalError, match="larger than"):
        read_view(path)
    reader = source(path)
    assert "larger than 32 MiB" in reader.see().view.note
    write_view(path, NetworkView())
    assert reader.see().view.note == ""


def test_a_file_is_read_again_only_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "view.json"
    write_view(path, NetworkView(name="first"))
    reader = source(path)
    first = reader.see()
    assert reader.see().view is first.view
    write_view(path, NetworkView(name="second one"))
    assert reader.see().view.name == "second one"


def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="cannot be written"):
        write_view(tmp_path / "no" / "view.json", NetworkView())


@pytest.mark.parametrize(
    ("heard", "age", "silent"), [(None, None, True), (95.0, 5.0, False), (90.0, 10.0, True), (101.0, 0.0, False)]
)
def test_silence_is_longer_than_a_lifetime(
    heard: float | None, age: float | None, silent: bool, tmp_path: Path
) -> None:
    write_view(
        tmp_path / "view.json",
        NetworkView(network_seen_unix_seconds=heard, run=RunFacts(presence_lifetime_seconds=9.0)),
    )
    seen = source(tmp_path / "view.json").see()
    assert (seen.age_seconds, seen.silent) == (age, silent)


@given(st.text())
def test_plain_text_is_one_short_line_without_tricks(text: str) -> None:
    found = plain(text)
    assert len(found) <= CHARACTERS_MAX
    assert not any(unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Cs") for character in found)
    assert plain(found) == found


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_no_punctuation_is_left_to_markdown(text: str) -> None:
    rest = escaped(text).replace("\\\\", "").replace(WORD_JOINER, "")
    for before, character in zip(" " + rest, rest, strict=False):
        if not character.isalnum() and character not in " \\,;?%":
            assert before == "\\", (character, rest)


@pytest.mark.parametrize("text", ["https://example.org", "www.example.org", "a@example.org"])
def test_no_address_is_left_whole(text: str) -> None:
    """Renderers of GitHub's Markdown remove the escapes and then make links of addresses."""
    shown = escaped(text).replace("\\", "")
    assert shown.replace(WORD_JOINER, "") == text
    assert not any(sign in shown for sign in ("://", "www.", "a@"))


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s ago"), (40, "40 s ago"), (150, "2 min ago"), (7300, "2 h ago"), (2e5, "2 d ago")]
)
def test_how_long_ago(seconds: float, words: str) -> None:
    assert ago(seconds) == words
