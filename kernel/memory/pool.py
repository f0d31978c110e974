"""The memory pool of one space: units, temporal edges and semantic edges, derived from the op log.

A pure view: equal sets of ops give equal pools on every node, in whatever order they came (replication.md §3.1 and
§3.2; invariants 9 and 10). Nothing in it is stored or shipped; `rebuild` makes it anew from the log.

- **Order.** `(causal depth, clock, id)`. Depth is 1 + the greatest depth among `prev` and `deps`, so the order
  extends causality; clock and id only break ties. The newest unit is the last one.
- **Temporal predecessors** of a unit: the nearest units reached through `prev` and `deps` over other kinds of ops,
  reduced to those that are not in the past of another one. With a single writer this is the chain of MAS-OS.
- **Semantic edges** point into the causal past only (edges.py), so they never change once the unit is here; the walk
  uses them in both directions, as MAS-OS does. A unit without a vector of the swarm's encoder has none (one edge rule
  per swarm, masos-kernel.md E2) and is counted in `incomparable`.
- **Redaction** takes content, summary and vector; the unit itself stays in the graph. It is derived from the redact ops
  (by the author of the unit, or signed by somebody whose right the log has checked), so it holds whether or not a
  replica has thrown the body away yet. Units of a burnt author that the log keeps stay too: a burn takes effects,
  never history (protocol.md §5).
- **Documents** (role `document`, no claim) are the user's material cut in parts; they are units like any other, but the
  walk passes them by: they compete by similarity to the question instead (kernel/allocator).

Cost. Each op keeps the set of units in its past as one Python integer, a bit per unit: units/8 bytes per op (6 MB at
10,000 units, half of it on average), "is v in the past of u" is one shift, adding an op is one `or` per reference.
Adding a unit also scans the vectors once.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

import numpy as np

from kernel.memory.edges import DIM_MAX, Mask, Tau, VectorTable, nearest, signed_square, squared_norm
from protocol.op import Op, OpKind
from protocol.records import Record, Redact, Unit

DOCUMENT: Final = "document"
"""Role of the user's material."""
FRONTIER_MAX: Final = 16
"""Ids in the frontier of a summary (protocol.records.Summary)."""


@dataclass(frozen=True, slots=True)
class UnitView:
    """A memory unit as policies see it.

    Attributes:
        depth: causal depth of its op.
        verdict: what its author noted about it, such as the score of a chosen answer.
        redacted: content, summary and vector are gone.
    """

    id: bytes
    claim: bytes | None
    author: bytes
    agent: str
    role: str
    action: str
    content: str
    summary: str
    tokens: int
    emb: bytes | None
    encoder: str | None
    hlc: int
    depth: int
    verdict: str | None = None
    redacted: bool = False

    @property
    def is_document(self) -> bool:
        """The user's material, not the work of an agent."""
        return self.role == DOCUMENT and self.claim is None


class LogView(Protocol):
    """What the pool reads of a space's log (gossip.space_log.SpaceLog)."""

    def kept(self) -> Iterable[Op]:
        """Kept ops, every op after its `prev` and `deps`."""
        ...

    def get(self, op_id: bytes, /) -> Op | None:
        """A kept op."""
        ...

    def record(self, op_id: bytes, /) -> Record | None:
        """Its body, None when it is gone or fits no model."""
        ...


class Added(Protocol):
    """What changed in a log. `refold`: more than additions, every view starts anew."""

    @property
    def ops(self) -> Sequence[Op]:
        """Ops that are newly kept, in causal order."""
        ...

    @property
    def refold(self) -> bool:
        """Ops were dropped or came back."""
        ...


@dataclass(frozen=True, slots=True)
class _Node:
    """An op in the graph: `past` has bit i iff unit i is in its causal past; `near` are the maximal ones of these."""

    depth: int
    past: int
    near: tuple[int, ...]
    unit: int | None

    @property
    def covered(self) -> int:
        """The past, and the op itself when it is a unit."""
        return self.past if self.unit is None else self.past | 1 << self.unit


Place = tuple[int, int, bytes, int]  # depth, hlc, id, number


class Pool:
    """Units and edges of one space; see the module text for what holds."""

    def __init__(
        self,
        log: LogView,
        *,
        tau: tuple[int, int] = (7, 20),
        k: int | None = 8,
        encoder: str = "use-512",
        dim: int = 512,
    ) -> None:
        """`tau`, `k` (None: no cap), `encoder` and `dim` are those of the swarm's genesis."""
        assert 0 < dim <= DIM_MAX, f"dimension {dim} is outside 1..{DIM_MAX}"
        self._log = log
        self._tau = Tau(*tau)
        self._k = k
        self.encoder = encoder
        self.dim = dim
        self.rebuild()

    # ---- growing

    def rebuild(self) -> None:
        """Derives everything from the log again."""
        self._nodes: dict[bytes, _Node] = {}
        self._units: list[UnitView] = []  # by number, in order of arrival
        self._places: list[Place] = []
        self._documents: list[Place] = []
        self._table = VectorTable(self.dim)
        self._row_ids: list[bytes] = []
        self._semantic: dict[int, tuple[int, ...]] = {}
        self._incoming: dict[int, list[int]] = {}
        self.incomparable = 0
        self._redactions: dict[bytes, list[bytes | None]] = {}  # target -> author who may, None: anybody's target
        kept = list(self._log.kept())
        for op in kept:
            self._note_redaction(op)
        for op in kept:
            self._add(op)

    def update(self, added: Added) -> None:
        """Takes in what the log has just kept. A redaction changes neighbours of others: it derives anew."""
        if added.refold or any(op.kind == OpKind.REDACT for op in added.ops):
            self.rebuild()
            return
        for op in added.ops:
            self._add(op)

    def _note_redaction(self, op: Op) -> None:
        record = self._log.record(op.id) if op.kind == OpKind.REDACT else None
        if isinstance(record, Redact):
            self._redactions.setdefault(record.target, []).append(op.author if record.by is None else None)

    def _add(self, op: Op) -> None:
        if op.id in self._nodes:
            return
        refs = [node for ref in _refs(op) if (node := self._nodes.get(ref)) is not None]
        depth = 1 + max((node.depth for node in refs), default=0)
        past = 0
        for node in refs:
            past |= node.covered
        view = self._view(op, depth)
        number = None if view is None else len(self._units)
        self._nodes[op.id] = _Node(depth, past, self._maximal(refs), number)
        if view is not None:
            self._add_unit(view, past)

    def _add_unit(self, view: UnitView, past: int) -> None:
        number = len(self._units)
        self._units.append(view)
        place = (view.depth, view.hlc, view.id, number)
        insort(self._places, place)
        if view.is_document:
            insort(self._documents, place)
        if view.emb is None:
            return
        if view.encoder != self.encoder or len(view.emb) != self.dim:
            self.incomparable += 1
            return
        rows = nearest(self._table, view.emb, self._rows_in(past), self._tau, self._k, self._row_ids)
        tags = self._table.tags
        self._semantic[number] = tuple(int(tags[row]) for row in rows)
        self._table.append(view.emb, number)
        self._row_ids.append(view.id)
        for other in self._semantic[number]:
            self._incoming.setdefault(other, []).append(number)

    def _view(self, op: Op, depth: int) -> UnitView | None:
        if op.kind != OpKind.UNIT:
            return None
        if self.redacted(op):
            return UnitView(
                *(op.id, None, op.author, "", "", "", "", "", 0, None, None, op.hlc, depth, None), redacted=True
            )
        record = self._log.record(op.id)
        if isinstance(record, Unit):
            return UnitView(
                *(op.id, record.claim, op.author, record.agent, record.role, record.action, record.content or ""),
                *(record.summary, record.tokens, record.emb, record.encoder, op.hlc, depth, record.verdict),
            )
        return None  # fits no model: stored and forwarded, without effect

    def _maximal(self, refs: list[_Node]) -> tuple[int, ...]:
        found = sorted({unit for node in refs for unit in ((node.unit,) if node.unit is not None else node.near)})
        if len(found) < 2:
            return tuple(found)
        below = 0
        for unit in found:
            below |= self._nodes[self._units[unit].id].past
        return tuple(unit for unit in found if not below >> unit & 1)

    def _rows_in(self, past: int) -> Mask:
        if not len(self._table):
            return np.zeros(0, dtype=np.bool_)
        count = len(self._units)
        raw = np.frombuffer(past.to_bytes(count // 8 + 1, "little"), dtype=np.uint8)
        return np.unpackbits(raw, bitorder="little").view(np.bool_)[self._table.tags]

    # ---- reading

    def __len__(self) -> int:
        return len(self._units)

    def units(self) -> tuple[UnitView, ...]:
        """All units in causal order."""
        return tuple(self._units[place[3]] for place in self._places)

    def unit(self, unit_id: bytes) -> UnitView | None:
        """One unit by its id."""
        number = self._number(unit_id)
        return None if number is None else self._units[number]

    def newest(self) -> UnitView | None:
        """The unit of the greatest (depth, clock, id)."""
        return self._units[self._places[-1][3]] if self._places else None

    def predecessors(self, unit_id: bytes) -> tuple[UnitView, ...]:
        """The temporal edges of a unit, newest first."""
        number = self._number(unit_id)
        return () if number is None else tuple(self._units[n] for n in self._before(number))

    def neighbours(self, unit_id: bytes) -> tuple[UnitView, ...]:
        """The semantic edges u -> v of a unit, by falling cosine."""
        number = self._number(unit_id)
        return () if number is None else tuple(self._units[n] for n in self._semantic.get(number, ()))

    def snapshot(self, limit: int) -> tuple[UnitView, ...]:
        """At most `limit` working units in graph order from the newest, then every document part in causal order."""
        parts = tuple(self._units[place[3]] for place in self._documents)
        return (*(self._units[n] for n in islice(self._graph_order(), limit)), *parts)

    def frontier(self) -> tuple[bytes, ...]:
        """The units with no unit above them, newest first, at most 16: what a summary written now covers."""
        everything = (1 << len(self._units)) - 1
        found: list[bytes] = []
        below = seen = 0
        for _, _, unit_id, number in reversed(self._places):  # the order extends causality: what is above came first
            if below | seen == everything or len(found) == FRONTIER_MAX:
                break
            if not below >> number & 1:
                found.append(unit_id)
            seen |= 1 << number
            below |= self._nodes[unit_id].past
        return tuple(found)

    # ---- causal past, for the summary view

    def covered(self, op_ids: Iterable[bytes]) -> int:
        """The units in the past of these ops or among them, as bits; unknown ops cover nothing."""
        bits = 0
        for op_id in op_ids:
            node = self._nodes.get(op_id)
            bits |= 0 if node is None else node.covered
        return bits

    def redacted(self, op: Op) -> bool:
        """Whether the body of an op is taken away, by a redact op that may do so or from the store."""
        kept = self._log.get(op.id)
        gone = (op if kept is None else kept).body is None
        return gone or any(author in {None, op.author} for author in self._redactions.get(op.id, ()))

    def knows(self, op_id: bytes) -> bool:
        """Whether the op is here."""
        return op_id in self._nodes

    def select(self, bits: int) -> tuple[UnitView, ...]:
        """The units of these bits in causal order."""
        places = [self._place(number) for number in _ones(bits)]
        return tuple(self._units[place[3]] for place in sorted(places))

    def uncovered(self, bits: int) -> tuple[UnitView, ...]:
        """The units outside these bits that are not redacted, in causal order."""
        return tuple(view for view in self.select((1 << len(self._units)) - 1 & ~bits) if not view.redacted)

    # ---- inside

    def _number(self, unit_id: bytes) -> int | None:
        node = self._nodes.get(unit_id)
        return None if node is None else node.unit

    def _place(self, number: int) -> Place:
        view = self._units[number]
        return (view.depth, view.hlc, view.id, number)

    def _before(self, number: int) -> list[int]:
        near = self._nodes[self._units[number].id].near
        return sorted(near, key=self._place, reverse=True)

    def _beside(self, number: int) -> list[int]:
        """Semantic neighbours in both directions, by falling cosine, ties by id."""
        incoming = self._incoming.get(number)
        if not incoming:
            return list(self._semantic.get(number, ()))
        both = sorted({*self._semantic.get(number, ()), *incoming})
        mine = np.frombuffer(self._units[number].emb or b"", dtype=np.int8).astype(np.int64)

        def closeness(other: int) -> tuple[object, bytes]:
            view = self._units[other]
            assert view.emb is not None, "only units with a vector have semantic edges"
            dot = int(mine @ np.frombuffer(view.emb, dtype=np.int8).astype(np.int64))
            return (-signed_square(dot, squared_norm(view.emb)), view.id)

        return sorted(both, key=closeness)

    def _graph_order(self) -> Iterator[int]:
        """Breadth first from the newest: semantic neighbours, temporal predecessors; then reverse time (D2)."""
        working = (place[3] for place in reversed(self._places) if not self._units[place[3]].is_document)
        first = next(working, None)
        if first is None:
            return
        queue, seen = deque([first]), {first}
        while queue:
            number = queue.popleft()
            yield number
            for other in (*self._beside(number), *self._before(number)):
                if other not in seen and not self._units[other].is_document:
                    seen.add(other)
                    queue.append(other)
        for number in working:
            if number not in seen:
                seen.add(number)
                yield number


def _refs(op: Op) -> tuple[bytes, ...]:
    return op.deps if op.prev is None else (op.prev, *op.deps)


def _ones(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
