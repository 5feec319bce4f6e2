"""`muster export` and `muster verify`: a checkpoint that `transformers` loads and that proves itself (design §9)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coordinator.run.toml_file import reading
from coordinator.views.control import SAVE_SECONDS_MAX, NobodyRunsError, ask, snapshot
from coordinator.views.evaluation import Evaluation
from dht.errors import LocalError
from dht.invite import Invite
from peer.machine import paths
from peer.node.options import NodeOptions

Data = Annotated[Path | None, typer.Option("--data", help="Folder of the peer on this machine.")]
Run = Annotated[str, typer.Option(help="Beginning of the run's id, where the folder holds several runs.")]
Licence = Annotated[str, typer.Option(help="Licence of the weights, for the model card; the organiser decides.")]
Tokenizer = Annotated[str, typer.Option(help="The run's tokenizer.json, should the peer have kept no copy of it.")]
Push = Annotated[str | None, typer.Option(help="Publish it as OWNER/NAME on the Hugging Face Hub too.")]


def export(
    directory: Annotated[Path, typer.Argument(help="A folder that does not exist yet.")],
    data: Data = None,
    run: Run = "",
    licence: Licence = "",
    push: Push = None,
    tokenizer: Tokenizer = "",
) -> None:
    """Write the model here as a folder for `transformers`.

    `muster verify` checks the folder.
    """
    from peer.export.hub import open_hub

    hub = None if push is None else open_hub(push)
    versions = export_here(directory, paths.data_directory(data), run, licence, tokenizer)
    typer.echo(f"{directory} holds {versions} certified versions; check it with: muster verify {directory}")
    if hub is not None:
        hub.upload(directory, f"{versions} certified versions")
        typer.echo(f"pushed to https://huggingface.co/{push}")


def export_here(directory: Path, home: Path, run: str, licence: str = "", tokenizer: str = "") -> int:
    """Write what the peer with this data folder holds of a run; returns the number of versions in it."""
    from dht.identity import Identity
    from peer.export.source import known_run, saved_state
    from peer.export.writer import check_target, write_export
    from peer.machine.clock import unix_seconds

    check_target(directory)
    evaluations = _save_running_peer(home)
    exported = saved_state(home, known_run(home, run), evaluations, licence, tokenizer)
    write_export(directory, exported, Identity.load(NodeOptions(home).identity_path), int(unix_seconds()))
    return exported.versions


def verify(
    path: Annotated[Path, typer.Argument(help="The folder of an export, or a file of evidence against a peer.")],
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of a peer of the run that the evidence is from.")
    ] = None,
    invite: Annotated[str | None, typer.Option(help="Fail unless it is of the run of this invite.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail unless the certificates lead back to the founders without a gap.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it for scripts.")] = False,
) -> None:
    """Prove an export by its certificates.

    Every digest is recomputed from the weights; then it says whose signatures stand behind them.

    Of evidence, which a peer keeps in run-*/evidence: check every signature, and say who is guilty of what.
    """
    with reading(path):
        is_evidence = path.is_file()
    if is_evidence:
        typer.echo(_verdict(path, paths.data_directory(data)))
        return
    from dht.identity import KeyVerifier
    from peer.export.findings import as_plain_data, in_words
    from peer.export.verifier import verify_export

    wanted = None if invite is None else Invite.parse(invite).run_id
    found = verify_export(path, KeyVerifier())
    if wanted is not None and wanted != found.manifest.run_id:
        raise LocalError(f"{path} is of another run than that of the invite: {found.manifest.run_id.hex()}")
    if strict and not found.from_founders:
        raise LocalError(f"the certificates in {path} do not lead back to the founders without a gap")
    typer.echo(as_plain_data(found) if as_json else in_words(found, path))


def _verdict(path: Path, home: Path) -> str:
    from peer.export.source import known_run
    from peer.rounds.verify_evidence import EvidenceCase

    case = EvidenceCase.read(path)
    guilt = case.judge(known_run(home, case.run_id.hex()))
    return f"{guilt.peer} is guilty: {guilt.reason} (proven by what is signed in {path}, run {case.run_id.hex()[:12]})"


def _save_running_peer(home: Path) -> tuple[Evaluation, ...]:
    """Have the peer that runs here, if any, save what it holds now; returns its evaluations."""
    try:
        ask(home, "save", SAVE_SECONDS_MAX)
        return snapshot(home).evaluations
    except NobodyRunsError:
        return ()
