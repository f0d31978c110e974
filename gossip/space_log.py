"""The replicated op log of one space: equal sets of ops give equal logs, in whatever order they came.

An op that arrives passes four gates (protocol.md §3 to §5, replication.md §2):
  1. its own signature, before it becomes anything at all: a forged copy of an op leaves no trace, so the true one
     is taken when it comes (the body is bound by its hash in the header, the header by the id)
  2. its refs: until all of them are accepted it is pending
  3. its stamp: more than 60 s ahead of swarm time, or a claim before its hlc - eps, it is quarantined. Both waits
     only delay
  4. the verdict of `gossip.acceptance`, from the op and its past alone
An accepted op is kept or, above a burn, set aside (`gossip.retention`). What stands on a refused op is refused.

Everything on the way of one op costs O(refs); only a burn or a deny touches the whole space. The log does no I/O,
and its order of acceptance is local: what is told to others or hashed is sorted or order-free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from gossip.acceptance import Acceptance, Entry, LogRules, in_chain
from gossip.retention import EMPTY_DIGEST, Retention
from gossip.waiting import Pending, Quarantine
from protocol.clock import QUARANTINE_MS, hlc_to_ms
from protocol.errors import UsageError
from protocol.op import DEPS_MAX, Op, OpKind
from protocol.records import Record

__all__ = ["Added", "LogRules", "SpaceLog"]

Status = Literal["accepted", "duplicate", "pending", "quarantined", "rejected"]
_REASON_DEP: Final = "stands on an op that was refused"


@dataclass(frozen=True, slots=True)
class Added:
    """What one call did.

    Attributes:
        status: what became of the op itself. An accepted op above a burn is not in `ops`.
        reason: why it was refused or where it waits; for people.
        ops: what is newly kept, in causal order: the op, pending ones that it woke, ones that came back. Store,
            forward and fold these.
        dropped: ids that are kept no longer.
        refold: kept ops went away or lost their effect; a view starts over instead of taking `ops`.
        missing: refs that the op waits for and that are not held; fetch them.
    """

    status: Status
    reason: str = ""
    ops: tuple[Op, ...] = ()
    dropped: tuple[bytes, ...] = ()
    refold: bool = False
    missing: tuple[bytes, ...] = ()


class _Tide:
    """What became kept and what did not stay so over several accepted ops of one call.

    `gained` stays in causal order: an op is lost and comes back together with all that stands on it.
    """

    def __init__(self) -> None:
        self.gained: dict[bytes, None] = {}
        self.lost: dict[bytes, None] = {}
        self.refold = False

    def note(self, back: tuple[bytes, ...], dropped: tuple[bytes, ...], *, refold: bool) -> None:
        self.refold = self.refold or refold
        for came, here, there in ((back, self.lost, self.gained), (dropped, self.gained, self.lost)):
            for op_id in came:
                if op_id in here:
                    del here[op_id]
                else:
                    there[op_id] = None


class SpaceLog:
    """The log of one space. All times are swarm milliseconds, handed in by the caller."""

    def __init__(self, space: bytes, *, rules: LogRules) -> None:
        self.space = space
        self._rules = rules
        self._entries: dict[bytes, Entry] = {}
        self._acceptance = Acceptance(space, rules, self._entries)
        self._retention = Retention(self._entries, rules.aside_max)
        self._pending = Pending(rules.pending_max, rules.pending_bytes_max)
        self._quarantine = Quarantine(rules.quarantine_max, rules.pending_bytes_max)
        self._rejected: dict[bytes, str] = {}

    # ---- taking ops

    def add(self, op: Op, *, swarm_ms: int, verified: bool = False) -> Added:
        """Take an op. `verified`: the caller vouches for its signature, having made, checked or stored it.

        An op without its body is taken only from such a caller: elsewhere a body-less copy of a refused op would
        pass where the whole one does not.
        """
        standing = self._standing(op.id)
        if standing is not None:
            return standing
        if op.space != self.space:
            return Added("rejected", "an op of another space")
        if not verified and op.body is None:
            return Added("rejected", "came without its body")
        if not verified and not op.signed_by_author(self._rules.verify):
            return Added("rejected", "its signature is wrong")
        status, reason, added = self._take([op], swarm_ms)
        if status == "pending" and op.id not in self._pending:
            status, reason = "rejected", "too many wait"
        return replace(added, status=status, reason=reason, missing=self._missing_of(op.id))

    def due(self, swarm_ms: int) -> Added:
        """Release what was quarantined until now; `status` says nothing."""
        ready = self._quarantine.due(swarm_ms)
        return self._take(ready, swarm_ms)[2] if ready else Added("duplicate")

    def next_due_ms(self) -> int | None:
        """Swarm time at which `due` has something to release."""
        return self._quarantine.next_due_ms()

    def _standing(self, op_id: bytes) -> Added | None:
        if op_id in self._entries:
            return Added("duplicate")
        if op_id in self._pending:
            return Added("pending", "waits already", missing=self._missing_of(op_id))
        if op_id in self._quarantine:
            return Added("quarantined", "waits for its time already")
        if op_id in self._rejected:
            return Added("rejected", self._rejected[op_id])
        return None

    def _missing_of(self, op_id: bytes) -> tuple[bytes, ...]:
        if op_id not in self._pending:
            return ()
        return tuple(sorted(ref for ref in self._pending.lacking(op_id) if not self._held(ref)))

    def _held(self, op_id: bytes) -> bool:
        return op_id in self._pending or op_id in self._quarantine

    def _take(self, ops: list[Op], swarm_ms: int) -> tuple[Status, str, Added]:
        """Run ops and all they wake through the gates; the first two values are about the first of them."""
        todo, tide = deque(ops), _Tide()
        verdict: tuple[Status, str] | None = None
        while todo:
            op = todo.popleft()
            status, reason = self._pass(op, swarm_ms, tide)
            verdict = verdict or (status, reason)
            if status == "accepted":
                todo.extend(self._pending.wake(op.id))
            elif op.id in self._rejected:
                todo.extend(self._pending.doom(op.id))
        assert verdict is not None
        ops_now = tuple(self._entries[op_id].op for op_id in tide.gained)
        return *verdict, Added(verdict[0], ops=ops_now, dropped=tuple(tide.lost), refold=tide.refold)

    def _pass(self, op: Op, swarm_ms: int, tide: _Tide) -> tuple[Status, str]:
        if any(ref in self._rejected for ref in op.refs):
            return self._reject(op.id, _REASON_DEP)
        lacks = [ref for ref in op.refs if ref not in self._entries]
        if lacks:
            self._pending.add(op, lacks)
            return "pending", f"waits for {len(lacks)} ops"
        due_ms = self._due_ms(op)
        if due_ms > swarm_ms:
            held = self._quarantine.add(op, due_ms)
            return ("quarantined", "waits for its time") if held else ("rejected", "too many from the future")
        if not self._room_aside(op):
            return "rejected", "its author is burnt, and nothing needs it"
        entry = self._acceptance.judge(op)
        if isinstance(entry, str):
            return self._reject(op.id, entry)
        self._entries[op.id] = entry
        change = self._retention.place(entry)
        tide.note(change.back, change.dropped, refold=change.refold)
        return "accepted", "" if op.id in self._retention.kept.ids else "set aside: its author is burnt or denied"

    def _reject(self, op_id: bytes, reason: str) -> tuple[Status, str]:
        self._rejected[op_id] = reason
        if len(self._rejected) > self._rules.rejected_max:
            del self._rejected[next(iter(self._rejected))]
        return "rejected", reason

    def _due_ms(self, op: Op) -> int:
        ahead_ms = QUARANTINE_MS
        if op.kind == OpKind.CLAIM and self._acceptance.opens:
            ahead_ms = min(ahead_ms, self._acceptance.opens[min(self._acceptance.opens)].eps_ms)
        return hlc_to_ms(op.hlc) - ahead_ms

    def _room_aside(self, op: Op) -> bool:
        """An op that must be taken, or room among the ops aside, or a pending op that must be taken needs it."""
        todo, seen = [op], {op.id}
        while todo:
            needed = todo.pop()
            if not self._retention.expendable(needed) or self._acceptance.outlives_burn(needed):
                return True
            if self._retention.aside < self._rules.aside_max:
                return True
            fresh = [waiter for waiter in self._pending.waiters(needed.id) if waiter.id not in seen]
            seen.update(waiter.id for waiter in fresh)
            todo.extend(fresh)
        return False

    # ---- ops

    def __contains__(self, op_id: bytes) -> bool:
        """True for every accepted op, set aside or not."""
        return op_id in self._entries

    def __len__(self) -> int:
        """How many ops are kept."""
        return self._retention.kept.all.count

    def waits(self, op_id: bytes) -> bool:
        """True iff the op is here and waits for other ops."""
        return op_id in self._pending

    def settled(self, op_id: bytes) -> bool:
        """True iff the op is here in any state, or refused: nobody needs to send it."""
        return self._standing(op_id) is not None

    def get(self, op_id: bytes) -> Op | None:
        """A kept op."""
        return self._entries[op_id].op if op_id in self._retention.kept.ids else None

    def held(self, op_id: bytes) -> Op | None:
        """An accepted op, kept or set aside: who asks for it by id has an op that stands on it."""
        entry = self._entries.get(op_id)
        return None if entry is None else entry.op

    def record(self, op_id: bytes) -> Record | None:
        """The parsed body of an accepted op; None for one that fits no model."""
        entry = self._entries.get(op_id)
        return entry.record if entry else None

    def kept(self) -> Iterator[Op]:
        """Kept ops, each after its refs. The order is local; do not hash it."""
        kept = self._retention.kept.ids
        return (entry.op for op_id, entry in self._entries.items() if op_id in kept)

    def missing(self) -> list[bytes]:
        """Ids that pending ops wait for and that nothing here holds, in byte order."""
        return [ref for ref in self._pending.wanted() if ref not in self._quarantine]

    def opens_in_past(self, op_id: bytes) -> frozenset[bytes]:
        """Body hashes of the opens in an accepted op's past, itself included."""
        return self._entries[op_id].opens

    def stop_before(self, op_id: bytes) -> bool:
        """True iff a cancel or a settle lies in an accepted op's past, the op itself left out."""
        return any(self._entries[ref].stops for ref in self._entries[op_id].op.refs)

    def in_chain(self, earlier: bytes, later: bytes) -> bool:
        """True iff both are of one author and `earlier` is among the `prev`s of `later`."""
        return in_chain(self._entries[earlier], self._entries[later])

    # ---- authors

    def authors(self) -> list[bytes]:
        """Authors of kept ops, in byte order."""
        return sorted(self._retention.kept.by_author)

    def void(self, op: Op) -> bool:
        """True iff the op's claim, done, votes or spend have no effect."""
        return self._retention.void(op)

    def burnt(self, author: bytes) -> bool:
        """True iff the author forked."""
        return author in self._retention.fork_at

    def silenced(self, author: bytes) -> bool:
        """True iff nothing more that the author writes here has an effect."""
        head = self.head(author)
        after = head[0] + 1 if head else 0
        return self.burnt(author) or after > self._retention.denied_above.get(author, after)

    def fork_of(self, author: bytes) -> tuple[Op, Op] | None:
        """The two ops that prove the author's burn."""
        pair = [self._entries[op_id].op for op_id in self._retention.evidence(author)]
        return (pair[0], pair[1]) if pair else None

    def dropped_author(self, op_id: bytes) -> bytes | None:
        """The author of an op that is set aside; None for a kept or an unknown one."""
        entry = self._entries.get(op_id)
        return None if entry is None or op_id in self._retention.kept.ids else entry.op.author

    def head(self, author: bytes) -> tuple[int, bytes] | None:
        """(seq, id) of the author's newest accepted op, what is aside included: its next op goes there."""
        chain = self._retention.chains.get(author)
        return None if chain is None or chain.top_seq < 0 else (chain.top_seq, chain.slots[chain.top_seq][0])

    def author_digest(self, author: bytes) -> tuple[int, int, bytes]:
        """(highest seq, count, digest) over the author's kept ops; (-1, 0, digest of nothing) without any."""
        tally = self._retention.kept.by_author.get(author)
        return (-1, 0, EMPTY_DIGEST) if tally is None else (tally.top_seq, tally.count, tally.digest())

    def digest(self) -> bytes:
        """12 bytes over the kept ids, free of order."""
        return self._retention.kept.all.digest()

    def log(self, author: bytes, first: int, last: int) -> list[Op]:
        """The author's kept ops from seq `first` to `last`, by (seq, id)."""
        kept = self._retention.kept.ids
        return [self._entries[i].op for i in self._walk(author, first, last) if i in kept]

    def ids_from(self, author: bytes, first: int, limit: int) -> list[bytes]:
        """At most `limit` ids of the author's kept ops from seq `first`, by (seq, id)."""
        found: list[bytes] = []
        for op_id in self._walk(author, first, 2**63):
            if len(found) >= limit:
                break
            if op_id in self._retention.kept.ids:
                found.append(op_id)
        return found

    def _walk(self, author: bytes, first: int, last: int) -> Iterator[bytes]:
        chain = self._retention.chains.get(author)
        return iter(()) if chain is None else chain.walk(first, last)

    # ---- writing

    def heads(self) -> list[bytes]:
        """Kept ops that no kept op refers to, in byte order."""
        return sorted(self._retention.kept.heads)

    def deps_for(self, author: bytes, named: tuple[bytes, ...] = ()) -> tuple[bytes, ...]:
        """Deps for the author's next op: what it names, then the smallest heads, at most 16, without its own prev.

        Raises:
            UsageError: more than 16 ids are named.
        """
        head = self.head(author)
        own = head[1] if head else None
        deps = {op_id: None for op_id in named if op_id != own}
        if len(deps) > DEPS_MAX:
            raise UsageError(f"an op cannot name {len(deps)} others", hint=f"at most {DEPS_MAX}")
        for op_id in self.heads():
            if len(deps) >= DEPS_MAX:
                break
            if op_id != own:
                deps[op_id] = None
        return tuple(deps)

    def allowance(self, author: bytes, hlc: int) -> int:
        """How many ops in a row the author's quota allows at a stamp."""
        head = self.head(author)
        return self._acceptance.allowance(self._entries[head[1]] if head else None, hlc)
