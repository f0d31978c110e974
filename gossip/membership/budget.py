"""What one signer may make the swarm handle: a bucket per key, drawn after its signature was found good.

A member can sign as many statements as it likes, and each that is news would be forwarded by everybody. So whoever
signs has so many points, which come back with time; an accusation costs more than a word about oneself. An empty
bucket mutes its owner and nobody else.
"""

from __future__ import annotations

from gossip.membership.config import MemberConfig
from protocol.peer import PeerID


class Budget:
    """Buckets of signers; the one used longest ago is forgotten first."""

    def __init__(self, config: MemberConfig) -> None:
        self._config = config
        self._signers_max = config.members_max + config.tombstones_max
        self._buckets: dict[PeerID, tuple[int, int]] = {}  # points, and when they were counted

    def take(self, signer: PeerID, cost: int, now_us: int) -> bool:
        """Draw from a signer's bucket; False where it holds too little."""
        most, refill_us = self._config.budget_max, self._config.budget_refill_us
        points, counted_us = self._buckets.pop(signer, (most, now_us))
        gained = max(0, now_us - counted_us) // refill_us
        points, counted_us = min(most, points + gained), counted_us + gained * refill_us
        enough = points >= cost
        self._buckets[signer] = (points - cost if enough else points, counted_us)
        if len(self._buckets) > self._signers_max:
            del self._buckets[next(iter(self._buckets))]
        return enough
