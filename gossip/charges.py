"""What peers made a node hold that may never be of use: ops that wait for others, in bytes per peer.

replication.md §2.3: 1 MiB of a peer waits, in however many spaces. Over the bound an op is left out, which only
delays it: repair brings it again, after what it waits for.
"""

from __future__ import annotations

from collections.abc import Mapping

from gossip.space_log import SpaceLog
from protocol.op import Op
from protocol.peer import PeerID


class Charges:
    """Bytes of waiting ops by the peer that sent them first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._ops: dict[PeerID, dict[bytes, tuple[bytes, int]]] = {}  # peer -> op -> (space, size)
        self._sums: dict[PeerID, int] = {}

    def charge(self, peer: PeerID, op: Op, logs: Mapping[bytes, SpaceLog]) -> bool:
        """Take an op on the peer's account; False if there is no room, even without those that wait no longer."""
        size = len(op.header) + len(op.body or b"")
        if self._sums.get(peer, 0) + size > self._bytes_max:
            self._sweep(peer, logs)
        if self._sums.get(peer, 0) + size > self._bytes_max:
            return False
        self._ops.setdefault(peer, {})[op.id] = (op.space, size)
        self._sums[peer] = self._sums.get(peer, 0) + size
        return True

    def forget(self, peer: PeerID) -> None:
        """The peer left; what still waits is bounded by the logs."""
        self._ops.pop(peer, None)
        self._sums.pop(peer, None)

    def _sweep(self, peer: PeerID, logs: Mapping[bytes, SpaceLog]) -> None:
        waiting = {
            op_id: (space, size)
            for op_id, (space, size) in self._ops.get(peer, {}).items()
            if space in logs and logs[space].waits(op_id)
        }
        self._ops[peer] = waiting
        self._sums[peer] = sum(size for _, size in waiting.values())
