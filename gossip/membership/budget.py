"""What one key may make others handle: a bucket of points per key, which come back with time.

A member can sign as many statements as it likes, and each that is news would be forwarded by everybody; an accusation
costs more than a word about oneself. They are drawn after the signature was found good, so an empty bucket mutes its
owner and nobody else. A second table of such buckets bounds how often a neighbour may have others pinged.
"""

from __future__ import annotations

from protocol.peer import PeerID


class Budget:
    """Buckets of `most` points, one more each `refill_us`; the one used longest ago is forgotten first."""

    def __init__(self, most: int, refill_us: int, owners_max: int) -> None:
        self._most = most
        self._refill_us = refill_us
        self._owners_max = owners_max
        self._buckets: dict[PeerID, tuple[int, int]] = {}  # points, and when they were counted

    def take(self, owner: PeerID, cost: int, now_us: int) -> bool:
        """Draw from an owner's bucket; False where it holds too little."""
        points, counted_us = self._buckets.pop(owner, (self._most, now_us))
        gained = max(0, now_us - counted_us) // self._refill_us
        points, counted_us = min(self._most, points + gained), counted_us + gained * self._refill_us
        enough = points >= cost
        self._buckets[owner] = (points - cost if enough else points, counted_us)
        if len(self._buckets) > self._owners_max:
            del self._buckets[next(iter(self._buckets))]
        return enough
