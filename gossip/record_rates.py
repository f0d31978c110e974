"""How often a publisher may change its records, and how much rubbish a peer may push.

Both are there because a record costs a signature check, a write and a forward to every member, and its publisher next
to nothing. A publisher may change as many records at once as it may have, which is what signing all of them anew
takes, and after that one in `record_every_us`. A change beyond is not taken for now; it is found by a later exchange of
digests. The state is one number per publisher that changed something lately: the time at which it owes nothing.
"""

from __future__ import annotations

from gossip.config import GossipConfig
from protocol.peer import PeerID

_MINUTE_US = 60_000_000


class ChangeRates:
    """A token bucket per publisher. Held by whoever has records here, so bounded as these are."""

    def __init__(self, config: GossipConfig) -> None:
        self._every_us = config.record_every_us
        self._most_us = config.record_burst * config.record_every_us
        self._free_us: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._free_us)

    def may(self, publisher: bytes, now_us: int) -> bool:
        """Whether one more change is within the rate."""
        return self._free_us.get(publisher, 0) + self._every_us <= now_us + self._most_us

    def charge(self, publisher: bytes, now_us: int) -> None:
        """A change was taken."""
        self._free_us[publisher] = max(self._free_us.get(publisher, 0), now_us) + self._every_us

    def sweep(self, now_us: int) -> None:
        """Forget who owes nothing."""
        self._free_us = {publisher: free_us for publisher, free_us in self._free_us.items() if free_us > now_us}


class Junk:
    """Bad records that each linked peer pushed within a minute."""

    def __init__(self, config: GossipConfig) -> None:
        self._most = config.record_junk_max
        self._counts: dict[PeerID, tuple[int, int]] = {}  # since when, how many

    def is_too_much(self, peer: PeerID, now_us: int) -> bool:
        """Count one; True for the one that is one too many, and then again only after as many more."""
        since_us, count = self._counts.get(peer, (now_us, 0))
        if now_us - since_us >= _MINUTE_US:
            since_us, count = now_us, 0
        self._counts[peer] = (since_us, count + 1) if count < self._most else (now_us, 0)
        return count >= self._most

    def forget(self, peer: PeerID) -> None:
        """The link is gone."""
        self._counts.pop(peer, None)
