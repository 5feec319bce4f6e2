"""The certificate log on disk: the newest checkpoint's certificates are always there, however long the run is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain.chain import Chain
from coordinator.chain.packed_history import PackedHistory
from coordinator.chain.skipping import skipping
from dht.errors import LocalError
from peer.storage import certificate_log as module
from peer.storage.certificate_log import CertificateLog
from tests.coordinator.builders import Club
from tests.disk import file_size_limit

CLUB = Club.of(3)
EVERYONE = (0, 1, 2)


def grown(chain: Chain, versions: int) -> Chain:
    return CLUB.grow(chain.truncated(chain.version), *[EVERYONE] * versions)


def test_added_certificates_come_back_in_another_life(tmp_path: Path) -> None:
    chain = grown(CLUB.chain(), 3)
    log = CertificateLog(tmp_path / "log")
    log.add(chain.certificates)
    longer = grown(chain, 4)
    log.add(longer.certificates)
    size = (tmp_path / "log").stat().st_size
    log.add(longer.certificates)
    assert (tmp_path / "log").stat().st_size == size, "nothing is written twice"
    later = CertificateLog(tmp_path / "log")
    assert later.read(5, longer.digest_at(5), 2) == longer.certificates[3:5]
    assert later.read(7, longer.digest, 99) == list(longer.certificates)
    assert later.read(7, None, 99) == list(longer.certificates), "checkpoints of earlier versions name no head"
    later.add(longer.certificates)
    assert (tmp_path / "log").stat().st_size == size
    with pytest.raises(LocalError, match="do not include version 8"):
        later.read(8, None, 99)
    with pytest.raises(LocalError, match="do not include version 7"):
        later.read(7, chain.digest, 99)


def test_a_disk_that_refuses_is_told_with_the_name_of_the_file(tmp_path: Path) -> None:
    """The error names the certificates' file, not that of the votes, whose log is of the same kind."""
    path = tmp_path / "certificates-0"
    with file_size_limit(20), pytest.raises(LocalError) as told:
        CertificateLog(path).add(grown(CLUB.chain(), 1).certificates)
    assert str(told.value) == f"{path} cannot be written: File too large"


@given(st.data())
def test_at_every_moment_both_checkpoints_can_be_loaded(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Both are the one written last, however many have failed since, and the one to be written; on any branch."""
    path = tmp_path_factory.mktemp("log") / "log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHAIN_KEPT", 6)
        patch.setattr(module, "RECORDS_MAX", 16)
        chain, log = CLUB.chain(), CertificateLog(path)
        written = chain
        for _ in range(data.draw(st.integers(1, 12))):
            back = data.draw(st.integers(0, min(3, chain.version)))
            rosters = data.draw(st.lists(st.sampled_from([EVERYONE, (0, 1)]), min_size=back + 1, max_size=6))
            chain = CLUB.grow(chain.truncated(chain.version - back), *rosters)
            if data.draw(st.booleans()):
                log = CertificateLog(path)  # as after a restart
            log.add(PackedHistory(chain.certificates[-6:]))
            is_written = data.draw(st.booleans())
            if is_written:
                log.cut()
            for one in (written, chain):
                if one.version and not (is_written and one is written):
                    found = CertificateLog(path).read(one.version, one.digest, 6)
                    assert found == one.certificates[-len(found) :]
                    assert len(found) >= min(one.version, 1)
            if is_written:
                written = chain
                assert len(log._log.read()) <= 16


def test_a_long_run_takes_no_more_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHAIN_KEPT", 20)
    monkeypatch.setattr(module, "RECORDS_MAX", 80)
    chain, log, sizes = CLUB.chain(), CertificateLog(tmp_path / "log"), []
    for _ in range(60):
        chain = grown(chain, 5)
        log.add(PackedHistory(chain.certificates[-20:]))
        log.cut()
        sizes.append((tmp_path / "log").stat().st_size)
    assert max(sizes[30:]) <= 1.05 * max(sizes[:30])
    assert CertificateLog(tmp_path / "log").read(300, chain.digest, 20) == chain.certificates[-20:]


def test_of_what_is_cut_a_few_stay_that_stand_for_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHAIN_KEPT", 6)
    monkeypatch.setattr(module, "RECORDS_MAX", 16)
    chain, log = CLUB.chain(), CertificateLog(tmp_path / "log")
    for _ in range(30):
        other = CLUB.grow(chain.truncated(chain.version), EVERYONE, EVERYONE)
        log.add(other.certificates)  # a branch that is left again
        chain = CLUB.grow(chain, EVERYONE, (1, 2, 0))
        log.add(chain.certificates)
        log.cut()
    again = CertificateLog(tmp_path / "log")
    kept = again.read(60, chain.digest, 6)
    passed = again.passed(kept[0].outcome.parent)
    assert [one.version for one in passed] == [1, kept[0].version - 1]
    assert passed[-1].digest == kept[0].outcome.parent
    assert [one.version for one in skipping(passed, kept)] == [1, 60]
    assert again.passed(bytes(32)) == skipping(again.passed(bytes(32)), ())
