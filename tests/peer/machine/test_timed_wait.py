"""Waiting works for descriptors of any number."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from peer.learner.channel import Channel
from peer.learner.messages import Stop
from peer.machine.timed_wait import wait_for

HIGH = 1024  # where `select.select` ends


@pytest.fixture
def room() -> Iterator[None]:
    """Allow twice as many open files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2 * HIGH), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("room")
def test_a_loop_of_ones_own_hears_its_peer_though_it_has_a_thousand_files_open() -> None:
    ours, theirs = socket.socketpair()
    high = socket.socket(fileno=fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, HIGH))
    with ours, theirs, high:
        Channel(ours).send(Stop())
        assert Channel(high).receive(None) == [Stop()]


@pytest.mark.usefixtures("room")
def test_a_writable_descriptor_ends_the_wait_where_that_is_wanted() -> None:
    reader, writer = os.pipe()
    high = fcntl.fcntl(writer, fcntl.F_DUPFD_CLOEXEC, HIGH)
    wait_for(high, None, writable=True)
    for one in (reader, writer, high):
        os.close(one)
