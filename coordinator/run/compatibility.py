"""The check that this version can take part in a run, made before a manifest is read as a whole. Pure.

A newer version may have written the manifest with fields that are not known here, so the run id is that of its bytes.
"""

from __future__ import annotations

from coordinator.run.manifest import Manifest, run_id_of
from dht.errors import PeerError, UsageError
from dht.wire import PROTOCOL_MAJOR, PROTOCOL_MINOR, Wire

OURS = f"{PROTOCOL_MAJOR}.{PROTOCOL_MINOR}"


class _Needs(Wire):
    """A `Manifest` of which only the protocol is read, so that nothing else in it prevents a clear answer."""

    config: object
    organiser: object
    founders: object
    data_digest: object
    genesis: object
    created_unix_seconds: object
    protocol_major: int
    protocol_minor_min: int


def read_manifest(data: bytes, run_id: bytes) -> Manifest:
    """Decode the manifest of this run; raises PeerError if these are not its bytes.

    Raises UsageError if they are, but this version cannot take part in the run.
    """
    if run_id_of(data) != run_id:
        raise PeerError("a manifest of another run")
    needs = _Needs.from_wire(data)
    if needs.protocol_major != PROTOCOL_MAJOR:
        raise UsageError(
            f"this run speaks protocol {needs.protocol_major}, and this is a muster of protocol {OURS}; "
            f"install a version with protocol {needs.protocol_major}"
        )
    if needs.protocol_minor_min > PROTOCOL_MINOR:
        raise UsageError(
            f"this run needs protocol {PROTOCOL_MAJOR}.{needs.protocol_minor_min}, and this is a muster of protocol "
            f"{OURS}; install a newer version"
        )
    manifest = Manifest.from_wire(data)
    if manifest.run_id != run_id:
        raise UsageError(
            f"the run's manifest says something that a muster of protocol {OURS} does not know; install a newer version"
        )
    manifest.config.check_adoption("the run's manifest")
    return manifest
