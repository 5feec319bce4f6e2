"""A process of a learner on several devices that is not the first: it repeats the calls of the first one."""

from __future__ import annotations

import torch
from torch import Tensor

from dht.errors import LocalError
from peer.learner.channel import Channel
from peer.learner.gradient.batch_ahead import Batches
from peer.learner.group.collective import Ranks
from peer.learner.learner import Learner
from peer.learner.messages import (
    AdoptFragment,
    CertifiedProgress,
    MakeStep,
    Message,
    Rest,
    Save,
    Stop,
    TakeSnapshot,
    Threads,
)


class SharedBatches:
    """Batches that the first process reads for all; the other processes only receive them."""

    def __init__(self, group: Ranks, sequences: int, tokens: int, batches: Batches | None = None) -> None:
        self._group = group
        self._shape = sequences, tokens
        self._batches = batches

    def batch(self, window: int) -> Tensor:
        room = torch.empty(self._shape, dtype=torch.int64)
        batch = room if self._batches is None else self._batches.batch(window)
        self._group.share(batch)
        return batch


def follow(learner: Learner, channel: Channel) -> None:
    """Carry out messages until told to stop.

    Raises PeerGoneError when the first process ends, or any error that ends a learner.
    """
    while True:
        for message in channel.receive(None):
            if isinstance(message, Stop):
                return
            _obey(learner, message)


def _obey(learner: Learner, message: Message) -> None:
    match message:
        case MakeStep():
            learner.step()
        case Rest():
            learner.rest()
        case CertifiedProgress():
            learner.set_progress(message.steps, message.window)
        case Threads():
            learner.set_threads(message.threads)
        case TakeSnapshot():
            learner.snapshot(message.fragment, None)
        case AdoptFragment():
            _adopt(learner, message)
        case Save():
            learner.export_state(copied=False)
        case _:
            raise LocalError(f"a learner's process is not told {type(message).__name__} by the first one")


def _adopt(learner: Learner, told: AdoptFragment) -> None:
    elements = learner.fragments[told.fragment].elements
    brought = [torch.empty(elements) for _ in range(1 if told.reference is None else 2)]
    for one in brought:
        learner.group.share(one)
    new, reference = brought[0], brought[1] if len(brought) > 1 else None
    learner.adopt(told.fragment, new, reference, told.counted_steps, told.counted_tokens)
