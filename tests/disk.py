"""Disks that refuse, and machines that stop in the middle of writing."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

STEPS = ("open", "fsync", "replace")  # of `os`, in which a file gets new content


class CrashError(BaseException):
    """The machine is gone: nothing that would tidy up may catch this."""


@contextmanager
def file_size_limit(limit_bytes: int) -> Iterator[None]:
    """A disk that takes so many bytes per file and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def failure_at(step: int, error: BaseException) -> Iterator[list[str]]:
    """Raise `error` instead of the so-manyth of STEPS; gives the names of those that were reached."""
    reached: list[str] = []

    def failing(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object, **options: object) -> object:
            reached.append(name)
            if len(reached) > step:
                raise error
            return real(*arguments, **options)

        return called

    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, failing(name, getattr(os, name)))
        yield reached
