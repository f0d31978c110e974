"""Ops that a log holds without having accepted them: some wait for other ops, some for their time.

Pending ops have a good signature of their own and refs that are not accepted yet. Quarantined ops have all their
refs and a stamp from the future; they are delayed, never refused (replication.md §2.3). Both tables are bounded.
What is pushed out can be offered again: being pushed out says nothing about an op.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from protocol.op import Op


def _size(op: Op) -> int:
    return len(op.header) + len(op.body or b"")


class Pending:
    """Ops by the refs they wait for. Full: the one that waits longest goes, so that garbage cannot hold the table."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._ops: dict[bytes, Op] = {}
        self._lacks: dict[bytes, set[bytes]] = {}
        self._waiters: dict[bytes, dict[bytes, None]] = {}

    def __contains__(self, op_id: bytes) -> bool:
        return op_id in self._ops

    def __len__(self) -> int:
        return len(self._ops)

    def add(self, op: Op, lacks: Iterable[bytes]) -> None:
        """Hold an op until every id in `lacks` is accepted."""
        self._ops[op.id] = op
        self._bytes += _size(op)
        self._lacks[op.id] = set(lacks)
        for ref in lacks:
            self._waiters.setdefault(ref, {})[op.id] = None
        while len(self._ops) > self._count_max or self._bytes > self._bytes_max:
            self._take(next(iter(self._ops)))

    def wake(self, accepted: bytes) -> list[Op]:
        """Ops that waited for nothing but this one, in order of arrival."""
        ready = []
        for waiter in list(self._waiters.get(accepted, ())):
            self._lacks[waiter].discard(accepted)
            if not self._lacks[waiter]:
                ready.append(self._take(waiter))
        self._waiters.pop(accepted, None)
        return ready

    def doom(self, rejected: bytes) -> list[Op]:
        """Ops that wait for an op that can never be accepted."""
        return [self._take(waiter) for waiter in list(self._waiters.get(rejected, ()))]

    def waiters(self, ref: bytes) -> list[Op]:
        """Ops that wait for a ref."""
        return [self._ops[waiter] for waiter in self._waiters.get(ref, ())]

    def lacking(self, op_id: bytes) -> set[bytes]:
        """The refs that a pending op still waits for."""
        return self._lacks[op_id]

    def wanted(self) -> list[bytes]:
        """Every ref that somebody waits for and that is not pending itself, in byte order."""
        return sorted(ref for ref in self._waiters if ref not in self._ops)

    def _take(self, op_id: bytes) -> Op:
        op = self._ops.pop(op_id)
        self._bytes -= _size(op)
        del self._lacks[op_id]
        for ref in op.refs:
            waiters = self._waiters.get(ref)
            if waiters is not None:
                waiters.pop(op_id, None)
                if not waiters:
                    del self._waiters[ref]
        return op


class Quarantine:
    """Ops by the swarm time at which they are due. Full: the farthest goes, be it the new one."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._ops: dict[bytes, tuple[int, Op]] = {}
        self._soonest: list[tuple[int, bytes]] = []
        self._farthest: list[tuple[int, bytes]] = []

    def __contains__(self, op_id: bytes) -> bool:
        return op_id in self._ops

    def __len__(self) -> int:
        return len(self._ops)

    def add(self, op: Op, due_ms: int) -> bool:
        """Hold an op; False when the table is full of ops that are due before it."""
        self._ops[op.id] = (due_ms, op)
        self._bytes += _size(op)
        heapq.heappush(self._soonest, (due_ms, op.id))
        heapq.heappush(self._farthest, (-due_ms, op.id))
        while len(self._ops) > self._count_max or self._bytes > self._bytes_max:
            self._drop_farthest()
        self._sweep()
        return op.id in self._ops

    def due(self, swarm_ms: int) -> list[Op]:
        """Takes out what is due, the earliest first."""
        found = []
        while (due_ms := self.next_due_ms()) is not None and due_ms <= swarm_ms:
            found.append(self._take(heapq.heappop(self._soonest)[1]))
        return found

    def next_due_ms(self) -> int | None:
        """Swarm time at which the next op is due."""
        while self._soonest and self._soonest[0][1] not in self._ops:
            heapq.heappop(self._soonest)
        return self._soonest[0][0] if self._soonest else None

    def _drop_farthest(self) -> None:
        while (op_id := heapq.heappop(self._farthest)[1]) not in self._ops:
            pass  # an op that has left already
        self._take(op_id)

    def _take(self, op_id: bytes) -> Op:
        _, op = self._ops.pop(op_id)
        self._bytes -= _size(op)
        return op

    def _sweep(self) -> None:
        """Entries of ops that left stay in the heaps until they come up; make both anew before they pile up."""
        if max(len(self._soonest), len(self._farthest)) > 2 * self._count_max + 16:
            self._soonest = sorted((due_ms, op_id) for op_id, (due_ms, _) in self._ops.items())
            self._farthest = sorted((-due_ms, op_id) for op_id, (due_ms, _) in self._ops.items())
