"""What a learner process imports, when, and whether torch may load its compiler."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def allow_compiling() -> None:
    """For an owner who wants `torch.compile`; torch asks again when it is called."""
    os.environ.pop("TORCHDYNAMO_DISABLE", None)


def stay_on_this_machine() -> None:
    """Have the processes of one learner meet where nobody else can call them; torch's libraries ask for this only."""
    for library in ("GLOO", "NCCL"):
        os.environ[f"{library}_SOCKET_IFNAME"] = "lo"


def refuse_kernels() -> None:
    """Have this process find the package `kernels` not installed: it fetches compiled code from the Hub.

    bitsandbytes has it do so when it is imported on some processors, and has no switch for that. transformers does for
    layers of some families. Both work without it.
    """
    sys.modules.setdefault("kernels", None)  # type: ignore[arg-type]  # the language's own way to say so


def import_quickly() -> None:
    """Let the imports to come take two thirds of their time.

    Nothing in a loading module is garbage, so collections would be wasted (the loop starts them again). And
    bitsandbytes has torch compile helpers that its 8-bit optimizers do not use, which would load a compiler: a second
    of CPU. For that torch asks its environment alone.
    """
    gc.disable()
    os.environ["TORCHDYNAMO_DISABLE"] = "1"


def import_ahead() -> None:
    """Import what nearly every run needs while the peer, which will say what to train, still starts itself."""
    from peer.learner.optimizers.inner_optimizer import import_8bit
    from peer.model.build import import_llama

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
