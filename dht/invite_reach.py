"""From where an invite can work, by the addresses that it names. Nobody is called."""

from __future__ import annotations

from collections.abc import Sequence

from dht.addresses import PeerAddress, Reach

WIDEST_FIRST = (Reach.PUBLIC, Reach.PRIVATE, Reach.LOOPBACK)
PLACES_SHOWN = 3
EVERYWHERE = ("0.0.0.0", "::")


def widest(addresses: Sequence[PeerAddress]) -> Reach:
    """From how far the best of them can be called."""
    found = {address.reach for address in addresses}
    return next((reach for reach in WIDEST_FIRST if reach in found), Reach.LOOPBACK)


def limits_of(addresses: Sequence[PeerAddress], listens_at: str = "") -> str:
    """Why an invite to them is of no use elsewhere, and what the host does about it; empty if it may work anywhere.

    `listens_at` is what the host was told to listen at, as far as that is known.
    """
    reach = widest(addresses)
    if reach is Reach.LOOPBACK:
        advice = "connect the host to a network"
        if listens_at in EVERYWHERE:
            advice += "; a minute later `muster invite` prints one with its address"
        else:
            advice += " and start it with --listen 0.0.0.0"
        return f"this invite works on the host's own machine only; for others, {advice}"
    if reach is Reach.PRIVATE:
        return (
            "this invite works in the host's own network only; for others, forward the host's port in the router, and "
            "start the host with --announce /ip4/PUBLIC.ADDRESS/tcp/PORT"
        )
    return ""


def silence(addresses: Sequence[PeerAddress]) -> str:
    """Where nobody answers, and what to do about it, in a sentence."""
    found = list(dict.fromkeys(map(place, addresses)))
    more = f" and at {len(found) - PLACES_SHOWN} more places" if len(found) > PLACES_SHOWN else ""
    first = "check that the host is running, that its run is not over, and that this machine is online"
    advice = "; ".join(filter(None, (first, limits_of(addresses))))
    return f"nobody answers at {', '.join(found[:PLACES_SHOWN])}{more}; {advice}"


def place(address: PeerAddress) -> str:
    """Host and port, as people write them."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.port}"
