"""A host's own exports: when they are written, how many stay, and what happens if the disk or the Hub refuses."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.run.adapter_spec import AdapterSpec
from coordinator.run.data_spec import CHAT
from dht.errors import LocalError, NetworkError, UsageError
from dht.identity import KeyVerifier
from peer.cli import main
from peer.export import regular
from peer.export.exported import Exported
from peer.export.hub import HuggingFaceHub, open_hub
from peer.export.listing import CARD, LATEST
from peer.export.options import ExportOptions
from peer.export.regular import EXPORTS_KEPT, RegularExport, check, check_run, exports, next_steps, number
from peer.export.verifier import verify_export
from peer.rounds.counters import RunCounters
from peer.rounds.evaluation_loop import RunPosition
from tests.peer.exporting import KEYS, CertifiedRun

PYTHON = (3, 11)


class Bench:
    """A host without a network: a run that advances when told to."""

    def __init__(self, folder: Path, every: int | None = None, repository: str | None = None) -> None:
        self.run = CertifiedRun().advance()
        self.folder = folder
        self.pushed: list[tuple[str, str]] = []
        self.refuses = False
        self.counters = RunCounters(2)
        self.options = ExportOptions(folder, every, repository, "CC0-1.0")
        self.exports = RegularExport(self.options, KEYS[0], self.gather, self.counters, lambda _: self)

    async def gather(self, licence: str) -> Exported:
        return self.run.exported(licence)

    def mark(self) -> RunPosition:
        return RunPosition(sum(chain.version for chain in self.run.chains), 0, 0.0, complete=True)

    def upload(self, folder: Path, message: str) -> None:
        self.pushed.append((folder.name, message))
        if self.refuses:
            raise NetworkError("the hub does not answer")

    def numbers(self) -> list[int]:
        return [number(path) for path in exports(self.folder)]


def test_the_newest_exports_stay_and_the_link_names_the_last(tmp_path: Path) -> None:
    bench = Bench(tmp_path, repository="me/model")
    for _ in range(EXPORTS_KEPT + 2):
        asyncio.run(bench.exports.export())
        asyncio.run(bench.exports.export())  # of the same versions: nothing new
        bench.run.advance()
    last = 2 * (EXPORTS_KEPT + 2)
    assert bench.numbers() == [last - 4, last - 2, last]
    assert [name for name, _ in bench.pushed] == [f"version-{one:09d}" for one in range(2, last + 1, 2)]
    assert os.readlink(tmp_path / LATEST) == f"version-{last:09d}"
    assert verify_export(tmp_path / LATEST, KeyVerifier()).from_founders
    assert "CC0-1.0" in (tmp_path / LATEST / CARD).read_text()


def test_where_the_newest_one_lies_is_told_with_what_to_do_next(tmp_path: Path) -> None:
    bench, folder = Bench(tmp_path / "my models"), f"{tmp_path}/my models/{LATEST}"
    config = bench.run.manifest.config
    assert bench.exports.newest is None
    asyncio.run(bench.exports.export())
    newest = bench.exports.newest
    assert newest == Path(folder)
    assert next_steps(newest, config, "") == (
        f"the newest export is in {folder}; check it: muster verify '{folder}'; let it write: muster sample '{folder}'"
    )
    chat = config.model_copy(update={"adapter": AdapterSpec(), "data": config.data.model_copy(update={"source": CHAT})})
    assert next_steps(newest, chat, "/my/base").endswith(
        f"muster sample '{folder}' --base /my/base --chat 'Who are you?'"
    )
    own = config.model_copy(update={"model": config.model.model_copy(update={"family": "own"})})
    assert "sample" not in next_steps(newest, own, "")


def test_exports_of_two_runs_are_not_mixed(tmp_path: Path) -> None:
    """Before, a run with as many versions as an earlier one took that one's export for its own."""
    bench = Bench(tmp_path)
    run_id = bench.run.manifest.run_id
    check_run(tmp_path, run_id)
    asyncio.run(bench.exports.export())
    check_run(tmp_path, run_id)
    with pytest.raises(UsageError, match=f"holds exports of another run, {run_id.hex()[:12]}; name another folder"):
        check_run(tmp_path, bytes(32))


def run_through(bench: Bench, monkeypatch: pytest.MonkeyPatch, looks: int, between: Callable[[], object]) -> None:
    """Run the loop for so many looks, and call `between` between two of them."""
    left = looks

    async def pause(_: float) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise asyncio.CancelledError
        between()

    monkeypatch.setattr(regular.asyncio, "sleep", pause)  # type: ignore[attr-defined]
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(bench.exports.run(bench.mark))


def test_exports_come_every_so_many_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, every=5)
    run_through(bench, monkeypatch, 7, bench.run.advance)
    assert bench.numbers() == [6, 12]
    again = Bench(tmp_path, every=5)  # the host starts again
    again.run.advance(5)
    run_through(again, monkeypatch, 4, again.run.advance)
    assert again.numbers() == [6, 12, 18]


def test_without_a_number_only_the_end_is_exported(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    asyncio.run(bench.exports.run(bench.mark))
    assert bench.numbers() == []


def test_a_hub_or_a_disk_that_refuses_does_not_stop_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, every=2, repository="me/model")
    bench.refuses = True
    run_through(bench, monkeypatch, 3, bench.run.advance)
    assert bench.numbers() == [2, 4, 6]
    assert len(bench.pushed) == 3
    assert bench.counters.refused == {"export": "the hub does not answer"}

    def full_disk(*_: object) -> None:
        raise LocalError("no space left")

    monkeypatch.setattr(regular, "write_export", full_disk)
    run_through(bench, monkeypatch, 2, bench.run.advance)
    assert bench.numbers() == [2, 4, 6]
    assert bench.counters.refused == {"export": "no space left"}
    monkeypatch.undo()
    bench.refuses = False
    asyncio.run(bench.exports.export())
    assert bench.counters.refused == {}


def test_an_owner_hears_that_a_run_which_ended_early_has_nothing_to_export(tmp_path: Path) -> None:
    """A short run can end while a fragment has no version. Before, the host then ended without a word or an export."""
    bench = Bench(tmp_path)
    bench.run = CertifiedRun()
    asyncio.run(bench.exports.export())
    assert bench.numbers() == []
    assert "not every fragment has a certified version" in bench.counters.refused["export"]


class Api:
    """A fake with the parts of `huggingface_hub.HfApi` that we use."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[tuple[str, object]] = []
        self._error = error

    def create_repo(self, repo_id: str, *, exist_ok: bool) -> None:
        self.calls.append(("create", (repo_id, exist_ok)))

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str, delete_patterns: str) -> None:
        self.calls.append(("upload", (repo_id, folder_path, commit_message, delete_patterns)))
        if self._error is not None:
            raise self._error


def test_the_hub_gets_the_whole_folder_and_nothing_of_before(tmp_path: Path) -> None:
    api = Api()
    HuggingFaceHub("me/model", api).upload(tmp_path, "12 versions")
    assert api.calls == [("create", ("me/model", True)), ("upload", ("me/model", tmp_path, "12 versions", "*"))]


@pytest.mark.parametrize("error", [ConnectionError("no route\nto the hub"), ValueError("")])
def test_a_hub_that_fails_is_told_in_a_sentence(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(NetworkError, match="push it again later") as refused:
        HuggingFaceHub("me/model", Api(error)).upload(tmp_path, "12 versions")
    assert "\n" not in str(refused.value)


def test_the_hub_s_own_library_takes_what_we_pass() -> None:
    """The names of our arguments are checked against the real library; nothing is called."""
    import inspect

    from huggingface_hub import HfApi

    assert {"repo_id", "exist_ok"} <= inspect.signature(HfApi.create_repo).parameters.keys()
    wanted = {"repo_id", "folder_path", "commit_message", "delete_patterns"}
    assert wanted <= inspect.signature(HfApi.upload_folder).parameters.keys()


def test_without_a_token_or_a_name_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(UsageError, match="log in with: hf auth login"):
        open_hub("me/model")
    with pytest.raises(UsageError, match="write OWNER/NAME"):
        open_hub("model")
    assert main.run(["export", str(tmp_path / "out"), "--push", "me/model"], PYTHON) == 2
    assert "log in with" in capsys.readouterr().err
    left = tmp_path / ".version-000000007.unfinished"
    left.mkdir()
    check(ExportOptions(tmp_path))
    assert not left.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot hold exports"):
        check(ExportOptions(tmp_path / "file" / "folder"))
    assert main.run(["host", "--push", "me/model"], PYTHON) == 2
    assert "say where to with --export" in capsys.readouterr().err
