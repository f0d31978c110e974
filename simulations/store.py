"""The disk of a simulated node: durable rows, and what a crash does to writes that were not answered.

A `SimDisk` outlives the lives of its node. It keeps a journal of the batches that were applied, in order, and the
state that they add up to, with the meaning that node/store.py gives each row. The rules of that store hold here:

- `apply` is atomic; the writer (simulations/host.py) calls it at the durability point and answers after it.
- A batch with own ops, meta or a seal vote is synced, and with it everything before it. What came after the last sync
  survives the end of the process, but a power cut may take it: a seeded part of the newest end of the journal.
- `rollback` puts the disk back to an earlier length of the journal: a restored backup.
"""

from __future__ import annotations

import random
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, assert_never

from protocol.errors import StoreError
from protocol.op import Op
from protocol.store import BodyGone, MetaRow, OpRow, ReceiptRow, RecordGone, RecordRow, Row, SealVoteRow

INST_KEY: Final = "life.inst"  # as node/life.py
CLEAN_KEY: Final = "life.clean"
Batch = tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class DiskConfig:
    """How long a transaction takes, in microseconds; `sync_us` on top when it is synced to disk."""

    write_us: int = 500
    sync_us: int = 5_000
    jitter_us: int = 2_000


class _Tables:
    """What a sequence of batches adds up to."""

    def __init__(self) -> None:
        self.ops: dict[bytes, Op] = {}
        self.by_space: dict[bytes, list[tuple[int, bytes]]] = {}  # space -> (hlc, id), in that order
        self.records: dict[tuple[bytes, bytes], bytes] = {}
        self.meta: dict[str, bytes] = {}
        self.receipts: dict[bytes, dict[bytes, int]] = {}
        self.seal_votes: dict[bytes, bytes] = {}

    def put(self, row: Row) -> None:
        match row:
            case OpRow(op, _):
                if op.id not in self.ops:
                    self.ops[op.id] = op
                    insort(self.by_space.setdefault(op.space, []), (op.hlc, op.id))
            case BodyGone(op_id):
                if op_id in self.ops:
                    self.ops[op_id] = replace(self.ops[op_id], body=None)
            case RecordRow(publisher, key, wire):
                self.records[publisher, key] = wire
            case RecordGone(publisher, key):
                self.records.pop((publisher, key), None)
            case MetaRow(key, value):
                self.meta[key] = value
            case ReceiptRow(op_id, holder, level, _):
                held = self.receipts.setdefault(op_id, {})
                held[holder] = max(level, held.get(holder, 0))
            case SealVoteRow(space, done):
                self.seal_votes[space] = done
            case _:
                assert_never(row)


class SimDisk:
    """The `StoreReader` of a simulated node, and the target of its writes.

    Attributes:
        broken: every write fails from now on, as on a full disk.
    """

    def __init__(self) -> None:
        self._tables = _Tables()
        self._journal: list[Batch] = []
        self._synced = 0
        self.broken = False

    # ---- writing

    def apply(self, rows: Batch) -> None:
        """Make all rows durable, or none of them.

        Raises:
            StoreError: the disk is broken; nothing was written.
        """
        if self.broken:
            raise StoreError("the simulated disk is full", hint="heal it")
        self._journal.append(rows)
        for row in rows:
            self._tables.put(row)
        if wants_sync(rows):
            self._synced = len(self._journal)

    def cut_power(self, rng: random.Random) -> None:
        """Lose a part of what was not synced, from the newest end of the journal."""
        self._restore(rng.randint(self._synced, len(self._journal)))

    @property
    def length(self) -> int:
        """How many batches are there: a backup in one number."""
        return len(self._journal)

    def rollback(self, length: int) -> None:
        """Put back a backup; what was written since is gone."""
        assert 0 <= length <= len(self._journal), "a backup of this disk"
        self._restore(length)

    def _restore(self, length: int) -> None:
        if length == len(self._journal):
            return
        self._journal = self._journal[:length]
        self._synced = min(self._synced, length)
        self._tables = _Tables()
        for batch in self._journal:
            for row in batch:
                self._tables.put(row)

    # ---- lives, as node/life.py keeps them

    def begin_life(self) -> tuple[int, bool]:
        """The number of the next life, durable on return, and whether the last one ended in order."""
        last = self.meta(INST_KEY)
        inst = int.from_bytes(last, "big") + 1 if last is not None else 1
        clean = last is not None and self.meta(CLEAN_KEY) == last
        self.apply((MetaRow(INST_KEY, inst.to_bytes(4, "big")),))
        return inst, clean

    def end_life(self, inst: int) -> None:
        """Mark a life as ended in order."""
        self.apply((MetaRow(CLEAN_KEY, inst.to_bytes(4, "big")),))

    # ---- reading

    def meta(self, key: str) -> bytes | None:
        """See StoreReader."""
        return self._tables.meta.get(key)

    def spaces(self) -> list[bytes]:
        """See StoreReader."""
        return sorted(self._tables.by_space)

    def ops(self, space: bytes) -> Iterator[Op]:
        """See StoreReader."""
        return iter([self._tables.ops[op_id] for _, op_id in self._tables.by_space.get(space, [])])

    def records(self) -> Iterator[bytes]:
        """See StoreReader."""
        return iter([self._tables.records[slot] for slot in sorted(self._tables.records)])

    def receipts(self, op_id: bytes) -> list[tuple[bytes, int]]:
        """See StoreReader."""
        return sorted(self._tables.receipts.get(op_id, {}).items())

    def seal_vote(self, space: bytes) -> bytes | None:
        """See StoreReader."""
        return self._tables.seal_votes.get(space)

    def __contains__(self, op_id: bytes) -> bool:
        """True iff the op is durable."""
        return op_id in self._tables.ops


def wants_sync(rows: Batch) -> bool:
    """True iff a batch holds what only this node can know (as node/store.py)."""
    return any(isinstance(row, MetaRow | SealVoteRow) or (isinstance(row, OpRow) and row.sync) for row in rows)
