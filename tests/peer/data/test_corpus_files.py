"""Patterns name every file once, through any links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dht.errors import UsageError
from peer.data.corpus_files import corpus_paths
from peer.data.tally import CorpusTally


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a.txt", "one/b.txt", "one/two/c.txt", ".hidden/d.txt", "e.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def names(tree: Path, pattern: str, tally: CorpusTally | None = None) -> list[str]:
    return [os.path.relpath(path, tree) for path in corpus_paths(pattern, tally or CorpusTally())]


def test_a_pattern_names_what_glob_would(tree: Path):
    assert names(tree, f"{tree}/**/*.txt") == ["a.txt", "one/b.txt", "one/two/c.txt"]
    assert names(tree, f"{tree}/**") == ["a.txt", "e.md", "one/b.txt", "one/two/c.txt"]
    assert names(tree, f"{tree}/**/two/*, {tree}/e.md") == ["e.md", "one/two/c.txt"]
    assert names(tree, f"{tree}/*/*.txt") == ["one/b.txt"]


def test_a_file_is_found_by_a_name_that_looks_like_a_pattern(tree: Path):
    for name in ("notes [old].txt", "why?.txt", "why1.txt"):
        (tree / name).write_text(name)
    assert names(tree, f"{tree}/notes [old].txt, {tree}/why?.txt") == ["notes [old].txt", "why?.txt"]
    assert names(tree, f"{tree}/wh??.txt") == ["why1.txt", "why?.txt"]


def test_loops_of_links_are_gone_round_once(tree: Path):
    """With two links to the top folder, glob's own walk would follow 2⁴⁰ paths."""
    for name in ("one/up", "one/up-too", "one/two/up"):
        (tree / name).symlink_to(tree)
    assert names(tree, f"{tree}/**/*.txt") == ["a.txt", "one/b.txt", "one/two/c.txt"]


def test_a_folder_behind_a_link_is_read(tree: Path, tmp_path_factory: pytest.TempPathFactory):
    elsewhere = tmp_path_factory.mktemp("disk")
    (elsewhere / "f.txt").write_text("far")
    (tree / "big").symlink_to(elsewhere)
    assert names(tree, f"{tree}/**/*.txt") == ["a.txt", "big/f.txt", "one/b.txt", "one/two/c.txt"]


def test_further_links_to_a_file_are_left_out_and_counted(tree: Path):
    (tree / "z.txt").symlink_to(tree / "a.txt")
    tally = CorpusTally()
    assert names(tree, f"{tree}/*.txt", tally) == ["a.txt"]
    assert tally.line() == "left out 1 further links to the same files"


def test_a_pattern_that_names_no_file_is_refused_in_words(tree: Path):
    for pattern, words in (
        (f"{tree}/one", "is a folder; name the files in it"),
        (f"{tree}/*.txt,{tree}/missing.txt", "there is no file .*missing"),
        (f"{tree}/*.nothing", "there is no file"),
        ("", "--corpus"),
        (f"{tree}/\0", "there is no file|looked up"),
    ):
        with pytest.raises(UsageError, match=words):
            corpus_paths(pattern, CorpusTally())
