"""`muster invite`: print an invite to the run of the peer here, where it can work from, and its QR code."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from coordinator.views.control import ask
from dht.addresses import Reach
from dht.errors import LocalError, UsageError
from dht.invite import Invite
from dht.invite_reach import limits_of, place, widest
from peer.cli import arguments
from peer.cli.common import AsJson, Data, print_json
from peer.machine import paths

REACH_WORDS = {
    Reach.LOOPBACK: "from the same machine only",
    Reach.PRIVATE: "from the same private network",
    Reach.PUBLIC: "from anywhere, if router and firewall let it through",
}
NEXT = "whether they let it through, a machine elsewhere can say: muster doctor INVITE"


app = typer.Typer()


@app.command(epilog='Example: muster invite --uses 5 --expires 7d --note "for Ann"')
def invite(
    line: Annotated[str | None, typer.Argument(help="Look at this one instead, with --check or --qr.")] = None,
    uses: Annotated[int | None, typer.Option(min=1, max=256, help="How many peers may come by it.")] = None,
    expires: Annotated[str | None, typer.Option(help="How long others may come by it: 12h, 7d, 2w.")] = None,
    role: Annotated[str | None, typer.Option(help="`trainer`, or `observer` (looks only).")] = None,
    peer: Annotated[str | None, typer.Option(help="Peer id that alone may use it (`muster id` prints it).")] = None,
    note: Annotated[str | None, typer.Option(help="For you, in `muster members`; nobody else sees it.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Say from where it can work; exit code 1: not from all.")
    ] = False,
    qr: Annotated[bool, typer.Option("--qr", help="Show it as a QR code.")] = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Print an invite of the run of the peer here.

    The organiser's host can limit it to a number of peers or days.
    """
    if peer is not None:
        arguments.peer_ids([peer])
    given = {"uses": uses, "expires": expires, "role": role, "peer": peer, "note": note}
    words = [f"{name}={value}" for name, value in given.items() if value is not None]
    if line is not None and (words or not (check or qr or as_json)):
        raise UsageError("an invite that there is can only be looked at: add --check or --qr, and no limits")
    text = ask(paths.data_directory(data), "invite", changes=words)["invite"] if line is None else line
    found = Invite.parse(text)
    limits = limits_of(found.addresses)
    if as_json:
        print_json(_plain(found))
    elif line is None:
        typer.echo(text)
    if qr:
        typer.echo(_code(found), err=as_json)
    if check and not as_json:
        typer.echo("\n".join(f"  {place(one):<24}  {REACH_WORDS[one.reach]}" for one in found.addresses))
        typer.echo(limits or NEXT)
    elif limits and not as_json:
        typer.echo(limits, err=True)
    if check and limits:
        raise typer.Exit(1)


def _plain(invite: Invite) -> dict[str, Any]:
    return {
        "invite": str(invite),
        "run_id": invite.run_id.hex(),
        "organiser": invite.organiser,
        "works_from": widest(invite.addresses).value,
        "addresses": [
            {"address": one.text, "host": one.host, "port": one.port, "relayed": one.relayed, "reach": one.reach.value}
            for one in invite.addresses
        ],
        "advice": limits_of(invite.addresses),
    }


def _code(invite: Invite) -> str:
    """Return the invite's QR code for a terminal. Invites may be written in capitals, which make it a third smaller."""
    try:
        import segno
    except ModuleNotFoundError:
        raise LocalError("a QR code needs the package segno; install it with: pip install segno") from None
    import io

    out = io.StringIO()
    segno.make(str(invite).upper(), error="l", micro=False).terminal(out, compact=True)
    return out.getvalue().rstrip("\n")
