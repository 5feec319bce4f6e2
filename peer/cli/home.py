"""Commands for the owner of a machine: `muster doctor`, `id`, `limits`, `logs` and `service`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.views import control
from coordinator.views.owner_limits import OwnerLimits
from dht.errors import LocalError
from dht.identity import Identity
from dht.invite import Invite
from peer.cli import arguments as cli_settings
from peer.cli.common import (
    AsJson,
    Data,
    Limit,
    Listen,
    Port,
    given_options,
    print_json,
    tell,
    with_options_of,
)
from peer.cli.join import join
from peer.data.hub import HUB
from peer.machine import paths
from peer.machine.limits import PeerSettings, parse_change
from peer.machine.text import printable
from peer.node.options import NodeOptions

app = typer.Typer()
service = typer.Typer(help="Run a peer as a service of this user (systemd).", rich_markup_mode=None)
app.add_typer(service, name="service")

UNIT_NAME = "muster.service"
WANTED = "default.target.wants"  # the folder where systemd links the units that it starts at login
LINES = Annotated[int, typer.Option("--lines", "-n", min=1, max=100_000, help="How many of the newest lines.")]


@app.command(epilog="Example: muster doctor muster1abc…")
def doctor(
    invite: Annotated[str | None, typer.Argument(help="Have the peers of this invite check this machine too.")] = None,
    data: Data = None,
    port: Port = None,
    listen: Listen = "127.0.0.1",
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine, and say in words what to do.

    The exit code is 1 if it cannot take part.
    """
    parsed = None if invite is None else Invite.parse(invite)
    directory = paths.data_directory(data)
    limits = PeerSettings.load(directory, limit or ()).limits
    options = NodeOptions(data_directory=directory, port=port, listen_host=listen, limits=limits)
    from peer.machine import log
    from peer.net.first_call import first_call

    with tempfile.TemporaryDirectory(prefix="muster-doctor-") as folder, ThreadPoolExecutor(1) as caller:
        log.configure(Path(folder))
        called = None if parsed is None else caller.submit(first_call, parsed, options.identity_path)
        from peer.cli.doctor import check_alone, check_run  # this import takes as long as an unanswered call

        log.silence_libraries()
        if parsed is None or called is None:
            found = check_alone(options, cli_settings.run_config(None, None))
        else:
            found = check_run(options, parsed, called.result)
    fit = all(finding.grade != "bad" for finding in found)
    words = "\n".join(printable(line) for finding in found for line in str(finding).splitlines())
    tell(words, {"fit": fit, "findings": found}, as_json)
    if not fit:
        raise typer.Exit(1)


@app.command(name="id", epilog="Example: muster id --data alice")
def show_id(data: Data = None, as_json: AsJson = False) -> None:
    """Print the peer id of this machine.

    `muster host --founder` takes it. The key is made if there is none.
    """
    options = NodeOptions(data_directory=paths.data_directory(data))
    peer_id = Identity.load_or_create(options.identity_path).peer_id
    tell(peer_id, {"peer_id": peer_id}, as_json)


@app.command(epilog="Example: muster logs -f")
def logs(
    data: Data = None,
    lines: LINES = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As they are in the file, for scripts.")] = False,
) -> None:
    """Print the newest lines of the log of the peer here."""
    from peer.machine.log import LOG_NAME, newest_lines
    from peer.service.log_lines import following, in_words

    path = paths.data_directory(data) / LOG_NAME
    try:
        for line in following(path, threading.Event(), lines) if follow else newest_lines(path, lines):
            typer.echo(line if as_json else "\n".join(map(printable, in_words(line).splitlines())))
    except KeyboardInterrupt:
        if not follow:
            raise
    except FileNotFoundError:
        raise LocalError(f"no peer has run here, there is no {path}; start one with: muster join INVITE") from None
    except OSError as error:
        raise LocalError(f"{path} cannot be read: {error.strerror}") from None


@app.command(epilog="Example: muster limits upload_mbit=2 hours=22:00-07:00")
def limits(
    change: Annotated[list[str] | None, typer.Argument(help="KEY=VALUE, as for --limit of `muster join`.")] = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Show or change what this machine may give.

    A change counts now and for the next start. Without one, all limits are shown.
    """
    directory = paths.data_directory(data)
    try:
        shown = control.limits(directory, change or ())
    except control.StartingError:
        raise  # it has read its limits already, so a changed file would count only for the start after this one
    except control.PeerNotRunningError:
        shown = _limits_at_rest(directory, change or ())
    changed = {key for key, _ in map(parse_change, change or ())}
    rows = [
        f"{one.change(one.value):36} {one.meaning}{' (from the next start)' if one.at_start else ''}"
        for one in shown.limits
        if not changed or one.key in changed
    ]
    if shown.sharers > 1:
        rows.append(f"{shown.sharers} peers share these; docs/how-to/limits.md says how")
    tell("\n".join(rows), shown, as_json)


def _limits_at_rest(directory: Path, changes: Sequence[str]) -> OwnerLimits:
    """Return the limits, changed if asked, while no peer runs: only the settings file changes."""
    from peer.machine.settings_file import keep_limits, shown

    found = PeerSettings.load(directory).limits.changed(changes)
    if changes:
        keep_limits(directory, found.named(changes))
    return shown(found)


@service.command("install", epilog="Example: muster service install muster1abc… --dry-run")
@with_options_of(join, without=("yes", "detach"))
def install(
    context: typer.Context,
    invite: Annotated[str, typer.Argument(help="The run to take part in whenever this user's services run.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the unit, write nothing.")] = False,
    **options: Any,
) -> None:
    """Write a systemd user unit that joins a run, and start nothing. With it you agree to the run's terms."""
    from peer.service.systemd import Unit, write_unit

    Invite.parse(invite)
    program = shutil.which("muster")
    command = (program,) if program is not None else (sys.executable, "-m", "peer.cli")
    context.params.update(data=paths.data_directory(options["data"]), **_found_anywhere(options))
    arguments = ["join", "".join(invite.split()), "--yes", *given_options(context, without=("dry_run",))]
    text = Unit((*command, *arguments)).text()
    if dry_run:
        typer.echo(text, nl=False)
        return
    path = write_unit(paths.unit_directory() / UNIT_NAME, text)
    typer.echo(f"wrote {path}; start it with: muster service start")


def _found_anywhere(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the options that name files, with absolute paths: a service starts in another folder."""
    found = {name: _anywhere(str(options[name])) for name in ("tokenizer", "base", "share_limits") if options[name]}
    if options["corpus"]:
        found["corpus"] = ",".join(_anywhere(one.strip()) for one in options["corpus"].split(",") if one.strip())
    if options["track"]:
        library, colon, folder = options["track"].partition(":")
        found["track"] = library + colon + (os.path.abspath(folder) if folder else "")
    return found


def _anywhere(name: str) -> str:
    return name if name.startswith(HUB) else os.path.abspath(name)


@service.command(epilog="Example: muster service start")
def start() -> None:
    """Start the service now and at every login."""
    _installed()
    _systemctl("daemon-reload")
    _systemctl("enable", "--now", UNIT_NAME)


@service.command(epilog="Example: muster service stop")
def stop() -> None:
    """Stop the service until you start it again.

    Its peer finishes its rounds and saves.
    """
    _installed()
    _systemctl("disable", "--now", UNIT_NAME)


@service.command(name="status", epilog="Example: muster service status")
def service_status(as_json: AsJson = False) -> None:
    """Say whether the service runs; `muster status` says more.

    The exit code is 1 if it does not run.
    """
    unit = _installed()
    if not as_json:
        if not _does("status", "--no-pager", UNIT_NAME):
            raise LocalError("the service does not run; start it with: muster service start")
        return
    active, enabled = (_word_of_systemd(question) for question in ("is-active", "is-enabled"))
    print_json({"unit": str(unit), "active": active, "enabled": enabled})
    if active != "active":
        raise typer.Exit(1)


@service.command(epilog="Example: muster service uninstall")
def uninstall() -> None:
    """Stop the service and remove it.

    Key, checkpoints and limits stay.
    """
    unit = _installed()
    answers = _answers()
    if answers:
        _systemctl("disable", "--now", UNIT_NAME)
    unit.unlink()
    (unit.parent / WANTED / UNIT_NAME).unlink(missing_ok=True)
    if answers:
        _systemctl("daemon-reload")
    typer.echo("the service is gone; what its peer kept is still there (`muster runs`)")


def _installed() -> Path:
    """Return the path of the unit; raises LocalError if none is installed."""
    path = paths.unit_directory() / UNIT_NAME
    if not path.exists():
        raise LocalError("no service is installed here; install one with: muster service install INVITE")
    return path


def _program() -> str:
    """Return the path of `systemctl`; raises LocalError if this machine has none."""
    program = shutil.which("systemctl")
    if program is None:
        raise LocalError("this machine has no systemd; run the peer with: muster join INVITE --detach")
    return program


def _word_of_systemd(question: str) -> str:
    """Return systemd's answer about the unit, such as `inactive` or `disabled`."""
    asked = [_program(), "--user", question, UNIT_NAME]
    return subprocess.run(asked, check=False, stdout=subprocess.PIPE, text=True).stdout.strip() or "unknown"


def _answers() -> bool:
    """Whether systemd works for this user; in a container, or after `su`, it may not."""
    asked = [_program(), "--user", "show-environment"]
    return subprocess.run(asked, check=False, capture_output=True).returncode == 0


def _systemctl(*arguments: str) -> None:
    """Run `systemctl --user`; raises LocalError if it is missing or fails. It prints the reason itself."""
    if not _does(*arguments):
        raise LocalError(f"systemctl --user {' '.join(arguments)} failed")


def _does(*arguments: str) -> bool:
    """Run `systemctl --user`, and return whether it succeeded; raises LocalError if this user has no systemd."""
    if not _answers():
        raise LocalError("no systemd answers for this user; run the peer with: muster join INVITE --detach")
    return subprocess.run([_program(), "--user", *arguments], check=False).returncode == 0
