"""The command line: one sentence for every mistake, the right exit code, and quick answers."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from multiaddr import Multiaddr

from coordinator.run.compatibility import OURS
from coordinator.views.control import SOCKET_NAME
from dht.addresses import PeerAddress
from dht.identity import Identity
from dht.invite import Invite
from dht.locks import IdentityLock
from dht.wire import PROTOCOL_MAJOR, PROTOCOL_MINOR
from peer.cli import arguments as cli_settings
from peer.cli import export, home, inviting, join, main
from peer.cli.commands import app
from peer.machine import paths
from peer.machine.log import LOG_NAME, configure, record_crash, silence_libraries
from peer.storage.run_directory import RunDirectory
from tests.checkout import ROOT
from tests.peer.homely import manifest

PYTHON = (3, 11)
PEER = Identity(bytes(32)).peer_id
INVITE = str(Invite(bytes(32), PEER, (PeerAddress.parse(f"/ip4/127.0.0.1/tcp/9/p2p/{PEER}"),)))
COMMANDS = (
    *("swarm", "host", "join", "invite", "status", "pause", "resume", "drain", "top"),
    *("export", "verify", "eval", "credit", "doctor", "id", "limits", "logs", "version"),
    *("init", "check", "runs", "stop"),
)


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line on stderr; nothing may be on stdout."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.rstrip("\n")


def write(folder: Path, text: str) -> str:
    path = folder / "run.toml"
    path.write_text(text)
    return str(path)


def test_no_complaint_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["\x1b[2J\x9bforged\u202e"], PYTHON) == 2
    assert sentence(capsys).isprintable()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("steps = 3", "steps is not a known key; see"),
        ("[pace]\nfragmnts = 3", "pace.fragmnts is not a known key (did you mean fragments?)"),
        ("versions = 0", "versions has to be at least 1, not 0"),
        ("[model]\nheads = 3", "model.hidden_size must be a multiple"),
        ("= 3", "is not valid TOML"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [[name, *option] for name in ("host", "swarm", "chaos", "lab", "check") for option in ([], ["--config"])],
)
def test_a_wrong_run_file_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], text: str, problem: str
) -> None:
    assert main.run([*command, write(tmp_path, text)], PYTHON) == 2
    assert problem in sentence(capsys)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["host", "/nowhere/run.toml"], "there is no run file at /nowhere/run.toml"),
        (["host", "--founder", "me"], "'me' is no peer id"),
        (["invite", "--peer", "you"], "'you' is no peer id"),
        (["host", "--port", "0"], "--port has to be at least 1, not 0; see: muster host --help"),
        (["join"], "muster join needs INVITE, as in: muster join muster1abc…; see: muster join --help"),
        (["join", INVITE[:-9]], "the invite is cut short"),
        (["join", INVITE[:7]], "the invite is cut short"),
        (["join", INVITE[:20] + ("a" if INVITE[20] != "a" else "b") + INVITE[21:]], "the invite is damaged"),
        (["join", "hello"], "this is not an invite"),
        (["join", INVITE, "--fault", "kill:lunch"], "is no fault"),
        (["join", INVITE], "agree beforehand with --yes"),
        (["join", "-"], "agree beforehand with --yes"),
        (["join", "invite:", INVITE], "agree beforehand with --yes"),
        (["join", f"invite: {INVITE}"], "agree beforehand with --yes"),
        (["join", "invite:", "hello"], "this is not an invite"),
        (["join", INVITE, "--threads", "0"], "--threads has to be at least 1, not 0"),
        (["swarm", "--peers", "0"], "has 1 to 64 peers, not 0"),
        (["swarm", "--peers", "65"], "has 1 to 64 peers, not 65"),
        (["swarm", "--peers", "1"], "this run needs 2 peers or more (pace.min_group), not 1"),
        (["swarm", "--versions", "3", "--minutes", "1"], "give one of the two"),
        (["swarm", "--minutes", "0"], "--minutes must be more than 0"),
        (["swarm", "--minutes", "nan"], "--minutes must be more than 0"),
        (["swarm", "--report", "/nowhere/r.json"], "no report can be written"),
        (["swarm", "--data", "/proc/nowhere"], "/proc/nowhere cannot hold data: No such file or directory"),
        (
            ["chaos", "--peers", "4", "--minutes", "1", "--data", "/dev/null/x"],
            "/dev/null/x cannot hold data: Not a dir",
        ),
        (["swarm", "--slow", "2:10"], "give --step-seconds too"),
        (["swarm", "--step-seconds", "1", "--slow", "2"], "--slow '2' is not of the form NUMBER:VALUE"),
        (["swarm", "--step-seconds", "1", "--slow", "2:0.1"], "1 to 1000 times slower"),
        (["swarm", "--step-seconds", "1", "--slow", "9:2"], "there is no peer 9"),
        (["swarm", "--fault", "5:kill:vote"], "there is no peer 5"),
        (
            ["swarm", "--pears", "4"],
            "muster swarm has no option --pears (did you mean --peers?); see: muster swarm --help",
        ),
        (["dance"], "muster has no command dance"),
        (["swarm", "--attack", "nosuch:1"], "there is no attack 'nosuch'; choose one of `muster lab --list`, or"),
        (["swarm", "--attack", "zero:1:factor=3"], "the attack zero has no parameter; leave out what follows"),
        (["swarm", "--attack", "sign_flip+work+work:1"], "+work stands once behind an attack, not twice"),
        (["swarm", "--attack", "stale:1:rounds=2.7"], "rounds of the attack stale is a whole number, not 2.7"),
        (["swarm", "--attack", "peer.attacks.attack.Attack:1"], "attacks nothing: it is what attacks are made of"),
        (["swarm", "--attack", "coordinator.adversary.mischief.Mischief:1"], "attacks nothing: it is what attacks are"),
        (["swarm", "--attack", "two_votes:1:factor=2"], "is not of the form NAME:COUNT, as in two_votes:2"),
        (["swarm", "--attack", "two_votes:0"], "is not of the form NAME:COUNT, as in two_votes:2"),
        (["swarm", "--attack", "sign_flip:0"], "is not of the form NAME:COUNT, as in sign_flip:2"),
        (
            ["swarm", "--attack", "examples.attacks.turncoat.Turncoat:1:factor=2"],
            "is not of the form NAME:COUNT, as in examples.attacks.turncoat.Turncoat:2",
        ),
        (["swarm", "--attack", "examples.attacks.turncoat.Turncoat+work:1"], "is an attack on the protocol, with an"),
        (["swarm", "--attack", "no.such.Attack:1"], "the attack 'no.such.Attack' cannot be imported: No module"),
        (["swarm", "--attack", "examples.attacks.turncoat.Nobody:1"], "cannot be imported: module"),
        (["swarm", "--attack", ".turncoat.Turncoat:1"], "the attack '.turncoat.Turncoat' cannot be imported"),
        (["swarm", "--attack", "json.JSONDecoder:1"], "there is no attack 'json.JSONDecoder'; choose one of"),
        (["swarm", "--attack", "peer.attacks.messages.MessageAttack:1"], "attacks nothing: it is what attacks are"),
        (["swarm", "--attack", "two_votes:9", "--peers", "4"], "of 4 peers 3 can attack, not 9"),
        (
            ["swarm", "--attack", "backdoor:1:share=7"],
            "share of the attack backdoor is at least 0 and at most 1, not 7",
        ),
        (["id", "--data", "/dev/null"], "/dev/null cannot hold data"),
        (["lab", "--period", "0"], "pace.steps_per_version"),
        (["verify", "x" * 300], "cannot be read: File name too long"),
        (["export", "x" * 300], "cannot be read: File name too long"),
        (["swarm", "--step-seconds", "inf"], "--step-seconds has to be at most 86400, not"),
        (["swarm", "--versions", str(2**41)], "--versions has to be at most"),
        (["chaos", "--step-seconds", "1e9"], "--step-seconds has to be at most 86400, not"),
        (["join", INVITE, "--yes", "--limit", "memory_gigabytes=1e300"], "memory_gigabytes"),
        (["join", INVITE, "--yes", "--name", "Jos\udce9"], "an argument is no text in UTF-8"),
        (["join", INVITE, "--yes", "--listen", "home"], "--listen 'home' is no IP address"),
        (["join", INVITE, "--yes", "--device", "gpu"], "--device 'gpu' is none"),
        (["join", INVITE, "--yes", "--limit", "upload_mbit"], "a limit is of the form KEY=VALUE"),
        (["doctor", "hello"], "this is not an invite"),
        (["doctor", INVITE, "--listen", "::zz"], "--listen '::zz' is no IP address"),
        (["doctor", "--limit", "gpu_memory_share=0"], "limits.gpu_memory_share has to be more than 0, not 0"),
        (["host", "--push", "a/b"], "say where to with --export"),
        (["host", "--invite", "hello"], "this is not an invite"),
        (["export", "new", "--data", "/nowhere", "--push", "hello"], "is no repository of the Hugging Face Hub"),
        (["verify", "/nowhere"], "/nowhere is no export of Muster"),
        (["verify", sys.executable], "is neither the folder of an export nor a file of evidence"),
        (["lab", "--replay", sys.executable], "is no event tape; `muster lab --tape` and"),
        (["plan", "bandwidth", "--sites", "1"], "one site alone sends nothing, so any line will do"),
        (["plan", "bandwidth", "--link", "home", "--group", "1"], "one site alone sends nothing, so any line will do"),
        (["credit", "--data", "/nowhere", "--run", "zz"], "/nowhere holds no run zz…"),
        (["limits", "--data", "/nowhere", "hours=never"], "'never' are no hours"),
        (["limits", "--data", "/nowhere", "uploads=2"], "uploads is not a known key"),
        (["service", "install", "hello"], "this is not an invite"),
        (["service", "install", INVITE, "--listen", "home"], "--listen 'home' is no IP address"),
        (["service", "begin"], "muster service has no command begin; see: muster service --help"),
        (["lab", "--compare", "zz"], "--compare: 'zz' is not one of 'dp', 'elastic'; see: muster lab --help"),
        (["verify", "/nowhere"], "/nowhere is no export of Muster: there is no such folder"),
        (["check", sys.executable], "is no text file; it has to be text in UTF-8"),
        (["check"], "name the run file to check, as in: muster check run.toml"),
        (["lab", "--steps_per_version", "3"], "(did you mean --steps-per-version?)"),
        (["limits", "nice=50", "--data", "/nowhere"], "niceness has to be at most 19, not 50"),
        (["join", INVITE, "--yes", "--niceness", "50"], "--nice / --niceness has to be at most 19, not 50"),
        (["dashbord"], "(did you mean dashboard?)"),
        (["host", "--die-with-parnt", "1"], "has no option --die-with-parnt; see"),  # hidden options are not suggested
        (["swarm", "--minutes", "one"], "--minutes has to be a number, not 'one'"),
        (["host", "--port"], "--port needs a value"),
        (["lab", "--set", "fragments=3"], "fragments is not a known key (did you mean pace.fragments?)"),
        (["lab", "--set", "data.source=txt"], "not 'txt' (did you mean text?)"),
        (["init", "--preset", "tny"], "there is no preset 'tny' (did you mean tiny?); choose one of tiny,"),
        (["lab", "--merge", "medan"], "'mean' (did you mean median?); name the outer.merge_package that brings it"),
        (["sample", "/nowhere", "--seed", str(2**64)], "--seed has to be at most 9.22337203685478e+18, not"),
        (["plan", "bandwidth", "--sites", "9" * 400], "--sites has to be at most 1000000000, not"),
        (["plan", "bandwidth", "--fragments", "9" * 400], "--fragments has to be at most 1000000000, not"),
        (["lab", "--set", "about.url=2026-11-30"], "about.url"),
        (["eval", "/nowhere", "--device", "cpu,cpu"], "--device cpu,cpu names several"),
        (["pause", "now"], "muster pause takes no further argument; leave out: now; see: muster pause --help"),
    ],
)
def test_wrong_use_is_told_in_a_sentence(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    problem: str,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main.run(arguments, PYTHON) == 2
    assert problem in sentence(capsys)
    assert not list(tmp_path.glob("muster-crash-*"))  # only a bug leaves a report


@pytest.mark.parametrize(
    "words",
    [
        *(["status"], ["pause"], ["resume"], ["drain"], ["stop"], ["members"], ["top"], ["logs"]),
        *(["dashboard", "--headless"], ["export", "new"], ["sample"], ["eval"], ["credit"]),
    ],
    ids=lambda words: words[0],
)
def test_without_a_peer_a_command_fails_and_says_how_to_start_one(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main.run([*words, "--data", "/nowhere"], PYTHON) == 1
    assert "muster join INVITE" in sentence(capsys)


@pytest.mark.parametrize("words", [["invite"], ["revoke", "x"], ["readmit", "x"], ["deputise", "x"]])
def test_without_a_peer_an_organisers_command_says_how_to_host(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main.run([*words, "--data", "/nowhere"], PYTHON) == 1
    assert "start one with: muster host RUN_FILE" in sentence(capsys)


@pytest.mark.parametrize("words", [["start"], ["stop"], ["status"], ["uninstall"]])
def test_without_a_service_there_is_none_to_talk_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main.run(["service", *words], PYTHON) == 1
    assert sentence(capsys) == "no service is installed here; install one with: muster service install INVITE"


@pytest.mark.parametrize("command", ["host", "swarm", "chaos", "lab", "check"])
def test_two_run_files_are_one_too_many(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    path = write(tmp_path, "versions = 4")
    assert main.run([command, path, "--config", path], PYTHON) == 2
    assert sentence(capsys) == "the run file is given twice; leave out --config"


def test_a_folder_that_cannot_hold_data_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    uses = (["join", INVITE, "--yes"], ["doctor"], ["pause"], ["logs"], ["credit"], ["limits", "upload_mbit=2"])
    for arguments in uses:
        assert main.run([*arguments, "--data", str(tmp_path / "file")], PYTHON) == 2
        assert "choose another --data directory" in sentence(capsys)


def test_a_run_of_newer_peers_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is told before any peer is called, because the folder knows the run already."""
    needs_more = manifest().model_copy(update={"protocol_minor_min": PROTOCOL_MINOR + 1})
    RunDirectory(tmp_path, needs_more.run_id).keep_manifest(needs_more)
    invite = str(Invite(needs_more.run_id, PEER, (PeerAddress.parse(f"/ip4/127.0.0.1/tcp/9/p2p/{PEER}"),)))
    assert main.run(["join", invite, "--yes", "--data", str(tmp_path)], PYTHON) == 2
    assert sentence(capsys) == (
        f"this run needs protocol {PROTOCOL_MAJOR}.{PROTOCOL_MINOR + 1}, and this is a muster of protocol {OURS}; "
        "install a newer version"
    )


@pytest.mark.parametrize("python", [(3, 10), (3, 14), (2, 7)])
def test_another_python_is_told_before_anything_else(
    capsys: pytest.CaptureFixture[str], python: tuple[int, int]
) -> None:
    assert main.run(["status"], python) == 2
    assert sentence(capsys) == f"Muster needs Python 3.11 to 3.13, and this is {python[0]}.{python[1]}"


def test_a_bug_is_one_sentence_that_names_the_file_with_the_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        configure(tmp_path)
        raise KeyError("surprise")

    monkeypatch.setattr(cli_settings, "run_config", broken)
    assert main.run(["swarm"], PYTHON) == 1
    assert sentence(capsys).endswith(f"(KeyError); please report it with the file {tmp_path / LOG_NAME}")
    log = (tmp_path / LOG_NAME).read_text()
    assert "Traceback" in log
    assert "surprise" in log


def test_a_command_that_is_interrupted_says_so_with_a_documented_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_settings, "run_config", interrupted)
    assert main.run(["swarm"], PYTHON) == 1
    assert sentence(capsys) == "stopped before it was done"


def test_a_library_that_is_missing_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peer.swarm.run", None)
    assert main.run(["swarm"], PYTHON) == 1
    assert sentence(capsys).endswith("is not installed; set Muster up again with: make install")


def test_a_bug_before_there_is_a_log_gets_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = record_crash(ValueError("early"))
    assert path.is_relative_to(tmp_path)
    assert "early" in path.read_text()


def test_logs_of_libraries_go_to_the_file_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = logging.getLogger("some.library")
    library.addHandler(logging.StreamHandler())
    library.propagate = False
    configure(tmp_path)
    silence_libraries()
    library.warning("peer %s is slow", "bob")
    assert capsys.readouterr().err == ""
    assert '"event": "peer bob is slow"' in (tmp_path / LOG_NAME).read_text()


def hivemind_says(level: int, line: int, seconds: float, error: type[Exception] | None = None) -> None:
    """Log something as hivemind, from this line of its code, at this time."""
    told = None if error is None else (error, error(), None)
    record = logging.LogRecord("hivemind.p2p", level, "p2p.py", line, "call of %s", ("bob",), told)
    record.created = seconds
    logging.getLogger("hivemind.p2p").handle(record)


def test_hivemind_says_a_thing_once_a_minute_and_other_things_at_once(tmp_path: Path) -> None:
    logging.getLogger("hivemind").setLevel(logging.INFO)  # as when it is imported
    configure(tmp_path)
    silence_libraries()
    logging.getLogger("hivemind.p2p").info("nothing that matters")
    for seconds in range(61):
        hivemind_says(logging.WARNING, 7, seconds, ValueError)
    hivemind_says(logging.WARNING, 7, 62.0, OSError)
    hivemind_says(logging.ERROR, 8, 62.0)
    lines = [json.loads(line) for line in (tmp_path / LOG_NAME).read_text().splitlines()]
    assert [one["event"] for one in lines] == [
        "call of bob",
        "call of bob (and 59 more like it before)",
        "call of bob",
        "call of bob",
    ]
    assert [one["level"] for one in lines] == ["warning", "warning", "warning", "error"]


class FullDisk(io.StringIO):
    """A file on a full disk."""

    def write(self, _: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_loses_lines_of_the_log_and_leaves_the_terminal_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(tmp_path)
    (file,) = logging.getLogger().handlers
    monkeypatch.setattr(file, "stream", FullDisk())
    logging.getLogger("peer.rounds.driver").warning("too much")
    assert capsys.readouterr().err == ""


def test_more_is_logged_of_us_than_of_how_addresses_are_read(tmp_path: Path) -> None:
    configure(tmp_path, verbose=True)
    Multiaddr("/ip4/127.0.0.1/tcp/4001").decapsulate("/tcp/4001")
    logging.getLogger("peer.rounds.driver").debug("ours")
    events = [json.loads(line)["event"] for line in (tmp_path / LOG_NAME).read_text().splitlines()]
    assert events == ["ours"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main.run([command, "--help"], PYTHON) == 0
    shown = capsys.readouterr().out
    assert f"Example: muster {command}" in shown
    assert not re.search(r"--fault|--slow|--die-with-parent", shown)
    assert not re.search(r"<(str|int|float|list|path)\b|x[<>]=|<=x", shown)  # programmers' notation


def test_every_command_is_in_that_list() -> None:
    commands = [one for part in (app, join.app, home.app, export.app, inviting.app) for one in part.registered_commands]
    names = {command.name or command.callback.__name__ for command in commands if command.callback}
    assert names == set(COMMANDS)


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_is_shown_without_a_command(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main.run(arguments, PYTHON) == 0
    shown = capsys.readouterr().out
    assert [command for command in COMMANDS if f"  {command} " not in shown] == []


@pytest.mark.parametrize("arguments", [["version"], ["--version"]])
def test_the_version_names_the_protocol(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main.run(arguments, PYTHON) == 0
    assert re.fullmatch(rf"muster .+, protocol {re.escape(OURS)}\n", capsys.readouterr().out)


def test_a_checkout_that_is_not_installed_has_no_version(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peer.machine.version.DISTRIBUTION", "musterml-nowhere")
    assert main.run(["version"], PYTHON) == 0
    assert capsys.readouterr().out == f"muster (a checkout that is not installed), protocol {OURS}\n"


def test_the_default_run_is_the_one_in_examples() -> None:
    assert cli_settings.run_config(None, None) == cli_settings.run_config(ROOT / "examples/tiny.toml", None)
    assert cli_settings.run_config(None, 7).versions == 7


def test_the_data_directory_follows_the_desktop_standard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/bob")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert paths.data_directory(None) == tmp_path / "muster"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert paths.data_directory(None) == Path("/home/bob/.local/share/muster")
    monkeypatch.delenv("XDG_DATA_HOME")
    assert paths.data_directory(None) == Path("/home/bob/.local/share/muster")
    assert paths.data_directory(tmp_path) == tmp_path


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def muster(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "peer.cli", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=50)


def test_quick_commands_import_neither_torch_nor_hivemind() -> None:
    script = (
        "import sys; from peer.cli import main as cli\n"
        "for words in (['--help'], ['status', '--data', '/nowhere'], ['join', 'x'], ['swarm', '--peers', '0']):\n"
        "    cli.run(words, (3, 11))\n"
        "import peer.swarm.run, peer.swarm.view\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'hivemind', 'transformers', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_process_that_has_outlived_its_parent_does_not_begin(tmp_path: Path) -> None:
    nobody = str(2**22 + 1)  # above every process id
    done = muster("join", "-", "--yes", "--data", str(tmp_path), "--die-with-parent", nobody)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_model_that_does_not_fit_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, "[model]\nhidden_size = 16384\nlayers = 256\nintermediate_size = 65536")
    done = muster("host", path, "--data", str(tmp_path / "data"))
    assert done.returncode == 2
    assert re.fullmatch(
        r"this run needs about [\d,]+ MiB of memory here and only [\d,]+ MiB are free or allowed; .*\n", done.stderr
    )


def test_a_port_that_is_taken_is_told(tmp_path: Path, taken_port: int) -> None:
    done = muster("host", "--data", str(tmp_path), "--port", str(taken_port))
    assert (done.returncode, done.stderr) == (
        2,
        f"port {taken_port} is already in use; stop what listens there or choose another port\n",
    )
    assert not (tmp_path / SOCKET_NAME).exists()


def test_a_port_of_metrics_that_is_taken_is_told_before_anything_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], taken_port: int
) -> None:
    assert main.run(["host", "--data", str(tmp_path), "--metrics-port", str(taken_port)], PYTHON) == 2
    assert sentence(capsys).startswith(f"metrics cannot be served at 127.0.0.1:{taken_port}: port {taken_port} is")
    assert list(tmp_path.iterdir()) == []


def test_a_second_peer_with_the_same_key_is_told(tmp_path: Path) -> None:
    key = tmp_path / "identity.key"
    Identity(bytes(32)).save(key)
    lock = IdentityLock(key)
    lock.acquire()
    try:
        done = muster("host", "--data", str(tmp_path))
    finally:
        lock.release()
    assert done.returncode == 2
    assert done.stderr.startswith(f"another muster process here already uses the key {key}; ")
    assert done.stderr.count("\n") == 1


def test_a_terminal_that_is_not_utf_8_shows_what_it_can(monkeypatch: pytest.MonkeyPatch):
    """Rates are called η, and people's names have other letters, too."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="iso-8859-1"))
    assert main.run(["version"], (3, 12)) == 0
    typer.echo("η ± 0.1")
    sys.stdout.flush()
    assert written.getvalue().splitlines()[-1] == b"? \xb1 0.1"


def test_warnings_of_libraries_are_not_shown_to_people_that_type_a_command() -> None:
    """bitsandbytes printed the name of a package that it lacks above the output of `muster check` for an adapter."""
    program = (
        "import logging, sys; from peer.cli import main; code = main.run(['--help'], (3, 11)); "
        "logging.getLogger('library').warning('noise'); logging.getLogger('library').error('fault'); sys.exit(code)"
    )
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stderr == "fault\n"


def test_an_owner_that_agrees_sees_at_once_that_something_happens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(join, "_ask_owner", lambda invite, options: invite)
    monkeypatch.setattr(join, "_detach", lambda *_: None)
    assert main.run(["join", INVITE, "--detach", "--data", str(tmp_path)], PYTHON) == 0
    assert capsys.readouterr().out.startswith("Starting; the first step comes in about a minute")
