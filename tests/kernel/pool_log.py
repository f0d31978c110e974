"""A log for tests of views: ops with real headers and bodies, in any causal order, without signatures."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from protocol.op import Op
from protocol.records import KIND_OF, Record, Redact, Unit, body_bytes, parse_body

ENCODER = "test-4"
DIM = 4


def op_of(author: int, seq: int, prev: bytes | None, deps: Iterable[bytes], hlc: int, record: Record) -> Op:
    """An op as the log would hold it; its id is a hash of everything that it says."""
    body = body_bytes(record)
    kind = int(KIND_OF[type(record)])
    refs = tuple(sorted(set(deps) - {prev}))
    seed = repr((author, seq, prev, refs, hlc, kind)).encode() + body
    return Op(
        id=hashlib.sha256(seed).digest(),
        header=b"",
        sig=b"",
        body=body,
        kind=kind,
        space=bytes(16),
        author=bytes([author]) * 32,
        inst=0,
        seq=seq,
        prev=prev,
        deps=refs,
        hlc=hlc,
        body_hash=hashlib.sha256(body).digest(),
        votes=(),
    )


@dataclass(frozen=True, slots=True)
class Change:
    """What `Pool.update` is told."""

    ops: tuple[Op, ...]
    refold: bool = False


class FakeLog:
    """Kept ops in the order they were given; with `blanks` a rightful Redact also takes the body of its target."""

    def __init__(self, ops: Iterable[Op] = (), *, blanks: bool = False) -> None:
        self._ops: dict[bytes, Op] = {}
        self._redacted: set[tuple[bytes, bytes]] = set()  # target, who may
        self._blanks = blanks
        for op in ops:
            self.add(op)

    def add(self, *ops: Op) -> Change:
        """Keeps ops and says so."""
        for op in ops:
            self._ops[op.id] = op
            record = None if op.body is None else parse_body(op.kind, op.body)
            if isinstance(record, Redact):
                self._redacted.add((record.target, op.author))
        return Change(ops)

    def kept(self) -> Iterator[Op]:
        """All ops."""
        return iter([self._blanked(op) for op in self._ops.values()])

    def get(self, op_id: bytes) -> Op | None:
        """One op."""
        op = self._ops.get(op_id)
        return None if op is None else self._blanked(op)

    def record(self, op_id: bytes) -> Record | None:
        """Its body."""
        op = self.get(op_id)
        return None if op is None or op.body is None else parse_body(op.kind, op.body)

    def _blanked(self, op: Op) -> Op:
        if not self._blanks or (op.id, op.author) not in self._redacted:
            return op
        names = Op.__slots__
        return Op(**{**{name: getattr(op, name) for name in names}, "body": None})


class Writer:
    """Authors that append to one history; each op may refer to any ops written before."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self._heads: dict[int, Op] = {}
        self._hlc = 0

    def write(self, author: int, record: Record, deps: Iterable[bytes] = ()) -> Op:
        """Appends to the author's chain; the clock only grows."""
        self._hlc += 1
        head = self._heads.get(author)
        seq, prev = (0, None) if head is None else (head.seq + 1, head.id)
        op = op_of(author, seq, prev, deps, self._hlc, record)
        self._heads[author] = op
        self.ops.append(op)
        return op

    def unit(self, author: int, emb: bytes | None, deps: Iterable[bytes] = (), **fields: object) -> Op:
        """Appends a unit."""
        base: dict[str, object] = {"agent": "reasoning", "role": "reasoning", "content": "text", "summary": "short"}
        encoder = None if emb is None else ENCODER
        record = Unit.model_validate({**base, "emb": emb, "encoder": encoder, **fields})
        return self.write(author, record, deps)


def causal_shuffle(ops: list[Op], order: list[int]) -> list[Op]:
    """The ops in another order that still has every op after its references; `order` steers the choice."""
    left, done, out = list(ops), set[bytes](), list[Op]()
    at = 0
    while left:
        ready = [op for op in left if all(ref in done for ref in (*op.deps, *((op.prev,) if op.prev else ())))]
        op = ready[order[at % len(order)] % len(ready)]
        at += 1
        left.remove(op)
        done.add(op.id)
        out.append(op)
    return out
