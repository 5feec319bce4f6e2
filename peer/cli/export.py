"""`muster export`, `verify` and `eval`: write a checkpoint for `transformers`, prove it, and evaluate it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.run.toml_file import reading
from coordinator.views.control import SAVE_SECONDS_MAX, EndingError, PeerNotRunningError, ask, snapshot
from coordinator.views.evaluation import Evaluation
from coordinator.views.quantity import counted
from dht.errors import LocalError, UsageError
from dht.invite import Invite
from peer.cli import arguments
from peer.cli.common import AsJson, Base, print_json, tell
from peer.machine import paths
from peer.node.options import NodeOptions

if TYPE_CHECKING:
    from coordinator.run.manifest import Manifest
    from dht.identity import Signer
    from peer.export.exported import Exported
    from peer.export.judging import Judge, Judged

app = typer.Typer()

Write = Callable[[Path, "Exported", "Signer", int], None]
Data = Annotated[Path | None, typer.Option("--data", help="Folder of the peer on this machine.")]
Run = Annotated[str, typer.Option(help="Beginning of the run's id, where the folder holds several runs.")]
Licence = Annotated[str, typer.Option(help="Licence of the weights, for the model card; the organiser decides.")]
Tokenizer = Annotated[str, typer.Option(help="The run's tokenizer.json, should the peer have kept no copy of it.")]
Push = Annotated[str | None, typer.Option(help="Publish it as OWNER/NAME on the Hugging Face Hub too.")]


@app.command(epilog="Example: muster export my-model")
def export(
    directory: Annotated[Path, typer.Argument(help="A folder that does not exist yet.")],
    data: Data = None,
    run: Run = "",
    licence: Licence = "",
    push: Push = None,
    tokenizer: Tokenizer = "",
    merged: Annotated[
        bool, typer.Option("--merged", help="Of an adapter: write it into its base, as one model.")
    ] = False,
    base: Base = "",
    as_json: AsJson = False,
) -> None:
    """Write the model here as a folder for `transformers`.

    `muster verify` checks the folder.
    """
    from peer.export.hub import open_hub

    hub = None if push is None else open_hub(push)
    home = paths.data_directory(data)
    put = None if not merged else _merging(home, base)
    versions = export_here(directory, home, run, licence, tokenizer, put)
    proven, held = directory / "adapter" if merged else directory, counted(versions, "certified version")
    say = partial(typer.echo, err=as_json)  # standard output is for one document only
    say(f"{directory} holds {held}; check it with: muster verify {proven}")
    address = None if hub is None else f"https://huggingface.co/{push}"
    if hub is not None:
        hub.upload(directory, held)
        say(f"pushed to {address}")
    if as_json:
        print_json({"folder": str(directory), "proven_by": str(proven), "versions": versions, "pushed_to": address})


def _merging(home: Path, base: str) -> Write:
    from peer.export.merged import write_merged
    from peer.export.source import own_base

    def write(target: Path, exported: Exported, signer: Signer, unix_seconds: int) -> None:
        write_merged(target, exported, signer, unix_seconds, own_base(home, exported.manifest, base))

    return write


def export_here(
    directory: Path, home: Path, run: str, licence: str = "", tokenizer: str = "", write: Write | None = None
) -> int:
    """Export the state of a run that the peer with this data folder holds; returns its number of versions."""
    from dht.identity import Identity
    from peer.export.source import saved_state
    from peer.export.writer import check_target, write_export
    from peer.machine.clock import unix_seconds

    check_target(directory)
    manifest = chosen_run(home, run)
    exported = saved_state(home, manifest, _save_running_peer(home, manifest), licence, tokenizer)
    (write or write_export)(directory, exported, Identity.load(NodeOptions(home).identity_path), int(unix_seconds()))
    return exported.versions


def verify(
    path: Annotated[Path, typer.Argument(help="The folder of an export, or a file of evidence against a peer.")],
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of a peer of the run that the evidence is from.")
    ] = None,
    invite: Annotated[str | None, typer.Option(help="Fail unless it is of this invite's run.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail unless the certificates lead back to the founders without a gap.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Prove an export by its certificates.

    Every digest is recomputed from the weights; then it says whose signatures stand behind them.

    For evidence, which a peer keeps in run-*/evidence, it checks every signature and says who is guilty of what.
    """
    with reading(path):
        is_evidence = path.is_file()
    wanted = None if invite is None else Invite.parse(invite).run_id
    if is_evidence:
        if strict:
            raise UsageError(f"--strict is about the certificates of an export, and {path} is evidence; leave it out")
        told = _verdict(path, paths.data_directory(data), wanted)
        proof = f"proven by what is signed in {path}, run {told['run_id'][:12]}"
        tell(f"{told['guilty']} is guilty: {told['reason']} ({proof})", told, as_json)
        return
    from dht.identity import KeyVerifier
    from peer.export.findings import as_plain_data, in_words
    from peer.export.verifier import verify_export

    found = verify_export(path, KeyVerifier())
    _check_run(path, found.manifest.run_id, wanted)
    if strict and not found.from_founders:
        raise LocalError(f"the certificates in {path} do not lead back to the founders without a gap")
    tell(in_words(found, path), as_plain_data(found), as_json)


def _check_run(path: Path, run_id: bytes, wanted: bytes | None) -> None:
    """Raise LocalError if a run is wanted, and this is of another one."""
    if wanted is not None and wanted != run_id:
        raise LocalError(f"{path} is of another run than that of the invite: {run_id.hex()}")


def _verdict(path: Path, home: Path, wanted: bytes | None) -> dict[str, str]:
    from peer.export.source import known_run
    from peer.rounds.verify_evidence import EvidenceCase

    case = EvidenceCase.read(path)
    _check_run(path, case.run_id, wanted)
    guilt = case.judge(known_run(home, case.run_id.hex()))
    return {"guilty": guilt.peer, "reason": guilt.reason, "run_id": case.run_id.hex()}


def chosen_run(home: Path, beginning: str) -> Manifest:
    """Return the manifest of the run whose id begins so.

    Without a beginning, that is the run of the peer running here, or the only one in the folder.
    """
    from peer.export.source import known_run

    if not beginning:
        with suppress(PeerNotRunningError):
            beginning = snapshot(home).run_id
    return known_run(home, beginning)


def _save_running_peer(home: Path, manifest: Manifest) -> tuple[Evaluation, ...]:
    """Have the peer running here save its state, if it is in this run; returns its evaluations."""
    try:
        if snapshot(home).run_id != manifest.run_id.hex():
            return ()
        ask(home, "save", SAVE_SECONDS_MAX)
        return snapshot(home).evaluations
    except EndingError:
        raise  # the ending peer is about to save a newer state than the one on disk
    except PeerNotRunningError:
        return ()


@app.command("eval", epilog="Example: muster eval my-model --text mine.txt")
def evaluate(
    export: Annotated[
        Path | None, typer.Argument(help="The folder of an export; default: the peer's own model.")
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Folder of the peer on this machine.")] = None,
    run: Annotated[str, typer.Option(help="Beginning of the run's id, where the folder holds several runs.")] = "",
    text: Annotated[list[str] | None, typer.Option(help="Files of your own to judge it on (repeatable).")] = None,
    corpus: Annotated[str, typer.Option(help="The run's text, where the run trains on files.")] = "",
    tokenizer: Annotated[str, typer.Option(help="The run's tokenizer.json, should there be no copy.")] = "",
    device: Annotated[str, typer.Option(help="Where it computes: cpu, cuda, cuda:1 or auto.")] = "cpu",
    base: Base = "",
    as_json: AsJson = False,
) -> None:
    """Say how good a certified model is.

    It prints held-out loss with its standard error, perplexity, and bits per byte.
    """
    from peer.cli.progress import loading
    from peer.machine.local_files import LocalFiles

    if export is not None and data is not None:
        raise UsageError("name an export, or a peer's folder with --data, not both")
    judge = _judge(export, data, run, arguments.one_device(device), base)
    files = LocalFiles(corpus, tokenizer, str(paths.token_cache()))
    if not text and judge.needs_files and not corpus:
        raise UsageError("this run trains on files: name its text with --corpus, or text of your own with --text")
    found = [] if judge.needs_files and not corpus else [judge.run_text(files, loading(0))]
    found += [judge.own_text(LocalFiles(one, tokenizer)) for one in text or ()]
    tell("\n".join(map(_line, found)), [_plain(one) for one in found], as_json)


def _judge(export: Path | None, data: Path | None, run: str, device: str, base: str) -> Judge:
    from peer.export.judging import Judge
    from peer.export.source import base_of_export, own_base

    home = paths.data_directory(data)
    if export is not None:
        return Judge.of_export(export, device, base_of_export(export, home, base))
    manifest = chosen_run(home, run)
    return Judge.of_peer(home, manifest, device, own_base(home, manifest, base))


def _line(one: Judged) -> str:
    error = "" if one.error is None else f" ± {one.error:.4f}"
    bits = "" if one.bits_per_byte is None else f", {one.bits_per_byte:.4f} bits per byte"
    note = f"; {one.note}" if one.note else ""
    return (
        f"{one.text}: {one.loss:.4f}{error} nats per token, perplexity {one.perplexity:.2f}{bits} "
        f"({one.tokens:,} tokens in {one.sequences:,} sequences{note})"
    )


def _plain(one: Judged) -> dict[str, object]:
    return {
        "text": one.text,
        "nats_per_token": one.loss,
        "standard_error": one.error,
        "perplexity": one.perplexity,
        "bits_per_byte": one.bits_per_byte,
        "tokens": one.tokens,
        "sequences": one.sequences,
        "note": one.note,
    }
