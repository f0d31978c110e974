"""How many new messages of a topic one peer may bring: a token bucket in integers.

What is above it is as if it had never come: not judged, not seen, not held against anybody. An honest relay that passes
on somebody's flood loses nothing by it, and what of its surplus was good comes with another peer, by an offer, or by
repair. So a flood costs each node at most this much per neighbour, however fast it is signed.
"""

from __future__ import annotations

from gossip.mesh.config import MeshConfig

_SECOND_US = 1_000_000


class Allowance:
    """Of one peer and topic; full at first."""

    def __init__(self, config: MeshConfig, now_us: int) -> None:
        self._per_s = config.bring_per_s
        self._most = config.bring_burst * _SECOND_US
        self._millionths = self._most
        self._at_us = now_us

    def left(self, now_us: int) -> int:
        """How many messages it holds now."""
        self._millionths = min(self._most, self._millionths + max(0, now_us - self._at_us) * self._per_s)
        self._at_us = max(self._at_us, now_us)
        return self._millionths // _SECOND_US

    def take(self, now_us: int) -> bool:
        """Use it for one message; False: there is nothing left."""
        if not self.left(now_us):
            return False
        self._millionths -= _SECOND_US
        return True
