"""The words of `muster verify`: who signed an export, what that proves, and what it does not."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill

from coordinator.views import quantity
from peer.export.listing import CARD
from peer.export.verifier import Verified

SIGNERS_SHOWN = 32
COLUMNS = 100
NOT_PROVEN = (
    "It does not prove that the data was good, that most of these keys were honest, that nobody hid a backdoor in "
    "honest-looking work, or who the people behind the keys are."
)
CONFIG_IN_PART = (
    "This run was begun by an earlier version, whose manifests fix a part of the model's configuration: what else "
    "stands in config.json is the exporter's word."
)


def in_words(found: Verified, folder: Path) -> str:
    """Return the findings as several lines for people."""
    manifest, fragments = found.manifest, found.fragments
    shown = sum(one.shown for one in fragments)
    written = datetime.fromtimestamp(found.written_unix_seconds, UTC)
    lines = [
        f"{folder} is whole",
        f"run        {manifest.config.name}, {manifest.run_id.hex()}",
        f"organiser  {manifest.organiser}",
        f"weights    {found.parameters:,} parameters in {len(fragments)} fragments, versions "
        f"{quantity.versions(one.version for one in fragments)}: every one hashes to what its certificate signs",
        f"chain      {shown} certificates, {_chain(found)}",
        f"signers    {len(found.signers())}, by newest versions signed (of {len(fragments)}) and certificates signed:",
    ]
    lines += [f"  {peer}  {heads}  {versions}" for peer, heads, versions in found.signers()[:SIGNERS_SHOWN]]
    if len(found.signers()) > SIGNERS_SHOWN:
        lines.append(f"  and {len(found.signers()) - SIGNERS_SHOWN} others")
    lines.append(f"written    {written:%Y-%m-%d %H:%M} UTC by {found.exporter}; {CARD} is its word alone")
    texts = [_proven(found), NOT_PROVEN] + ([] if found.fixes_config else [CONFIG_IN_PART])
    return "\n".join([*lines, "", *(fill(text, COLUMNS) for text in texts)])


def as_plain_data(found: Verified) -> dict[str, object]:
    """Return the findings as plain data for scripts."""
    return {
        "run_id": found.manifest.run_id.hex(),
        "name": found.manifest.config.name,
        "organiser": found.manifest.organiser,
        "founders": found.manifest.founders,
        "parameters": found.parameters,
        "versions": [one.version for one in found.fragments],
        "heads": [one.head.hex() for one in found.fragments],
        "first_versions": [one.first_version for one in found.fragments],
        "minor_versions": [one.minor_versions for one in found.fragments],
        "from_founders": found.from_founders,
        "signers": {peer: {"heads": heads, "versions": versions} for peer, heads, versions in found.signers()},
        "exporter": found.exporter,
        "written_unix_seconds": found.written_unix_seconds,
    }


def _chain(found: Verified) -> str:
    minor = sum(len(one.minor_versions) for one in found.fragments)
    oldest = max(one.first_version for one in found.fragments)
    parts = ["back to the founders whom the manifest names" if oldest == 1 else f"the oldest of version {oldest}"]
    parts += [f"{minor} of them minor"] if minor else []
    return ", ".join(parts)


def _proven(found: Verified) -> str:
    proven = "This proves that the keys above signed exactly these weights as versions of this run"
    if found.from_founders:
        return (
            f"{proven}, and that they were let in, round by round, by keys that the founders let in. Compare the run's "
            "id with that of your invite (muster invite INVITE --json): the founders' keys can begin another run, but "
            "not under this id."
        )
    reason = (
        "older certificates are no longer kept"
        if any(one.first_version > 1 for one in found.fragments)
        else "a minor version is signed by less than the usual share of those active before it"
    )
    return (
        f"{proven}. It does not prove that these keys are the run's, because {reason}: anybody could have made such a "
        "tail with keys of their own. Compare them with the certificates that `muster dashboard INVITE` shows."
    )
