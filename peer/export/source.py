"""The sources of an export that a user asks for: the runs and states that the peer here has on disk."""

from __future__ import annotations

from pathlib import Path

from coordinator.chain.chain import Chain, Rules
from coordinator.run.compatibility import read_manifest
from coordinator.run.manifest import Manifest, run_id_of
from coordinator.views.credit import CreditRecord, CreditReport, report_of
from coordinator.views.evaluation import Evaluation
from dht.errors import LocalError, PeerError, UsageError
from dht.identity import KeyVerifier
from peer.export.exported import Exported
from peer.export.listing import MANIFEST
from peer.machine.paths import run_path
from peer.storage.base_place import noted_base
from peer.storage.credit_book import CREDIT_FILE, saved_report
from peer.storage.run_directory import MANIFEST_FILE, Captured, RunDirectory
from peer.storage.tokenizer_file import exported_tokenizer


def known_run(data_directory: Path, beginning: str = "") -> Manifest:
    """Return the run in this peer's folder whose id begins so.

    Raises LocalError if the folder holds no run, UsageError if none or several match.
    """
    found = []
    for path in sorted(data_directory.glob(f"run-*/{MANIFEST_FILE}")):
        try:
            data = path.read_bytes()
            if run_id_of(data).hex().startswith(beginning.lower()):
                found.append(read_manifest(data, run_id_of(data)))
        except (OSError, PeerError):
            continue
    if not found and beginning:
        raise UsageError(f"{data_directory} holds no run {beginning[:12]}…; name another --data, or see `muster runs`")
    if not found:
        raise LocalError(
            f"{data_directory} holds no run; name another folder with --data, or start a peer with: muster join INVITE"
        )
    if len(found) > 1:
        ids = ", ".join(manifest.run_id.hex()[:12] for manifest in found)
        raise UsageError(f"{data_directory} holds several runs ({ids}); choose one with --run")
    return found[0]


def saved_state(
    data_directory: Path,
    manifest: Manifest,
    evaluations: tuple[Evaluation, ...] = (),
    licence: str = "",
    tokenizer: str = "",
) -> Exported:
    """Read the last state that the peer in this folder saved; raises LocalError if there is none.

    `tokenizer` is the path of the run's tokenizer, in case the peer has kept no copy.
    """
    rules = Rules.of(manifest, KeyVerifier())
    directory = RunDirectory(data_directory, manifest.run_id)
    captured = directory.read_certified(manifest, rules)
    content = exported_tokenizer(directory.path, manifest.config.data, tokenizer)
    passed = directory.passed(captured.chains)
    credit = _credit(directory.path, manifest, rules, captured)
    return Exported(manifest, captured, credit, evaluations, licence=licence, tokenizer=content, passed=passed)


def own_base(data_directory: Path, manifest: Manifest, given: str) -> str:
    """Return the folder or Hub name of an adapter run's base: `given`, or else the one that the peer here uses.

    `given` is returned, too, if the run trains no adapter. Raises UsageError if no base is known.
    """
    if manifest.config.adapter is None or given:
        return given
    found = noted_base(run_path(data_directory, manifest.run_id)) or manifest.config.model.source
    if not found:
        raise UsageError(
            f"the peer in {data_directory} has no base of this adapter; name the base's folder with --base"
        )
    return found


def base_of_export(folder: Path, data_directory: Path, given: str) -> str:
    """Return the base as `own_base` does, for the run of this export; `given` if its manifest cannot be read."""
    manifest = manifest_of_export(folder)
    return given if manifest is None else own_base(data_directory, manifest, given)


def manifest_of_export(folder: Path) -> Manifest | None:
    """Return this folder's manifest, not verified; None if it cannot be read. Raises UsageError if it is too new."""
    try:
        data = (folder / MANIFEST).read_bytes()
        return read_manifest(data, run_id_of(data))
    except (OSError, PeerError):
        return None


def _credit(folder: Path, manifest: Manifest, rules: Rules, captured: Captured) -> CreditReport:
    if (folder / CREDIT_FILE).exists():
        return saved_report(folder)
    chains = [
        Chain(rules, fragment, genesis, captured.chains[fragment]) for fragment, genesis in enumerate(manifest.genesis)
    ]
    return report_of(manifest.run_id, CreditRecord.empty(len(chains)), chains, {})
