"""The release of Muster that runs here."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "musterml"


def release() -> str:
    """Return the installed release; empty for a checkout that is not installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return ""
