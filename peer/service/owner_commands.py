"""The commands that the owner of a peer sends over its control socket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coordinator.views.control import EndingError, Request, StartingError
from dht.errors import UsageError
from dht.identity import PeerId
from peer.service.control_server import Answer
from peer.service.served import ServedNode
from peer.service.shutdown import ShutdownRequests


@dataclass(slots=True)
class OwnerCommands:
    """Answers the owner's commands. `node` is None until it can obey; `ending` says what an ending peer still does."""

    requests: ShutdownRequests
    doing: Callable[[], str]
    node: ServedNode | None = None
    ending: str = ""

    async def answer(self, request: Request) -> Answer:
        """Obey a command and return the answer; raises MusterError, which the client is told."""
        is_end = request.command in ("drain", "stop")
        if self.ending:
            if is_end:
                return {"ok": True}
            raise EndingError(self.ending)
        if self.node is not None:
            return await _obey(self.node, self.requests, request)
        if is_end:
            self.requests.leave.set()
            return {"ok": True}
        raise StartingError(self.doing())


async def _obey(node: ServedNode, requests: ShutdownRequests, request: Request) -> Answer:
    command = request.command
    if command == "pause":
        await node.pause()
    elif command == "resume":
        await node.resume()
    elif command == "drain":
        requests.drained = True
        node.drain()
    elif command == "stop":
        requests.stop.set()
    elif command == "save":
        return {"folder": str(await node.checkpointer.save_now())}
    elif command == "limits" and request.changes:
        return {"limits": (await node.limits.change(request.changes)).model_dump(mode="json")}
    elif command == "accept":
        node.organiser_rights.accept(request.changes[0] if request.changes else "")
    elif command in ("revoke", "readmit"):
        key = node.membership.order(*_subject(request), revoked=command == "revoke")
        invite = node.membership.open_invite_of(key)
        return {"peer": key, "is_invite": node.membership.is_invite(key), "came_by": invite or ""}
    else:
        return await _told(node, request)
    return {"ok": True}


def _key(request: Request) -> PeerId:
    if len(request.changes) != 1:
        raise UsageError("name the key of the observer")
    return PeerId(request.changes[0])


def _subject(request: Request) -> tuple[str, str, bool]:
    """Return the peer or invite that an order names, the reason, and whether all who came by the invite go too."""
    if len(request.changes) not in (2, 3):
        raise UsageError("name the peer, and why")
    return request.changes[0], request.changes[1], request.changes[2:] == ("everybody",)


async def _told(node: ServedNode, request: Request) -> Answer:
    """Answer a command that asks for data."""
    command = request.command
    if command == "final":
        return {"snapshot": (await node.final_snapshot()).model_dump(mode="json")}
    if command == "deputise":
        peer, word = node.membership.deputise(request.changes[0] if request.changes else "")
        return {"peer": peer, "word": word}
    if command == "invite":
        return {"invite": node.invite(request.changes)}
    if command == "look":
        return {"invite": node.observer_invite(_key(request))}
    if command == "credit":
        return {"credit": (await node.checkpointer.credit()).model_dump(mode="json")}
    if command == "members":
        credit = await node.checkpointer.credit()
        tokens = {one.peer_id: one.tokens for one in credit.contributors}
        return {"members": node.membership.view(tokens).model_dump(mode="json")}
    if command == "limits":
        return {"limits": node.limits.view().model_dump(mode="json")}
    return {"snapshot": node.snapshot().model_dump(mode="json")}
