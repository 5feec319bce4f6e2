"""A small proof of work per peer, key and hour: what a fresh key costs in an open run (design §9)."""

from __future__ import annotations

from dht.identity import PeerId
from dht.records import RecordKey
from dht.statement import digest_of

WORK_EPOCH_MILLISECONDS = 3600 * 1000
WORK_BITS_MAX = 24  # sixteen million hashes, about half a minute of one core


def work_done(key: RecordKey, sender: PeerId, issued_unix_milliseconds: int, work: int) -> int:
    """Leading zero bits of the hash over this claim; one number serves every record of its key and hour."""
    epoch = issued_unix_milliseconds // WORK_EPOCH_MILLISECONDS
    digest = digest_of(b"muster-work", key.text.encode(), sender.encode(), f"{epoch}/{work}".encode())
    return len(digest) * 8 - int.from_bytes(digest, "big").bit_length()


def find_work(key: RecordKey, sender: PeerId, issued_unix_milliseconds: int, bits: int) -> int:
    """The smallest number worth `bits`; tries 2^bits of them on average."""
    if not 0 <= bits <= WORK_BITS_MAX:
        raise ValueError(f"proof of work takes 0 to {WORK_BITS_MAX} bits, not {bits}")
    work = 0
    while work_done(key, sender, issued_unix_milliseconds, work) < bits:
        work += 1
    return work
