"""The learner's own process: `python -m peer.learner.process SOCKET MEMORY PARENT` (design §3).

It ends when its peer does, however the peer ends. Heavy modules are imported late. First the process makes sure that
it cannot outlive its peer, and that imports cost no more than they must.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

from dht.errors import MusterError, UsageError
from peer.learner.channel import Channel, PeerGoneError
from peer.learner.imports import import_ahead, import_quickly, refuse_kernels
from peer.learner.messages import TEXT_MAX, Failed
from peer.learner.spawn import EXIT_LOST, LearnerLostError
from peer.machine.heap import is_out_of_memory, keep_freed_memory, lift_memory_limit

if TYPE_CHECKING:
    from peer.learner.setup import AttackNamed

OUT_OF_MEMORY = (
    "the learner needs more memory than this machine, or its owner's limit, leaves to it; close other programs or "
    "raise the limit (muster limits memory_gigabytes=…)"
)
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str], attack_named: AttackNamed | None = None) -> int:
    """Run a learner; returns 0 after Stop or the peer's end, else 1, after sending the reason to the peer.

    Returns `EXIT_LOST` if another process of the same learner has ended.
    `attack_named` makes the attack that `Start` names (`peer.attacks.learner`); an honest learner has none.
    """
    refuse_kernels()
    connection, memory, parent = (int(argument) for argument in arguments)
    die_with_parent(parent)
    keep_freed_memory()
    channel = Channel(socket.socket(fileno=connection))
    try:
        import_quickly()
        import_ahead()
        from peer.learner.loop import serve

        serve(channel, memory, attack_named)
    except PeerGoneError:
        pass
    except LearnerLostError as lost:
        sys.stderr.write(f"{lost}\n")
        return EXIT_LOST
    except Exception as error:  # noqa: BLE001 - the peer must hear of every error
        lift_memory_limit()
        if is_out_of_memory(error):
            error = UsageError(OUT_OF_MEMORY)
        reason = str(error) if isinstance(error, MusterError) else f"{type(error).__name__}: {error}"
        sys.stderr.write(f"{reason}\n")  # a peer that is blocked writing to us may never read our message
        with contextlib.suppress(MusterError):
            channel.send(Failed(reason=reason[:TEXT_MAX], usage=isinstance(error, UsageError)))
        return 1
    return 0


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends, however it ends; exits if it has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
