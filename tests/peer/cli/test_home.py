"""The owner's commands: logs, the unit of a service, and a peer in the background."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from coordinator.views.control import PeerNotRunningError, StartingError
from dht.addresses import PeerAddress
from dht.errors import LocalError, UsageError
from dht.identity import Identity
from dht.invite import Invite
from peer.cli import arguments, main
from peer.cli.commands import app
from peer.machine import detach
from peer.machine.detach import CONSOLE_NAME, Detached, start_detached
from peer.machine.limits import Limits, PeerSettings
from peer.machine.log import LOG_NAME
from peer.service.systemd import Unit, write_unit
from tests.dashboard.one_peer import running_peer

PYTHON = (3, 11)
PEER = Identity(bytes(32)).peer_id
INVITE = str(Invite(bytes(32), PEER, (PeerAddress.parse(f"/ip4/127.0.0.1/tcp/9/p2p/{PEER}"),)))


def test_the_newest_lines_of_a_log_are_shown_over_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / f"{LOG_NAME}.1").write_text("one\ntwo\n")
    (tmp_path / LOG_NAME).write_text("three\nfour\n")
    assert main.run(["logs", "--data", str(tmp_path), "-n", "3"], PYTHON) == 0
    assert capsys.readouterr().out == "two\nthree\nfour\n"
    assert main.run(["logs", "--data", str(tmp_path / "nowhere")], PYTHON) == 1
    assert "no peer has run" in capsys.readouterr().err


def test_an_id_is_known_before_any_run_and_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for _ in range(2):
        assert main.run(["id", "--data", str(tmp_path / "new")], PYTHON) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert arguments.peer_ids([shown[0].strip()]) == (Identity.load(tmp_path / "new" / "identity.key").peer_id,)


def test_limits_are_shown_and_changed_while_no_peer_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new"
    assert main.run(["limits", "--data", str(folder), "upload_mbit=2", "hours=22:00-07:00"], PYTHON) == 0
    changed = capsys.readouterr().out
    assert PeerSettings.load(folder).limits == Limits(upload_mbit=2.0, hours="22:00-07:00")
    assert main.run(["limits", "--data", str(folder)], PYTHON) == 0
    shown = capsys.readouterr().out
    assert changed.splitlines() == [line for line in shown.splitlines() if line.startswith(("upload_mbit", "hours"))]
    assert len(shown.splitlines()) == len(Limits.model_fields)
    assert shown.startswith("upload_mbit=2.0  ")


def test_a_running_peer_is_asked_and_its_refusal_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_peer(tmp_path) as asked:
        assert main.run(["limits", "--data", str(tmp_path), "cpu_cores=2"], PYTHON) == 0
        assert "cpu_cores=2" in capsys.readouterr().out
        assert main.run(["limits", "--data", str(tmp_path), "cpu_cores=many"], PYTHON) == 2
        captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "cpu_cores" in captured.err
    assert [one.changes for one in asked] == [("cpu_cores=2",), ("cpu_cores=many",)]
    assert PeerSettings.load(tmp_path).limits == Limits(cpu_cores=2)


def test_limits_stay_while_a_peer_starts_that_has_read_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_peer(tmp_path, doing="tokenizes the text"):
        assert main.run(["limits", "--data", str(tmp_path), "upload_mbit=2"], PYTHON) == 1
    assert capsys.readouterr().err == "the peer here is still starting: it tokenizes the text\n"
    assert PeerSettings.load(tmp_path).limits == Limits()


def test_following_a_log_ends_with_ctrl_c_and_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, shown = tmp_path / LOG_NAME, list[str]()
    path.write_text("one\ntwo\n")

    def show(line: str) -> None:
        shown.append(line)
        if line == "one":
            path.write_text("one\ntwo\nthree\n")
        elif line == "three":
            raise KeyboardInterrupt

    monkeypatch.setattr(typer, "echo", show)
    assert main.run(["logs", "-f", "--data", str(tmp_path)], PYTHON) == 0
    assert shown == ["one", "two", "three"]


def test_a_log_is_for_people_and_for_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = '{"event": "round_void", "level": "info", "timestamp": "2026-11-28T10:00:00Z", "why": "slow"}'
    (tmp_path / LOG_NAME).write_text(f"{line}\n")
    assert main.run(["logs", "--data", str(tmp_path), "--json"], PYTHON) == 0
    assert capsys.readouterr().out == f"{line}\n"
    assert main.run(["logs", "--data", str(tmp_path)], PYTHON) == 0
    assert capsys.readouterr().out.endswith(" round void why=slow\n")


def test_a_service_is_started_stopped_and_removed_by_systemd(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd is replaced by a program that records its arguments."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert main.run(["service", "start"], PYTHON) == 1
    assert "no service is installed here" in capsys.readouterr().err
    assert main.run(["service", "install", INVITE, "--data", str(tmp_path / "data")], PYTHON) == 0
    systemctl = tmp_path / "systemctl"
    answer = "case $2 in is-*) echo inactive; esac"
    systemctl.write_text(f"#!/bin/sh\necho $* >> {tmp_path}/told\n{answer}\n[ $2 != status ]\n")
    systemctl.chmod(0o700)
    assert main.run(["service", "start"], PYTHON) == 0
    assert main.run(["service", "status"], PYTHON) == 1
    assert "the service does not run; start it with: muster service start" in capsys.readouterr().err
    assert main.run(["service", "status", "--json"], PYTHON) == 1
    told = json.loads(capsys.readouterr().out)
    unit = str(tmp_path / "systemd/user/muster.service")
    assert told == {"unit": unit, "active": "inactive", "enabled": "inactive"}
    assert main.run(["service", "stop"], PYTHON) == 0
    assert main.run(["service", "uninstall"], PYTHON) == 0
    assert not (tmp_path / "systemd/user/muster.service").exists()
    told = [line for line in (tmp_path / "told").read_text().splitlines() if line != "--user show-environment"]
    assert told == [
        "--user daemon-reload",
        "--user enable --now muster.service",
        "--user status --no-pager muster.service",
        "--user is-active muster.service",
        "--user is-enabled muster.service",
        "--user disable --now muster.service",
        "--user disable --now muster.service",
        "--user daemon-reload",
    ]


def test_a_service_can_be_removed_where_no_systemd_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "systemctl").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "systemctl").chmod(0o700)
    assert main.run(["service", "install", INVITE, "--data", str(tmp_path / "data")], PYTHON) == 0
    for command in ("start", "stop", "status"):
        assert main.run(["service", command], PYTHON) == 1
        assert "no systemd answers for this user; run the peer with" in capsys.readouterr().err
    assert main.run(["service", "uninstall"], PYTHON) == 0
    assert list((tmp_path / "systemd/user").iterdir()) == []


def test_a_dry_run_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    command = ["service", "install", INVITE, "--data", str(tmp_path / "my data"), "--port", "7400"]
    assert main.run([*command, "--dry-run"], PYTHON) == 0
    shown = capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert f'"join" "{INVITE}" "--yes" "--data" "{tmp_path}/my data"' in shown
    assert '"--port" "7400"' in shown
    assert main.run(command, PYTHON) == 0
    path = tmp_path / "systemd/user/muster.service"
    assert path.read_text() == shown
    assert path.stat().st_mode & 0o777 == 0o600
    assert "muster service start" in capsys.readouterr().out


def test_a_service_joins_as_its_owner_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--name", "ann", "--listen", "0.0.0.0", "--announce", "/ip4/203.0.113.7/tcp/7401"]
    words += [
        "--threads",
        "2",
        "--base-precision",
        "float32",
        "--limit",
        "upload_mbit=2",
        "--limit",
        "pause_on_battery=false",
    ]
    files = ["--corpus", "text/*.txt, more.txt", "--tokenizer", "hub:some/model", "--base", "base"]
    files += ["--share-limits", "limits", "--track", "tensorboard:curves"]
    assert main.run(["service", "install", INVITE, "--data", "data", "--dry-run", *words, *files], PYTHON) == 0
    (started,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("ExecStart="))
    joined = shlex.split(started)[shlex.split(started).index(INVITE) + 1 :]
    assert joined[:3] == ["--yes", "--data", f"{tmp_path}/data"]
    assert sorted(joined[3:]) == sorted(
        [
            *words,
            *("--corpus", f"{tmp_path}/text/*.txt,{tmp_path}/more.txt", *files[2:4], "--base", f"{tmp_path}/base"),
            *("--share-limits", f"{tmp_path}/limits", "--track", f"tensorboard:{tmp_path}/curves"),
        ]
    )


def test_a_service_takes_every_option_that_a_person_may_give_to_join() -> None:
    root: Any = get_command(app)
    joined, installed = root.commands["join"], root.commands["service"].commands["install"]
    shown = {one.opts[0] for one in joined.params if not getattr(one, "hidden", False)}
    assert shown - {one.opts[0] for one in installed.params} == {"--yes", "--detach"}
    assert not any(getattr(one, "hidden", False) for one in installed.params)


def test_words_that_systemd_would_expand_are_escaped(tmp_path: Path) -> None:
    text = Unit(("muster", 'a "b" %h $HOME \\')).text()
    assert 'ExecStart="muster" "a \\"b\\" %%h $$HOME \\\\"\n' in text
    (tmp_path / "file").touch()
    with pytest.raises(LocalError, match="cannot be written"):
        write_unit(tmp_path / "file" / "muster.service", text)


def test_a_peer_in_the_background_that_cannot_begin_is_told_in_its_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this is not an invite"):
        start_detached(["join", "-", "--yes", "--data", str(tmp_path)], "hello", tmp_path)
    assert "this is not an invite" in (tmp_path / CONSOLE_NAME).read_text()


@pytest.mark.parametrize(
    ("doing", "error", "words"),
    [("", UsageError, "already runs with data directory"), ("reads its text", LocalError, "still starting")],
)
def test_a_second_peer_in_the_background_leaves_the_output_of_the_first(
    tmp_path: Path, doing: str, error: type[Exception], words: str
) -> None:
    (tmp_path / CONSOLE_NAME).write_text("the first\n")
    with running_peer(tmp_path, doing=doing) as asked, pytest.raises(error, match=words):
        start_detached(["join", "-", "--yes", "--data", str(tmp_path)], "hello", tmp_path)
    assert (tmp_path / CONSOLE_NAME).read_text() == "the first\n"
    assert [one.command for one in asked] == ["status"]


def test_what_a_peer_in_the_background_prints_comes_after_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = tmp_path / CONSOLE_NAME
    console.write_text("the last run\n")
    (tmp_path / LOG_NAME).touch()
    with pytest.raises(LocalError, match="the peer ended with exit code 0"):  # and not the last line of the last run
        start_detached(["logs", "--data", str(tmp_path)], "", tmp_path)
    assert console.read_text() == "the last run\n"
    with pytest.raises(LocalError, match="protocol"):
        start_detached(["version"], "", tmp_path)
    assert console.read_text().startswith("the last run\nmuster ")
    monkeypatch.setattr(detach, "CONSOLE_BYTES_MAX", 3)
    with pytest.raises(LocalError, match="protocol"):
        start_detached(["version"], "", tmp_path)
    assert console.read_text().startswith("muster ")


class Recorded(subprocess.Popen[bytes]):
    """A process that the tests end, whatever becomes of it."""

    found: list[Recorded]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.found.append(self)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Recorded]]:
    """The processes that begin in a test; a peer in the background begins for less than a second here."""
    monkeypatch.setattr(Recorded, "found", [], raising=False)
    monkeypatch.setattr(subprocess, "Popen", Recorded)
    monkeypatch.setattr(detach, "START_SECONDS_MAX", 3 * detach.POLL_SECONDS)
    yield Recorded.found
    for process in Recorded.found:
        process.kill()
        process.wait()


def test_a_peer_in_the_background_that_starts_slowly_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: list[Recorded]
) -> None:
    said = iter(
        [PeerNotRunningError("no peer"), PeerNotRunningError("no peer"), *2 * [StartingError("reads its text")]]
    )

    def snapshot(_: Path) -> None:
        raise next(said)

    monkeypatch.setattr(detach, "snapshot", snapshot)
    (tmp_path / LOG_NAME).touch()
    found = start_detached(["logs", "-f", "--data", str(tmp_path)], "", tmp_path)
    (process,) = processes
    assert found == Detached(process.pid, "the peer here is still starting: it reads its text")
    assert process.poll() is None


def test_a_peer_in_the_background_that_stays_silent_is_ended(tmp_path: Path, processes: list[Recorded]) -> None:
    (tmp_path / LOG_NAME).touch()
    with pytest.raises(LocalError, match="has not begun within"):
        start_detached(["logs", "-f", "--data", str(tmp_path)], "", tmp_path)
    (process,) = processes
    assert process.returncode is not None
