"""Certificates reported by many peers: which of them count, and which contradict each other."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.views.network_view import CertificateView
from peer.observer import seen_certificates
from peer.observer.seen_certificates import SeenCertificates


def view(version: int, branch: str = "a", parent: str | None = None, minor: bool = False) -> CertificateView:
    before = f"{ord(branch):x}{version - 1:04x}" if parent is None else parent
    digest = f"{ord(branch):x}{version:04x}"
    return CertificateView(
        fragment=0, version=version, digest=digest, parent=before, minor=minor, tokens=10 if branch == "a" else 1
    )


def forked(length: int, at: int, minor: bool = True) -> tuple[list[CertificateView], list[CertificateView]]:
    """Return two branches that share the versions up to `at`."""
    trunk = [view(version) for version in range(1, length + 1)]
    first = view(at + 1, "b", trunk[at - 1].digest, minor)
    return trunk, [first, *(view(version, "b") for version in range(at + 2, length + 1))]


@given(st.integers(2, 30), st.data())
def test_only_one_branch_counts_whatever_was_seen_when(length: int, data: st.DataObject) -> None:
    trunk, branch = forked(length, data.draw(st.integers(1, length - 1)))
    told = [*trunk, *branch]
    Random(data.draw(st.integers(0, 2**32))).shuffle(told)
    seen = SeenCertificates()
    for seconds, one in enumerate(told):
        seen.see([one, one], float(seconds))
    seen.see(told, 1e9)  # again: the first time counts
    lineage = seen.lineage({0: (length, trunk[-1].digest)})
    assert sorted(one.certificate.version for one in lineage) == list(range(1, length + 1))
    assert {one.certificate.tokens for one in lineage} == {10}
    assert [one.seconds for one in lineage] == sorted(one.seconds for one in lineage)
    assert max(one.seconds for one in lineage) < 1e9
    assert seen.conflicts == set()


def test_two_full_certificates_for_one_parent_are_a_conflict() -> None:
    trunk, branch = forked(5, 2, minor=False)
    seen = SeenCertificates()
    seen.see([*trunk, *branch], 0.0)
    assert seen.conflicts == {(0, 3)}


def test_below_a_gap_a_version_counts_only_if_there_is_no_other() -> None:
    trunk, branch = forked(6, 2)
    seen = SeenCertificates()
    seen.see([one for one in [*trunk, *branch] if (one.version, one.tokens) != (5, 10)], 0.0)
    lineage = seen.lineage({0: (6, trunk[-1].digest)})
    assert sorted(one.certificate.version for one in lineage) == [1, 2, 6]  # 5 was not seen, 3 and 4 might be either


def test_certificates_above_the_head_were_given_up() -> None:
    trunk, branch = forked(4, 2)
    seen = SeenCertificates()
    seen.see([*trunk, *branch], 0.0)
    lineage = seen.lineage({0: (3, branch[0].digest)})
    assert {one.certificate.digest for one in lineage} == {trunk[0].digest, trunk[1].digest, branch[0].digest}


def test_remembered_certificates_are_bounded_and_conflicts_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_certificates, "CERTIFICATES_KEPT", 4)
    trunk, branch = forked(30, 2, minor=False)
    seen = SeenCertificates()
    seen.see([*trunk[:3], branch[0]], 0.0)
    seen.see(trunk[3:], 1.0)
    assert [one.certificate.version for one in seen.by_digest.values()] == [27, 28, 29, 30]
    assert len(seen._children) == 4
    assert seen.conflicts == {(0, 3)}
    seen.see([view(30, "b", trunk[-1].parent)], 2.0)
    assert seen.conflicts == {(0, 3), (0, 30)}, "later ones are still found"
