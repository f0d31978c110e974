"""What passed the judges: which ids were seen, and the content of the newest, for who asks.

Nothing enters `Seen` before it was judged, and an id is the hash of topic and content: a forged copy that comes first
cannot hide the real message (case S2). An id that falls out early is delivered and judged once more; no harm.

`Cache` holds the accepted messages of the last heartbeats in windows, the newest first. Each knows who has it: what
was never sent to these peers again, and who gave or offered it in time (gossip/mesh/overlay.py).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from gossip.mesh.config import MeshConfig
from protocol.peer import PeerID


@dataclass(slots=True)
class Entry:
    """An accepted message. `holders`: peers that sent or offered it; at most as many as there are links."""

    topic: str
    item: bytes
    wide: bool
    born_us: int
    holders: dict[PeerID, None]
    answered: dict[PeerID, int] = field(default_factory=dict)


class Cache:
    """Accepted messages of the last `history` heartbeats, bounded in count and bytes; the oldest goes first."""

    def __init__(self, config: MeshConfig) -> None:
        self._config = config
        self._entries: dict[bytes, Entry] = {}
        self._windows: deque[list[bytes]] = deque([[]])
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, mid: bytes) -> Entry | None:
        """The message behind an id, as long as it is here."""
        return self._entries.get(mid)

    def put(self, mid: bytes, entry: Entry) -> None:
        """Hold a message that is not held yet."""
        assert mid not in self._entries
        self._entries[mid] = entry
        self._windows[0].append(mid)
        self.bytes += len(entry.item)
        while len(self._entries) > self._config.cache_max or self.bytes > self._config.cache_bytes_max:
            self._drop(next(iter(self._entries)))

    def window(self, age: int) -> list[tuple[bytes, Entry]]:
        """What was accepted `age` heartbeats ago and is still here, in order; 0 is the running heartbeat."""
        if age >= len(self._windows):
            return []
        return [(mid, entry) for mid in self._windows[age] if (entry := self._entries.get(mid)) is not None]

    def shift(self) -> None:
        """A heartbeat passed: the oldest window goes."""
        self._windows.appendleft([])
        while len(self._windows) > self._config.history:
            for mid in self._windows.pop():
                self._drop(mid)

    def forget(self, peer: PeerID) -> None:
        """A peer is gone: it holds nothing that matters here."""
        for entry in self._entries.values():
            entry.holders.pop(peer, None)
            entry.answered.pop(peer, None)

    def _drop(self, mid: bytes) -> None:
        entry = self._entries.pop(mid, None)
        if entry is not None:
            self.bytes -= len(entry.item)


Mark = Literal["accepted", "ignored", "rejected"]


class Seen:
    """Ids with their verdict, for `seen_us`; two bounded tables, so that rejected rubbish pushes out nothing good."""

    def __init__(self, config: MeshConfig) -> None:
        self._config = config
        self._good: dict[bytes, tuple[int, Mark]] = {}  # in the order of their ends
        self._rejected: dict[bytes, tuple[int, Mark]] = {}

    def __len__(self) -> int:
        return len(self._good) + len(self._rejected)

    def get(self, mid: bytes) -> Mark | None:
        """The verdict on an id; None: not seen, or long ago."""
        found = self._good.get(mid) or self._rejected.get(mid)
        return found[1] if found else None

    def add(self, mid: bytes, mark: Mark, now_us: int) -> None:
        """Remember a verdict on an id that has none."""
        table, most = (
            (self._rejected, self._config.rejected_max) if mark == "rejected" else (self._good, self._config.seen_max)
        )
        table[mid] = (now_us + self._config.seen_us, mark)
        if len(table) > most:
            del table[next(iter(table))]

    def expire(self, now_us: int) -> None:
        """Forget what is old."""
        for table in (self._good, self._rejected):
            while table and table[first := next(iter(table))][0] <= now_us:
                del table[first]
