"""Commands about members and their credit: `muster credit`, `members`, `revoke`, `readmit` and `deputise`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from coordinator.views import quantity
from coordinator.views.control import PeerNotRunningError, ask, members_of
from coordinator.views.credit import CreditReport, team_tokens
from coordinator.views.members import InviteView, MemberList, RunMember
from dht.errors import LocalError
from peer.cli.common import AsJson, tell
from peer.machine import paths
from peer.machine.text import printable

ROWS_MAX = 100
NO_TEAM = "(no team)"
ID_CHARACTERS = 12

app = typer.Typer()

Data = Annotated[Path | None, typer.Option("--data", help="Folder of the peer on this machine.")]
Peer = Annotated[str, typer.Argument(help="Id of a peer or an invite, or the end of it, as `muster members` shows it.")]


def credit(
    data: Annotated[Path | None, typer.Option("--data", help="Folder of the peer on this machine.")] = None,
    run: Annotated[str, typer.Option(help="Beginning of the run's id, where the folder holds several runs.")] = "",
    as_json: AsJson = False,
) -> None:
    """Say who contributed how many tokens.

    The counts come from the certificates that the peer here holds.
    """
    report = newest_report(paths.data_directory(data), run)
    tell(page(report), report, as_json)


def newest_report(home: Path, run: str) -> CreditReport:
    """Return the report of the peer running here, or the last one saved; raises UsageError if there is none."""
    try:
        report = CreditReport.model_validate(ask(home, "credit")["credit"])
        if report.run_id.startswith(run.lower()):
            return report
    except PeerNotRunningError:
        pass
    except (KeyError, ValueError):
        raise LocalError("the peer speaks another version of the control protocol; restart it") from None
    from peer.export.source import known_run
    from peer.storage.credit_book import saved_report

    return saved_report(paths.run_path(home, known_run(home, run).run_id))


def page(report: CreditReport) -> str:
    """Return the report as several lines for people."""
    return "\n".join(_lines(report))


def _lines(report: CreditReport) -> Iterator[str]:
    yield f"run {report.run_id}: {report.tokens:,} tokens in versions {quantity.versions(report.to_versions)}"
    yield _scope(report)
    yield ""
    for place, one in enumerate(report.contributors[:ROWS_MAX], start=1):
        share = 100 * one.tokens / report.tokens if report.tokens else 0.0
        name = " ".join(part for part in (one.name, f"({one.team})" if one.team else "") if part)
        sums = f"{one.tokens:>14,}  {share:5.1f} %  {one.versions:>7} {'version ' if one.versions == 1 else 'versions'}"
        yield f"{place:4}  {sums}  …{one.peer_id[-8:]}  {name}".rstrip()
    if len(report.contributors) > ROWS_MAX:
        yield f"      and {len(report.contributors) - ROWS_MAX} others; --json prints all"
    teams = team_tokens(report.contributors)
    if teams:
        yield ""
        yield from (f"      {tokens:>14,}  {team or NO_TEAM}" for team, tokens in teams)
    if report.compared_version:
        yield ""
        yield f"up to version {report.compared_version} of every fragment: {report.compared_digest}"
        yield "Compare this digest with another peer's to check that both counts agree. Names and teams are claims."


def _scope(report: CreditReport) -> str:
    if report.complete:
        return "every certificate since the run began is counted"
    certificates = quantity.counted(report.missed, "certificate")
    missed = f", without {certificates} that this peer never held" if report.missed else ""
    first = max(report.from_versions)
    return f"counted from version {first} of each fragment on{missed}; ask a peer that was there before"


@app.command(epilog="Example: muster members")
def members(as_json: AsJson = False, data: Data = None) -> None:
    """Say who is in the run, and who was removed.

    It shows also what each has contributed, as far as the peer here knows.
    """
    found = members_of(paths.data_directory(data))
    tell("\n".join(map(printable, _member_rows(found))), found, as_json)


@app.command(epilog='Example: muster revoke …Xy3kQw --reason "sends nonsense"')
def revoke(
    peer: Peer,
    reason: Annotated[str, typer.Option(help="Told to everybody, and to that peer.")] = "",
    everybody: Annotated[bool, typer.Option("--everybody", help="With an invite: all who came by it, too.")] = False,
    data: Data = None,
) -> None:
    """Show a peer out of your run, or withdraw an invite.

    It has no seat and no vote any more. Its work stays.
    """
    told = ask(paths.data_directory(data), "revoke", changes=(peer, reason, *(("everybody",) if everybody else ())))
    words = "the invite {} lets in nobody any more" if told["is_invite"] else "{} has no part in the run any more"
    typer.echo(f"{words.format(told['peer'])}; undo that with: muster readmit {told['peer']}")
    if told["came_by"]:
        typer.echo(
            "its owner could come again under a new key, by the same invite; withdraw that too: "
            f"muster revoke …{told['came_by'][-12:]}"
        )


@app.command(epilog="Example: muster readmit …Xy3kQw")
def readmit(peer: Peer, data: Data = None) -> None:
    """Readmit a peer that was removed.

    This works also if its invite has expired, was used up or was withdrawn.
    """
    told = ask(paths.data_directory(data), "readmit", changes=(peer, ""))
    words = "the invite {} works again" if told["is_invite"] else "{} may take part again, within a few versions"
    typer.echo(words.format(told["peer"]))


@app.command(epilog="Example: muster deputise …Xy3kQw")
def deputise(
    peer: Annotated[
        str, typer.Argument(help="Its id or the end of it; or with --accept the line that you were given.")
    ],
    accept: Annotated[bool, typer.Option("--accept", help="Make the peer here a co-organiser.")] = False,
    data: Data = None,
) -> None:
    """Make a peer a co-organiser: it may invite, and remove peers.

    The organiser can remove it and readmit it, like any peer.
    """
    told = ask(paths.data_directory(data), "accept" if accept else "deputise", changes=(peer,))
    if accept:
        typer.echo("this peer is a co-organiser from now on: muster invite, revoke and readmit work here")
    else:
        typer.echo(f"have the owner of {told['peer']} type: muster deputise --accept {told['word']}")


def _member_rows(found: MemberList) -> Iterator[str]:
    yield f"{'peer':<14} {'name':<20} {'role':<12} {'tokens':>8}"
    for one in found.members:
        state = f"out: {one.out}" if one.out else f"live{_since(one)}" if one.live else "away"
        name = one.name[:20]
        by = f"  by …{one.invite[-ID_CHARACTERS:]}" if one.invite else ""
        row = f"…{one.peer_id[-ID_CHARACTERS:]:<13} {name:<20} {one.role:<12} {quantity.count(one.tokens):>8}"
        yield f"{row}  {state}{by}"
    if found.invites:
        yield ""
        yield f"{'invite':<14} {'for':<20} {'role':<12} {'used':>8}"
        yield from map(_invite_row, found.invites)


def _since(one: RunMember) -> str:
    return "" if one.since_unix_seconds is None else f" since {_local_time(one.since_unix_seconds)}"


def _local_time(unix_seconds: float) -> str:
    return f"{datetime.fromtimestamp(unix_seconds, UTC).astimezone():%F %R}"


def _invite_row(one: InviteView) -> str:
    used = "" if one.used is None else f"{one.used} of {one.uses}" if one.uses else str(one.used)
    until = "" if one.expires_unix_seconds is None else f"until {_local_time(one.expires_unix_seconds)}"
    state = "withdrawn" if one.revoked else until
    return f"…{one.key[-ID_CHARACTERS:]:<13} {one.note[:20]:<20} {one.role:<12} {used:>8}  {state}".rstrip()
