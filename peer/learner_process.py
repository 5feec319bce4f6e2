"""The learner's own process: `python -m peer.learner_process SOCKET PLANES PARENT` (design §3).

It ends when its peer does, however the peer ends. Everything heavy is imported late: first the process makes sure that
it cannot be left behind, and that importing costs what it must.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dht.errors import MusterError, UsageError
from peer.freed_memory import keep_freed_memory
from peer.learner_channel import Channel, PeerGoneError
from peer.learner_messages import TEXT_MAX, Failed

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Entry point; the exit code is 0 after Stop or the peer's end, else 1, and the reason went to the peer."""
    connection, planes, parent = (int(argument) for argument in arguments)
    die_with_parent(parent)
    keep_freed_memory()
    channel = Channel(socket.socket(fileno=connection))
    try:
        import_quickly()
        import_ahead()
        from peer.learner_loop import serve

        serve(channel, planes)
    except PeerGoneError:
        pass
    except Exception as error:  # noqa: BLE001 - whatever it is, the peer has to be told
        reason = str(error) if isinstance(error, MusterError) else f"{type(error).__name__}: {error}"
        sys.stderr.write(f"{reason}\n")  # a peer that writes to us meanwhile may never read what we send
        with contextlib.suppress(MusterError):
            channel.send(Failed(reason=reason[:TEXT_MAX], usage=isinstance(error, UsageError)))
        return 1
    return 0


def import_quickly() -> None:
    """Let the imports to come take two thirds of their time.

    Nothing in a loading module is garbage, so collections would be wasted (the loop starts them again). And
    bitsandbytes has torch compile helpers that its 8-bit optimizers do not use, which would load a compiler: a second
    of CPU. For that torch asks its environment alone.
    """
    gc.disable()
    os.environ["TORCHDYNAMO_DISABLE"] = "1"


def allow_compiling() -> None:
    """For an owner who wants `torch.compile`; torch asks again when it is called."""
    os.environ.pop("TORCHDYNAMO_DISABLE", None)


def import_ahead() -> None:
    """Import what nearly every run needs while the peer, which will say what to train, still starts itself."""
    from peer.inner_optimizer import import_8bit
    from peer.model import import_llama

    try:
        # half a second, which transformers wants for losses of object detection, and scikit-learn wants it too
        with without("scipy", "sklearn"):
            import_llama()
    except ImportError:  # whatever else is installed here cannot do without
        import_llama()
    import_8bit()


@contextmanager
def without(*packages: str) -> Iterator[None]:
    """What is imported meanwhile finds these packages not installed, unless they are loaded already."""
    hidden = [package for package in packages if package not in sys.modules]
    sys.modules |= dict.fromkeys(hidden)  # type: ignore[arg-type]  # the language's own way to say so
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends, whatever ends it; exits if it has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
