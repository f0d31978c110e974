"""Fingerprints of the map of signed records: where two maps differ, in one frame (replication.md §5 and §8).

The key of a record is a hash over its publisher and its agent (protocol/capability.py), so its leading bits spread the
slots evenly over LEAVES leaves. Of each leaf the sum of the record hashes mod 2^256 is kept, which does not depend on
any order and is moved by one addition when a record comes or goes. A frame tells a fingerprint per **bucket**: the
hashed sum of the leaves with the same leading bits. Any power of two of buckets can be told from the same sums, so the
sender chooses and the receiver follows: its own fingerprints are made for the number of buckets in the frame.

**How many buckets.** One differing record costs the frame, 8 B per bucket, there and back, and the other records of
its bucket once, about 700 B each. With n records both are equal near 6.6 * sqrt(n) buckets. But most frames find
nothing to do and carry buckets only, so it is 4 * sqrt(n), rounded up to a power of two in BUCKETS_MIN..LEAVES.

**8 bytes are a hint.** By accident two buckets look equal once in 2^64. On purpose a publisher needs about 2^32 signed
versions of one of its own records to find a pair that hides a difference between two given nodes (birthday on 64
bits). As the sum is hashed and not told, the pair fits one content of the bucket only: the next record that is signed
anew in it, every two hours at the latest, takes the hiding place away, and a round with any other peer finds the
difference too. Sums told bare would fall to four chosen records (2^21 work, generalised birthday) and stay fallen,
whatever else changes. A salt per round would end it for good, and cost a hash per record and round.
"""

from __future__ import annotations

from math import isqrt
from typing import Final

from protocol.errors import DecodeError
from protocol.identity import digest
from protocol.messages import FINGERPRINT_BYTES, RECORD_BUCKETS_MAX

BUCKETS_MIN: Final = 16
LEAVES: Final = RECORD_BUCKETS_MAX
_LEAF_BITS: Final = LEAVES.bit_length() - 1
_MODULUS: Final = 1 << 256


def leaf_of(key: bytes) -> int:
    """The leaf of a record's key: its leading bits."""
    return int.from_bytes(key[:2], "big") >> (16 - _LEAF_BITS)


def bucket_count(records: int) -> int:
    """How many buckets a holder of so many records tells: a power of two in BUCKETS_MIN..LEAVES."""
    wanted = 4 * isqrt(records)
    return min(LEAVES, max(BUCKETS_MIN, 1 << max(0, wanted - 1).bit_length()))


class Fingerprints:
    """Sums over a set of records; adding, removing and telling take the same time whatever is in it."""

    def __init__(self) -> None:
        self._sums = [0] * LEAVES
        self._frames: dict[int, bytes] = {}  # of the present sums, by number of buckets

    def add(self, leaf: int, record_hash: bytes) -> None:
        """A record is in the set from now on."""
        self._sums[leaf] = (self._sums[leaf] + int.from_bytes(record_hash, "big")) % _MODULUS
        self._frames.clear()

    def remove(self, leaf: int, record_hash: bytes) -> None:
        """A record that was added is in the set no more."""
        self._sums[leaf] = (self._sums[leaf] - int.from_bytes(record_hash, "big")) % _MODULUS
        self._frames.clear()

    def frame(self, buckets: int) -> bytes:
        """The fingerprints of so many buckets, a power of two up to LEAVES, in order."""
        if buckets not in self._frames:
            self._frames[buckets] = self._made(buckets)
        return self._frames[buckets]

    def _made(self, buckets: int) -> bytes:
        width = LEAVES // buckets
        sums = (sum(self._sums[start : start + width]) % _MODULUS for start in range(0, LEAVES, width))
        return b"".join(digest("record-bucket", each.to_bytes(32, "big"))[:FINGERPRINT_BYTES] for each in sums)

    def differing(self, frame: bytes) -> list[int]:
        """The leaves, in order, of all buckets that a peer's frame tells otherwise.

        Raises:
            DecodeError: not the fingerprints of a power of two of buckets in BUCKETS_MIN..LEAVES.
        """
        buckets, rest = divmod(len(frame), FINGERPRINT_BYTES)
        if rest or not BUCKETS_MIN <= buckets <= LEAVES or buckets & (buckets - 1):
            raise DecodeError(f"{len(frame)} bytes are no fingerprints of buckets")
        ours = self.frame(buckets)
        if ours == frame:
            return []
        size, width = FINGERPRINT_BYTES, LEAVES // buckets
        starts = [at for at in range(0, len(frame), size) if ours[at : at + size] != frame[at : at + size]]
        return [leaf for at in starts for leaf in range(at // size * width, at // size * width + width)]
