"""A peer that lies about its outer gradients (`muster join --attack`), to see what a run makes of it.

For trials among one's own machines: it joins nothing that can be reached from the internet. What an attack would know
of the others it does not: here it sees its own work only, so that those of `peer.attacks.omniscient` are tame.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import replace

from torch import Tensor

from coordinator.actions import Encode, RoundKey
from coordinator.events import Encoded
from coordinator.manifest import RunConfig
from dht.addresses import Reach
from dht.errors import LocalError, UsageError
from dht.invite import Invite
from dht.statement import digest_of
from peer.anchors import Anchors
from peer.attacks.attack import Attack, Scene
from peer.blobs import BlobStore
from peer.local_count import Counters
from peer.round_work import RoundWork

SEED_ELEMENTS = 64  # of its own work, which no two peers have alike


def check_among_ourselves(invite: Invite) -> None:
    """Raises UsageError if this run can be reached by everybody."""
    public = next((address for address in invite.addresses if address.reach is Reach.PUBLIC), None)
    if public is not None:
        raise UsageError(f"--attack is for runs in a network of your own, and {public.host} is public")


class HostileWork(RoundWork):
    """Sends what the attack makes of its outer gradient; everything else is done as it should be."""

    def __init__(self, attack: Attack, config: RunConfig, anchors: Anchors, blobs: BlobStore, worker: Executor) -> None:
        super().__init__(config, anchors, blobs, worker)
        self._attack = attack

    def encode(self, action: Encode, vector: Tensor, counters: Counters) -> Encoded:
        """As an honest peer, but of a lie; of the truth, if no codec holds the lie."""
        anchor = self._anchors.current(action.key.fragment).anchor
        lie = self._attack.lie(self._scene(action.key, anchor - vector))
        try:
            encoded = super().encode(action, anchor - lie, counters)
        except LocalError:
            return super().encode(action, vector, counters)
        # its own learner goes on from where it really was
        self._snapshots[action.key] = replace(self._snapshots[action.key], vector=vector)
        return self._attack.commit(encoded, self._blobs, self.leaf_bytes[0])

    def _scene(self, key: RoundKey, own: Tensor) -> Scene:
        seed = digest_of(b"attack", key.roster_id, own[:SEED_ELEMENTS].numpy().tobytes())[:7]
        return Scene(
            own=own,
            honest=lambda: {"me": own},
            attackers=1,
            seed=int.from_bytes(seed, "big"),
            fragment=key.fragment,
            state=self._anchors.current(key.fragment),
            outer_momentum=self._config.outer.momentum,
            merge=self._config.outer.merge,
        )
