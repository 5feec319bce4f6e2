from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dht.errors import LocalError
from peer.storage import record_log as module
from peer.storage.record_log import RecordLog
from tests.checkout import ROOT
from tests.disk import file_size_limit


def test_importing_the_module_does_not_import_torch():
    script = "import sys; import peer.storage.record_log; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


class TestRecordLog:
    def test_votes_come_back_in_order_also_from_another_process(self, tmp_path):
        log = RecordLog(tmp_path / "new" / "votes")
        assert log.read() == []
        for vote in (b"one", b"two"):
            log.append(vote)
        later = RecordLog(tmp_path / "new" / "votes")
        later.append(b"three")
        assert later.read() == RecordLog(tmp_path / "new" / "votes").read() == [b"one", b"two", b"three"]

    @settings(max_examples=25)
    @given(
        st.lists(st.binary(min_size=1, max_size=40).map(lambda vote: b"v" + vote), min_size=1, max_size=5), st.data()
    )
    def test_a_torn_tail_costs_only_itself(self, tmp_path_factory, votes, data):
        path = tmp_path_factory.mktemp("votes") / "votes"
        sizes = [0]
        for vote in votes:
            RecordLog(path).append(vote)
            sizes.append(path.stat().st_size)
        cut = data.draw(st.integers(0, sizes[-1]))
        written = path.read_bytes()
        torn = written[:cut] + data.draw(st.sampled_from([b"", bytes(20), b"\xff" * 9]))
        path.write_bytes(torn)
        whole = votes[: sum(torn[:size] == written[:size] for size in sizes[1:])]  # a torn tail may equal a vote's
        log = RecordLog(path)
        assert log.read() == whole
        log.append(b"after the crash")
        assert RecordLog(path).read() == [*whole, b"after the crash"]

    def test_zeros_behind_the_last_record_are_no_votes(self, tmp_path):
        RecordLog(tmp_path / "votes").append(b"one")
        with (tmp_path / "votes").open("ab") as file:
            file.write(bytes(64))
        RecordLog(tmp_path / "votes").append(b"two")
        assert RecordLog(tmp_path / "votes").read() == [b"one", b"two"]

    def test_erased_flash_behind_a_torn_head_is_no_vote(self, tmp_path):
        path = tmp_path / "votes"
        RecordLog(path).append(b"four")
        path.write_bytes(path.read_bytes()[:4] + b"\xff" * 9)
        assert RecordLog(path).read() == []

    def test_bytes_behind_a_torn_record_are_never_read(self, tmp_path):
        """A torn record may contain bytes that look like a record; they must never be read as one."""
        path = tmp_path / "votes"
        RecordLog(path).append(b"forged")
        forged = path.read_bytes()
        RecordLog(path).append(b"x" * len(b"short") + forged * 3)
        path.write_bytes(path.read_bytes()[:-1])
        RecordLog(path).append(b"short")
        assert RecordLog(path).read() == [b"forged", b"short"]

    @settings(max_examples=25)
    @given(st.data())
    def test_a_changed_byte_never_changes_a_vote(self, tmp_path_factory, data):
        path = tmp_path_factory.mktemp("votes") / "votes"
        votes = [b"one", b"second", b"third vote"]
        for vote in votes:
            RecordLog(path).append(vote)
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        found = RecordLog(path).read()
        assert len(found) < 3
        assert found == votes[: len(found)]

    def test_replace_keeps_what_still_matters(self, tmp_path):
        log = RecordLog(tmp_path / "votes")
        for vote in (b"one", b"two", b"three"):
            log.append(vote)
        log.replace([b"three"])
        log.append(b"four")
        assert RecordLog(tmp_path / "votes").read() == [b"three", b"four"]
        assert [path.name for path in tmp_path.iterdir()] == ["votes"]

    def test_bounds(self, tmp_path, monkeypatch):
        log = RecordLog(tmp_path / "votes")
        for vote in (b"", bytes(module.RECORD_BYTES_MAX + 1)):
            with pytest.raises(ValueError, match="a record has"):
                log.append(vote)
        monkeypatch.setattr(module, "LOG_BYTES_MAX", 20)
        log.append(b"a vote")
        log.append(b"b vote")
        assert RecordLog(tmp_path / "votes").read() == [b"a vote", b"b vote"], "a full log still takes votes"

    def test_a_full_log_keeps_the_newest(self, tmp_path, monkeypatch):
        monkeypatch.setattr(module, "RECORDS_KEPT", 3)
        monkeypatch.setattr(module, "LOG_BYTES_MAX", 200)
        log, votes = RecordLog(tmp_path / "votes"), [b"vote %d" % number for number in range(100)]
        for count, vote in enumerate(votes, start=1):
            log.append(vote)
            assert (tmp_path / "votes").stat().st_size <= 200
            kept = RecordLog(tmp_path / "votes").read()
            assert len(kept) >= min(count, 4)
            assert kept == votes[count - len(kept) : count]

    def test_a_full_disk_loses_nothing(self, tmp_path):
        log = RecordLog(tmp_path / "votes")
        log.append(b"one")
        with file_size_limit(20):
            with pytest.raises(LocalError, match="File too large"):
                log.append(b"x" * 100)
            with pytest.raises(LocalError, match="File too large"):
                log.replace([b"x" * 100])
        assert RecordLog(tmp_path / "votes").read() == [b"one"]
        log.append(b"two")
        assert RecordLog(tmp_path / "votes").read() == [b"one", b"two"]

    def test_an_unreadable_log_is_said_in_words(self, tmp_path):
        with pytest.raises(LocalError, match="cannot be read"):
            RecordLog(tmp_path).append(b"vote")
