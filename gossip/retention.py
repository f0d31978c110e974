"""What a burn or a deny takes away, and what stays: the kept set (protocol.md §5, Burn and One chain).

Two accepted ops of one author with equal `seq` are a fork and burn the author; f is the smallest forked seq. An
admin's deny names the last seq that counts; the smallest one holds. Both take effects, never history. Kept are
  - the ops of an author below f and up to the denied seq,
  - the two smallest ids at f, so that the proof spreads,
  - ops whose body a user or an admin signed, whoever relayed them,
  - and everything in the past of a kept op.
The rest is set aside. It stays accepted, so a later op that stands on it is judged like any other, and comes back
when a kept op refers to it: in causal order, which is why views can take it like new ops. Only an author's first
fork, a smaller f, another pair at f, or a deny below ops that are there takes kept ops away; then the kept set is
computed anew and views start over (`refold`).

What is aside above a fork has a bound. Beyond it only such ops are taken for which a pending op waits that must be
taken; what a recomputation pushes over the bound is forgotten newest first, as if it had never arrived. Both are
sound, because what stands on such an op is of the same sort or holds it. Ops above a deny but below any fork are no
such ops: a fork among them must be seen, so they stay aside in full, within the quota of their author.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from gossip.acceptance import Entry
from protocol.op import ID_BYTES, Op
from protocol.records import Deny

DIGEST_BYTES = 12
_MOD = 1 << (8 * ID_BYTES)
EMPTY_DIGEST = hashlib.sha256(bytes(ID_BYTES + 8)).digest()[:DIGEST_BYTES]


@dataclass(slots=True)
class Tally:
    """An order-free fingerprint of a set of ids: their count, and their sum mod 2^256 (replication.md §5)."""

    count: int = 0
    total: int = 0
    top_seq: int = -1

    def add(self, op: Op) -> None:
        """Take in an id that is not in yet."""
        self.count += 1
        self.total = (self.total + int.from_bytes(op.id, "big")) % _MOD
        self.top_seq = max(self.top_seq, op.seq)

    def digest(self) -> bytes:
        """Equal sets give equal bytes."""
        raw = self.total.to_bytes(ID_BYTES, "big") + self.count.to_bytes(8, "big")
        return hashlib.sha256(raw).digest()[:DIGEST_BYTES]


class KeptSet:
    """The kept ids with their frontier and fingerprints. It only grows; a refold makes a new one."""

    def __init__(self) -> None:
        self.ids: set[bytes] = set()  # asked for membership only, never iterated
        self.heads: dict[bytes, None] = {}
        self.all = Tally()
        self.by_author: dict[bytes, Tally] = {}

    def add(self, op: Op) -> None:
        """Take in an op whose refs are in."""
        self.ids.add(op.id)
        for ref in op.refs:
            self.heads.pop(ref, None)
        self.heads[op.id] = None
        self.all.add(op)
        self.by_author.setdefault(op.author, Tally()).add(op)


class Chain:
    """All accepted ops of one author by seq; more than one at a seq is a fork."""

    def __init__(self) -> None:
        self.slots: dict[int, list[bytes]] = {}  # each in byte order
        self.top_seq = -1

    def add(self, op: Op) -> None:
        """Take in an accepted op."""
        slot = self.slots.setdefault(op.seq, [])
        slot.insert(bisect_left(slot, op.id), op.id)
        self.top_seq = max(self.top_seq, op.seq)

    def remove(self, op: Op) -> None:
        """Forget an op."""
        slot = self.slots[op.seq]
        slot.remove(op.id)
        if not slot:
            del self.slots[op.seq]
        while self.top_seq >= 0 and self.top_seq not in self.slots:
            self.top_seq -= 1

    def walk(self, first: int, last: int) -> Iterator[bytes]:
        """Ids from seq `first` to `last`, forks in byte order."""
        for seq in range(max(first, 0), min(last, self.top_seq) + 1):
            yield from self.slots.get(seq, ())


@dataclass(frozen=True, slots=True)
class Change:
    """What one accepted op did to the kept set: `back` became kept (causal order, mostly the op alone)."""

    back: tuple[bytes, ...] = ()
    dropped: tuple[bytes, ...] = ()
    refold: bool = False


class Retention:
    """The kept set of one space. It owns the chains; `entries` are the accepted ops and are shared with the log."""

    def __init__(self, entries: dict[bytes, Entry], aside_max: int) -> None:
        self._entries = entries
        self._aside_max = aside_max
        self.chains: dict[bytes, Chain] = {}
        self.fork_at: dict[bytes, int] = {}  # author -> f
        self.denied_above: dict[bytes, int] = {}  # author -> the last seq that counts
        self.kept = KeptSet()

    # ---- what a burn or a deny means for one op

    def void(self, op: Op) -> bool:
        """The op's claim, done, votes or spend have no effect: its author is burnt, or denied at that seq."""
        return op.author in self.fork_at or self._denied(op)

    def above(self, op: Op) -> bool:
        """The op lies at or above its author's fork, or above what a deny lets stand."""
        return op.seq >= self.fork_at.get(op.author, op.seq + 1) or self._denied(op)

    def _denied(self, op: Op) -> bool:
        return op.seq > self.denied_above.get(op.author, op.seq)

    def evidence(self, author: bytes) -> tuple[bytes, ...]:
        """The two smallest ids at the author's fork; none for an author that is not burnt."""
        f = self.fork_at.get(author)
        return () if f is None else tuple(self.chains[author].slots[f][:2])

    def expendable(self, op: Op) -> bool:
        """True iff the op lies at or above its author's fork and does not prove it. It need not be accepted yet."""
        f = self.fork_at.get(op.author)
        return f is not None and (op.seq > f or (op.seq == f and op.id > self.evidence(op.author)[1]))

    def _kept_of_itself(self, entry: Entry) -> bool:
        op = entry.op
        return entry.signed or not self.above(op) or op.id in self.evidence(op.author)

    # ---- change

    @property
    def aside(self) -> int:
        """How many accepted ops are not kept."""
        return len(self._entries) - self.kept.all.count

    def place(self, entry: Entry) -> Change:
        """Take in a newly accepted op, which is in `entries` already."""
        op = entry.op
        self.chains.setdefault(op.author, Chain()).add(op)
        moved = self._notes_fork(op)
        moved = self._notes_deny(entry) or moved
        if moved:
            return self._recompute()
        if not self._kept_of_itself(entry):
            return Change()
        back = self._with_past(entry)
        for item in back:
            self.kept.add(item.op)
        return Change(tuple(item.op.id for item in back))

    def _notes_fork(self, op: Op) -> bool:
        """True iff the op moves its author's f, or the pair that proves the fork."""
        # By seq and not by (inst, seq): an author has one chain across instances.
        slot, f = self.chains[op.author].slots[op.seq], self.fork_at.get(op.author)
        if len(slot) > 1 and (f is None or op.seq < f):
            self.fork_at[op.author] = op.seq
            return True
        return op.seq == f and op.id in slot[:2]

    def _notes_deny(self, entry: Entry) -> bool:
        """True iff the op takes effects away from ops that are there."""
        if not isinstance(entry.record, Deny):
            return False
        author, keep = entry.record.author, entry.record.keep
        if keep >= self.denied_above.get(author, keep + 1):
            return False
        self.denied_above[author] = keep
        return author in self.chains and self.chains[author].top_seq > keep

    def _with_past(self, entry: Entry) -> list[Entry]:
        """The op and what of its past is aside, in causal order."""
        found, todo = {entry.op.id: entry}, [entry]
        while todo:
            for ref in self._drags_in(todo.pop().op):
                if ref not in self.kept.ids and ref not in found:
                    found[ref] = self._entries[ref]
                    todo.append(found[ref])
        return sorted(found.values(), key=lambda item: item.index)

    def _drags_in(self, op: Op) -> tuple[bytes, ...]:
        """What a kept op keeps: history is never taken from under an op that counts."""
        return op.refs

    def _recompute(self) -> Change:
        before, kept = self.kept.ids, set[bytes]()
        for entry in reversed(self._entries.values()):  # children first: closes under the past in one pass
            if entry.op.id in kept or self._kept_of_itself(entry):
                kept.add(entry.op.id)
                kept.update(self._drags_in(entry.op))
        self.kept = KeptSet()
        back, dropped = [], []
        for op_id, entry in self._entries.items():
            if op_id in kept:
                self.kept.add(entry.op)
                if op_id not in before:
                    back.append(op_id)
            elif op_id in before:
                dropped.append(op_id)
        self._forget()
        return Change(tuple(back), tuple(dropped), refold=True)

    def _forget(self) -> None:
        """Forget the newest of the expendable ops that nothing else stands on, as far as the bound is exceeded."""
        excess, needed = self.aside - self._aside_max, set(self.kept.ids)
        gone: list[Op] = []
        for entry in reversed(self._entries.values()):
            if len(gone) >= excess:
                break
            if entry.op.id in needed or not self.expendable(entry.op):
                needed.update(entry.op.refs)
            else:
                gone.append(entry.op)
        for op in gone:
            del self._entries[op.id]
            self.chains[op.author].remove(op)
