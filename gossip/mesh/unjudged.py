"""Messages that wait for their judge (case S3): bounded per peer and in total, by count and by bytes.

A message is charged to the peer that brought it first, until it is judged, expires, or that peer is gone. Then the next
peer that brought it carries it, if it has room. What finds no room is as if it had never come: it is not seen, so it
can be pulled later or comes with another peer.
"""

from __future__ import annotations

from dataclasses import dataclass

from gossip.mesh.config import MeshConfig
from protocol.peer import PeerID


@dataclass(slots=True)
class Waiting:
    """A message without a verdict. The first of `sources` is charged for it. `wide`: all of them said so."""

    topic: str
    item: bytes
    wide: bool
    sources: dict[PeerID, None]
    until_us: int


class Unjudged:
    """The table; ids are in the order in which they came."""

    def __init__(self, config: MeshConfig) -> None:
        self._config = config
        self._table: dict[bytes, Waiting] = {}
        self._charged: dict[PeerID, tuple[int, int]] = {}  # count and bytes
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._table)

    def get(self, mid: bytes) -> Waiting | None:
        """The waiting message of an id."""
        return self._table.get(mid)

    def charged(self, peer: PeerID) -> tuple[int, int]:
        """Count and bytes that a peer is charged for."""
        return self._charged.get(peer, (0, 0))

    def add(self, mid: bytes, waiting: Waiting) -> bool:
        """Take a message in; False: no room."""
        size = len(waiting.item)
        peer = next(iter(waiting.sources))
        full = len(self._table) >= self._config.unjudged_max or self.bytes + size > self._config.unjudged_bytes_max
        if full or not self._has_room(peer, size):
            return False
        self._table[mid] = waiting
        self.bytes += size
        self._charge(peer, 1, size)
        return True

    def take(self, mid: bytes) -> Waiting | None:
        """Take a message out."""
        waiting = self._table.pop(mid, None)
        if waiting is not None:
            self.bytes -= len(waiting.item)
            self._charge(next(iter(waiting.sources)), -1, -len(waiting.item))
        return waiting

    def expire(self, now_us: int) -> int:
        """Forget what nobody judged in time; how many that were."""
        old = [mid for mid, waiting in self._table.items() if waiting.until_us <= now_us]
        for mid in old:
            self.take(mid)
        return len(old)

    def forget(self, peer: PeerID) -> None:
        """A peer is gone: what only it brought goes too."""
        for mid in [mid for mid, waiting in self._table.items() if peer in waiting.sources]:
            waiting = self.take(mid)
            assert waiting is not None
            del waiting.sources[peer]
            if waiting.sources:
                self.add(mid, waiting)

    def _has_room(self, peer: PeerID, size: int) -> bool:
        count, total = self.charged(peer)
        config = self._config
        return count < config.unjudged_per_peer_max and total + size <= config.unjudged_per_peer_bytes_max

    def _charge(self, peer: PeerID, count: int, size: int) -> None:
        before = self.charged(peer)
        after = (before[0] + count, before[1] + size)
        if after[0]:
            self._charged[peer] = after
        else:
            self._charged.pop(peer, None)
