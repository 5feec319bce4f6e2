"""A peer's place in the network: what waits for a slow line."""

from __future__ import annotations

import math

from peer.network import QUEUE_BYTES_MIN, QUEUE_SECONDS, transport_config
from peer.transport import TransportConfig


def test_queues_are_as_short_as_the_owners_upload_limit_makes_them() -> None:
    usual = TransportConfig().queue_bytes_max
    assert transport_config(math.inf).queue_bytes_max == usual
    assert transport_config(1e12).queue_bytes_max == usual
    assert transport_config(250_000.0).queue_bytes_max == 250_000 * QUEUE_SECONDS < usual
    assert transport_config(1.0).queue_bytes_max == QUEUE_BYTES_MIN
