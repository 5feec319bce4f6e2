"""A learner's way to its first step: the order of its checks."""

from __future__ import annotations

import pytest

from coordinator.run.manifest import RunConfig
from dht.errors import LocalError, UsageError
from peer.learner import setup
from peer.learner.messages import LearnerSettings, Start


def test_the_owners_memory_limit_holds_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text, tokenizer and the tokens made of them may come from the Hub, and be of any size."""
    done: list[object] = []

    def load_tokens(*_: object, **__: object) -> None:
        done.append("read")
        raise LocalError("far enough")

    monkeypatch.setattr(setup, "limit_memory", done.append)
    monkeypatch.setattr(setup, "load_tokens", load_tokens)
    settings = LearnerSettings(memory_bytes=5 << 30, device="cpu")
    with pytest.raises(LocalError, match="far enough"):
        setup.prepare_learner(Start(config=RunConfig(), run_key=b"run", peer_id="peer", settings=settings))
    assert done == [5 << 30, "read"]


def test_a_run_that_does_not_fit_is_refused_before_its_text_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_tokens(*_: object, **__: object) -> None:
        raise AssertionError("read")

    monkeypatch.setattr(setup, "load_tokens", load_tokens)
    settings = LearnerSettings(memory_bytes=1 << 20, device="cpu")
    with pytest.raises(UsageError, match="and only 0 MiB"):
        setup.prepare_learner(Start(config=RunConfig(), run_key=b"run", peer_id="peer", settings=settings))
