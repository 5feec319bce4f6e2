"""Which release of Muster runs here."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "musterml"


def release() -> str:
    """As it is installed; empty for a checkout that is not."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return ""
