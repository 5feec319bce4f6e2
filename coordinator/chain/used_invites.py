"""The list of peers that came by an invite with limits. Pure.

It only grows, in the certificates of fragment 0 (docs/adr/0061). All peers count the uses of an invite from it, so they
agree. Keys are named by short digests: there are few of them, and every version's certificate carries the whole list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from dht.identity import PeerId
from dht.statement import digest_of
from dht.wire import Wire

USES_FRAGMENT = 0
INVITED_MAX = 256  # peers of a run that came by invites with limits
TAG_BYTES = 12

Tag = Annotated[bytes, Field(min_length=TAG_BYTES, max_length=TAG_BYTES)]


class InviteUses(Wire):
    """The peers that one invite has let in, in the order of their tags."""

    invite: Tag
    peers: tuple[Tag, ...] = Field(min_length=1, max_length=INVITED_MAX)


UsedInvites = tuple[InviteUses, ...]
NONE_USED: UsedInvites = ()


def tag_of(key: PeerId) -> bytes:
    """Return the tag that names an invite or a peer in the list."""
    return digest_of(b"muster-guest", key.encode())[:TAG_BYTES]


def uses_of(used_invites: UsedInvites, invite: PeerId) -> frozenset[bytes]:
    """Return the tags of the peers that this invite has let in."""
    tag = tag_of(invite)
    return next((frozenset(one.peers) for one in used_invites if one.invite == tag), frozenset())


def count_of(used_invites: UsedInvites) -> int:
    """Return how many peers are on the list."""
    return sum(len(one.peers) for one in used_invites)


def joined_by(used_invites: UsedInvites, newcomers: Mapping[PeerId, PeerId]) -> UsedInvites:
    """Return the list with these peers added, each to its invite; beyond `INVITED_MAX` none is added."""
    held = {one.invite: set(one.peers) for one in used_invites}
    room = INVITED_MAX - count_of(used_invites)
    for peer, invite in sorted(newcomers.items()):
        uses = held.setdefault(tag_of(invite), set())
        if tag_of(peer) not in uses and room > 0:
            uses.add(tag_of(peer))
            room -= 1
    return tuple(InviteUses(invite=tag, peers=tuple(sorted(uses))) for tag, uses in sorted(held.items()) if uses)


def extends(later: UsedInvites, earlier: UsedInvites) -> bool:
    """Whether the later list keeps all entries of the earlier one, has none twice, and has at most `INVITED_MAX`."""
    sets = {one.invite: set(one.peers) for one in later}
    return (
        len(sets) == len(later)
        and count_of(later) == sum(map(len, sets.values())) <= INVITED_MAX
        and all(set(one.peers) <= sets.get(one.invite, set()) for one in earlier)
    )


def surplus(
    used_invites: UsedInvites, order: Sequence[PeerId], invites: Mapping[PeerId, tuple[PeerId, int]]
) -> frozenset[PeerId]:
    """Return the peers that, in order, exceed the uses of their invite.

    `invites` has the invite of each peer, and how many peers that one may let in.
    """
    coming: dict[PeerId, set[bytes]] = {}
    found = set()
    for peer in order:
        if peer not in invites:
            continue
        invite, uses = invites[peer]
        used, new = uses_of(used_invites, invite), coming.setdefault(invite, set())
        if tag_of(peer) in used:
            continue
        if len(used) + len(new) >= uses:
            found.add(peer)
        else:
            new.add(tag_of(peer))
    return frozenset(found)
