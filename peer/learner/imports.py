"""What a learner process imports, when, and whether torch may load its compiler."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def allow_compiling() -> None:
    """Let torch load its compiler, for an owner who wants `torch.compile`; torch checks again when it is called."""
    os.environ.pop("TORCHDYNAMO_DISABLE", None)


def stay_on_this_machine() -> None:
    """Restrict torch's connections between the processes of one learner to loopback.

    Nobody else can then reach them; torch's libraries have no other setting for it.
    """
    for library in ("GLOO", "NCCL"):
        os.environ[f"{library}_SOCKET_IFNAME"] = "lo"


def refuse_kernels() -> None:
    """Have this process find the package `kernels` not installed: it fetches compiled code from the Hub.

    bitsandbytes triggers that when it is imported on some processors, and has no switch against it. transformers does
    so for layers of some families. Both work without it.
    """
    sys.modules.setdefault("kernels", None)  # type: ignore[arg-type]  # the language's own way to say so


def import_quickly() -> None:
    """Cut a third from the time of the imports to come.

    Nothing in a loading module is garbage, so collections would be wasted (the loop starts them again). Also,
    bitsandbytes has torch compile helpers that its 8-bit optimizers do not use. That would load a compiler: a second of
    CPU time. Torch offers no switch for it but the environment.
    """
    gc.disable()
    os.environ["TORCHDYNAMO_DISABLE"] = "1"


def import_ahead() -> None:
    """Import what nearly every run needs while the peer, which will say what to train, is still starting."""
    from peer.learner.optimizers.inner_optimizer import import_8bit
    from peer.model.build import import_llama

    try:
        # saves half a second: transformers wants these for object detection losses, and scikit-learn wants scipy, too
        with without("scipy", "sklearn"):
            import_llama()
    except ImportError:  # some other installed package cannot do without them
        import_llama()
    import_8bit()


@contextmanager
def without(*packages: str) -> Iterator[None]:
    """Have imports inside the block find these packages not installed, unless they are loaded already."""
    hidden = [package for package in packages if package not in sys.modules]
    sys.modules |= dict.fromkeys(hidden)  # type: ignore[arg-type]  # the language's own way to say so
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]
