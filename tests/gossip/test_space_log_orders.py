"""Equal sets of ops give equal logs: any order, duplicates, forks, denials, forgetful and partitioned replicas.

The kept set is checked against its definition, computed here from the whole set in the most naive way.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import example, given, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from gossip.space_log import SpaceLog
from protocol.op import Op, OpKind
from protocol.records import Deny, Redact, Seen, Unit
from tests.fold_world import (
    FAR_MS,
    SPACE,
    Replica,
    cancel,
    deny,
    feed,
    forge,
    join,
    keys,
    open_record,
    replica,
    shuffled,
    stamp,
)

WRITERS = "ABCD"
DRAFT = st.tuples(
    st.sampled_from(WRITERS),
    st.sampled_from(["unit", "unit", "unit", "seen", "cancel", "open", "deny", "redact"]),
    st.integers(0, 1 << 16),
    st.sampled_from([0, 0, 0, 0, 1]),
)


class Paper:
    """Ops by hand: every author has joined, everyone's past holds the open; `fork` goes back on the own chain."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.own: dict[str, list[Op]] = {a: [] for a in WRITERS}
        for a in WRITERS:
            self.write(a, join(), [])
        self.open = self.write("A", open_record(), [])

    def write(self, author: str, record: Any, deps: list[Op], *, prev: Op | None = None) -> Op:
        before = prev or (self.own[author][-1] if self.own[author] else None)
        refs = [*deps, *([before] if before else [])]
        made = forge(
            *(author, record),
            seq=before.seq + 1 if before else 0,
            prev=before.id if before else None,
            deps=[d.id for d in deps],
            hlc=max([d.hlc for d in refs], default=stamp(1)) + 1 + len(self.ops) % 3,
        )
        self.ops.append(made)
        self.own[author].append(made)
        return made

    def draft(self, author: str, kind: str, x: int, fork: int) -> Op:
        r = random.Random(x)
        deps = r.sample(self.ops, min(len(self.ops), r.randint(0, 3)))
        prev = r.choice(self.own[author]) if fork else None
        record: Any = Unit(agent="one", role="analyst", content=str(x))
        if kind == "seen":
            record = Seen()
        elif kind == "cancel":
            record, deps = cancel(), [*deps, self.open]
        elif kind == "open":
            record = open_record(objective=f"o{x % 3}")
        elif kind == "redact":
            record = Redact(target=self.open.id)
        elif kind == "deny" and x % 4 == 0:
            record = deny(r.choice(WRITERS), r.randint(0, 6))
        return self.write(author, record, deps, prev=prev)


def kept_by_definition(ops: dict[bytes, Op], records: dict[bytes, Any]) -> set[bytes]:
    """protocol.md §5, Burn, read aloud."""
    slots: dict[tuple[bytes, int], set[bytes]] = {}
    for op in ops.values():
        slots.setdefault((op.author, op.seq), set()).add(op.id)
    f: dict[bytes, int] = {}
    for (author, seq), ids in slots.items():
        if len(ids) > 1:
            f[author] = min(seq, f.get(author, seq))
    last: dict[bytes, int] = {}
    for record in records.values():
        if isinstance(record, Deny):
            last[record.author] = min(record.keep, last.get(record.author, record.keep))
    stay = set()
    for op in ops.values():
        below = op.seq < f.get(op.author, op.seq + 1) and op.seq <= last.get(op.author, op.seq)
        proof = f.get(op.author) == op.seq and op.id in sorted(slots[op.author, op.seq])[:2]
        if below or proof or op.kind in (OpKind.OPEN, OpKind.CANCEL, OpKind.DENY):
            stay.add(op.id)
    grown = True
    while grown:
        more = {ref for op_id in stay for ref in ops[op_id].refs} - stay
        stay |= more
        grown = bool(more)
    return stay


def check_log(log: SpaceLog, ops: list[Op]) -> None:
    """The log holds all ops, keeps what the definition says, and its indexes say the same as its ops."""
    by_id = {op.id: op for op in ops}
    assert all(op.id in log for op in ops)
    kept = list(log.kept())
    ids = [op.id for op in kept]
    assert set(ids) == kept_by_definition(by_id, {i: log.record(i) for i in by_id})
    seen: set[bytes] = set()
    for op in kept:
        assert seen.issuperset(op.refs)
        seen.add(op.id)
    assert log.heads() == sorted(seen - {ref for op in kept for ref in op.refs})
    fresh = feed(sorted(kept, key=lambda op: (op.hlc, op.id))).log
    assert fresh.digest() == log.digest()
    assert len(fresh) == len(log) == len(ids)
    for author in (keys(a).public for a in WRITERS):
        mine = [op for op in kept if op.author == author]
        assert log.author_digest(author)[:2] == (max(op.seq for op in mine), len(mine))
        assert log.author_digest(author) == fresh.author_digest(author)
        assert log.ids_from(author, 0, 10**6) == [op.id for op in sorted(mine, key=lambda op: (op.seq, op.id))]
        assert log.burnt(author) is (log.fork_of(author) is not None)
        assert log.fork_of(author) == fresh.fork_of(author)


@given(drafts=st.lists(DRAFT, max_size=40), seed=st.integers(0, 1 << 16))
def test_any_order_with_duplicates_gives_the_log_of_the_definition(drafts: list[Any], seed: int) -> None:
    paper = Paper()
    for item in drafts:
        paper.draft(*item)
    straight, mixed = feed(paper.ops).log, feed(shuffled(paper.ops, seed)).log
    check_log(straight, paper.ops)
    check_log(mixed, paper.ops)
    assert straight.digest() == mixed.digest()
    assert straight.missing() == mixed.missing() == []


@example(
    drafts=[("A", "unit", 0, 0), ("A", "deny", 3092, 0), ("B", "unit", 0, 0), ("B", "unit", 0, 0), ("B", "unit", 1, 1)],
    seed=0,
    aside_max=0,
)
@example(drafts=[*[("A", "unit", 0, 0)] * 8, ("A", "unit", 1, 1), ("A", "cancel", 0, 0)], seed=0, aside_max=0)
@given(drafts=st.lists(DRAFT, max_size=40), seed=st.integers(0, 1 << 16), aside_max=st.integers(0, 3))
def test_a_log_that_forgets_ends_with_the_same_ops(drafts: list[Any], seed: int, aside_max: int) -> None:
    paper = Paper()
    for item in drafts:
        paper.draft(*item)
    node = replica(aside_max=aside_max)
    order, news = shuffled(paper.ops, seed), True
    while news:  # what was forgotten or not taken is offered again until nothing moves
        before = node.log.digest(), node.log.missing()
        for op in order:
            node.take(op)
        news = (node.log.digest(), node.log.missing()) != before
    assert node.log.digest() == feed(paper.ops).log.digest()
    aside = sum(1 for op in paper.ops if op.id in node.log and node.log.get(op.id) is None)
    assert aside <= aside_max or any(op.kind == OpKind.DENY for op in paper.ops)


class Replicas(RuleBasedStateMachine):
    """Three replicas that get ops in their own order and tell each other only what they keep."""

    ops = Bundle("ops")

    @initialize()
    def start(self) -> None:
        self.paper = Paper()
        self.nodes: list[Replica] = [replica() for _ in range(3)]

    @rule(target=ops, draft=DRAFT)
    def write(self, draft: Any) -> Op:
        return self.paper.draft(*draft)

    @rule(made=consumes(ops), who=st.integers(0, 2))
    def deliver(self, made: Op, who: int) -> None:
        self.nodes[who].take(made)

    @rule(who=st.integers(0, 2), source=st.integers(0, 2), seed=st.integers(0, 99), part=st.integers(1, 4))
    def tell(self, who: int, source: int, seed: int, part: int) -> None:
        for op in shuffled(list(self.nodes[source].log.kept()), seed)[::part]:
            self.nodes[who].take(op)

    @invariant()
    def nothing_is_wanted_that_is_held(self) -> None:
        for node in self.nodes:
            assert not any(ref in node.log for ref in node.log.missing())
            assert len(node.log) == sum(1 for _ in node.log.kept())

    def teardown(self) -> None:
        if not hasattr(self, "nodes"):
            return
        for op in self.paper.ops[:5]:
            self.nodes[0].take(op)
        news = True
        while news:  # anti-entropy on kept ops alone, until nothing is new to anybody
            news = False
            for source in self.nodes:
                for node in self.nodes:
                    for op in list(source.log.kept()):
                        news = node.take(op) not in ("duplicate", "pending") or news
        assert len({node.log.digest() for node in self.nodes}) == 1
        assert self.nodes[0].log.space == SPACE
        assert all(node.log.next_due_ms() is None for node in self.nodes)
        for op in self.paper.ops:
            for node in self.nodes:
                node.log.add(op, swarm_ms=FAR_MS)
        for node in self.nodes:
            check_log(node.log, self.paper.ops)


TestReplicas = pytest.mark.slow(Replicas.TestCase)
