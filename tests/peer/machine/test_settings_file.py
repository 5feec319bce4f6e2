"""Changes to an owner's settings file: other lines stay, and a file that cannot be changed is left alone."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.errors import LocalError, UsageError
from peer.machine.limits import SETTINGS_NAME, Limits, PeerSettings
from peer.machine.settings_file import changed_text, keep_limits, shown
from tests.disk import file_size_limit

HANDWRITTEN = """\
# my machine
[limits]  # ask Anna before you change these
upload_mbit = 8  # her film evenings
hours = "22:00-07:00"

# nothing else
"""

VALUES = st.fixed_dictionaries(
    {},
    optional={
        "upload_mbit": st.floats(1, 1e6),
        "cpu_cores": st.integers(0, 1024),
        "hours": st.sampled_from(["", "22:00-07:00", "mon-fri 1:00-2:00, sun 3:00-4:00"]),
        "pause_on_battery": st.booleans(),
    },
)


def test_comments_and_other_keys_stay(tmp_path: Path) -> None:
    (tmp_path / SETTINGS_NAME).write_text(HANDWRITTEN)
    keep_limits(tmp_path, {"upload_mbit": 2.0, "pause_on_battery": False})
    assert (tmp_path / SETTINGS_NAME).read_text() == HANDWRITTEN.replace(
        "upload_mbit = 8  # her film evenings", "upload_mbit = 2.0"
    ).replace('07:00"\n', '07:00"\npause_on_battery = false\n')


@given(VALUES, VALUES)
def test_kept_limits_are_what_the_next_start_reads(first: dict[str, Any], second: dict[str, Any]) -> None:
    text = changed_text(changed_text("", first), second)
    read = PeerSettings.model_validate(tomllib.loads(text)).limits
    assert read == Limits(**(first | second))


def test_a_file_is_made_where_there_was_none(tmp_path: Path) -> None:
    keep_limits(tmp_path, {"cpu_cores": 2})
    assert PeerSettings.load(tmp_path).limits == Limits(cpu_cores=2)
    assert [path.name for path in tmp_path.iterdir()] == [SETTINGS_NAME]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "dotfiles.toml").write_text(HANDWRITTEN)
    (tmp_path / SETTINGS_NAME).symlink_to("dotfiles.toml")
    keep_limits(tmp_path, {"cpu_cores": 2})
    assert (tmp_path / SETTINGS_NAME).is_symlink()
    assert "cpu_cores = 2" in (tmp_path / "dotfiles.toml").read_text()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("limits = { upload_mbit = 8 }", "change it by hand"),
        ("limits.upload_mbit = 8", "change it by hand"),
        ('[limits]\nhours = """\n22:00-07:00"""\n"upload_mbit" = 8', "change it by hand"),
        ("[limits]\nupload_mbit = fast", "is not valid TOML"),
        ("[limits]\nupload = 3", "is not a known key"),
    ],
)
def test_a_file_that_we_cannot_change_is_left_alone(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / SETTINGS_NAME).write_text(text)
    with pytest.raises(UsageError, match=sentence) as caught:
        keep_limits(tmp_path, {"upload_mbit": 2.0})
    assert "\n" not in str(caught.value)
    assert (tmp_path / SETTINGS_NAME).read_text() == text


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / SETTINGS_NAME).write_text(HANDWRITTEN)
    with file_size_limit(0), pytest.raises(LocalError, match="File too large; nothing was changed"):
        keep_limits(tmp_path, {"upload_mbit": 2.0})
    assert [path.name for path in tmp_path.iterdir()] == [SETTINGS_NAME]
    assert (tmp_path / SETTINGS_NAME).read_text() == HANDWRITTEN


def test_every_limit_is_shown_with_its_words() -> None:
    rows = {one.key: one for one in shown(Limits(hours="1:00-2:00")).limits}
    assert set(rows) == set(Limits.model_fields)
    assert all(one.title != one.key and one.meaning for one in rows.values())
    assert Limits().changed([one.change(one.value) for one in rows.values()]) == Limits(hours="1:00-2:00")
    assert {key for key, one in rows.items() if one.at_start} == {"niceness", "gpu_memory_share", "memory_gigabytes"}
