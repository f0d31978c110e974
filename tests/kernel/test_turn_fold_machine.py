"""Six nodes on one task, two of which may fork, grab and collude, under partitions and wrong clocks.

At every moment an incremental fold says what a fold from scratch says, however its ops came in; in the end, when
all have heard all, there is one chain, the same everywhere, and the invariants of replication.md §14 hold.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kernel.turns.fold import TaskFold
from protocol.contract import fits
from protocol.op import Op, OpKind
from protocol.records import ENDS
from tests.fold_world import FAR_MS, cancel, deny, feed, open_record, portrait, scratch, settle, shuffled
from tests.kernel.turn_nodes import Node

WHO = st.integers(0, 5)
X = st.integers(0, 1 << 16)


class Turns(RuleBasedStateMachine):
    """The task, its nodes, and what was once promised as majority."""

    @initialize(
        byz=st.lists(st.integers(1, 5), max_size=2, unique=True),
        skews=st.lists(st.sampled_from([0, 0, 0, -30, 30, -600]), min_size=6, max_size=6),
        budget=st.sampled_from([60, 100, 300]),
        voters=st.sampled_from(["A", "AB", "ABC", "ABCDE", "ABCDE"]),
        f=st.sampled_from([0, 0, 1]),
        max_steps=st.sampled_from([3, 99]),
    )
    def start(
        self, byz: list[int], skews: list[int], budget: int, voters: str, f: int, max_steps: int
    ) -> None:  # fmt: skip
        self.t = 1_000
        self.nodes = [Node(a, skew) for a, skew in zip("ABCDEF", skews, strict=True)]
        self.byz = set(byz)
        self.record = open_record(participants=voters, holders="ABCDE", budget=budget, f=f, max_steps=max_steps)
        self.promised: dict[bytes, tuple[bytes, ...]] = {}
        for node in self.nodes:
            node.join(self.t)
        self.nodes[0].write(self.t, self.record)
        self._tell(0, 1)

    def _tell(self, source: int, part: int, to: int | None = None, seed: int = 0) -> None:
        ops = list(self.nodes[source].log.kept())
        for n, node in enumerate(self.nodes):
            if n != source and to in (None, n):
                node.pull(self.t, ops if seed == 0 else shuffled(ops, seed)[::part])

    @rule(who=WHO, source=WHO)
    def sync(self, who: int, source: int) -> None:
        self._tell(source, 1, who)

    @rule(source=WHO)
    def push(self, source: int) -> None:
        self._tell(source, 1)

    @rule(who=WHO, source=WHO, seed=st.integers(1, 99), part=st.integers(1, 5))
    def leak(self, who: int, source: int, seed: int, part: int) -> None:
        self._tell(source, part, who, seed)

    @rule(by=st.sampled_from([1, 5, 20, 60]))
    def pass_time(self, by: int) -> None:
        self.t += by
        for node in self.nodes:
            node.wake(node.swarm_ms(self.t))

    @rule(who=WHO, x=X)
    def step(self, who: int, x: int) -> None:
        self.nodes[who].step(self.t, x)

    @rule(who=WHO, x=X)
    def turn(self, who: int, x: int) -> None:
        """Claim, work, done and tell: the common path."""
        for n in range(2):
            self.nodes[who].step(self.t, x + n)
        self._tell(who, 1)

    @rule()
    def all_vote(self) -> None:
        for who, node in enumerate(self.nodes):
            if who not in self.byz:
                node.vote(self.t)

    @rule(who=WHO)
    def renew(self, who: int) -> None:
        self.nodes[who].renew(self.t)

    @rule(who=WHO)
    def release(self, who: int) -> None:
        self.nodes[who].release(self.t)

    @rule()
    def all_seal(self) -> None:
        for node in self.nodes[:5]:
            node.seal(self.t)

    @rule(who=WHO)
    def restart(self, who: int) -> None:
        self.nodes[who].inst += 1

    @rule(who=WHO)
    def retry_open(self, who: int) -> None:
        self.nodes[who].write(self.t, self.record)

    @rule(who=WHO)
    def other_open(self, who: int) -> None:
        self.nodes[who].write(self.t, open_record(objective="else"))

    @precondition(lambda self: bool(self.byz))
    @rule(x=X)
    def fork(self, x: int) -> None:
        self.nodes[sorted(self.byz)[x % len(self.byz)]].fork(self.t, x)

    @precondition(lambda self: bool(self.byz))
    @rule(x=X)
    def grab(self, x: int) -> None:
        self.nodes[sorted(self.byz)[x % len(self.byz)]].grab(self.t, x)

    @precondition(lambda self: bool(self.byz))
    @rule(x=X)
    def deny_one(self, x: int) -> None:
        target = self.nodes[sorted(self.byz)[x % len(self.byz)]]
        self.nodes[0].write(self.t, deny(target.name, x % 9))

    @rule(who=WHO, x=X)
    def stop(self, who: int, x: int) -> None:
        node = self.nodes[who]
        if x % 7 == 0 and node.fold.root is not None:
            ref = node.fold.open_op_ids(node.fold.root)[0]
            node.write(self.t, cancel(), (ref,))
        elif x % 7 == 1 and node.fold.chain:
            node.write(self.t, settle(node.fold.chain[0]), (node.fold.chain[0],))

    @invariant()
    def folds_are_chains(self) -> None:
        for node in self.nodes if hasattr(self, "nodes") else ():
            check_chain(node.fold)
            for done_id in node.fold.chain:
                if node.fold.finality(done_id) != "tentative":
                    self.promised[done_id] = node.fold.voters(done_id)

    def teardown(self) -> None:
        if not hasattr(self, "nodes"):
            return
        for node in self.nodes:
            assert portrait(node.fold, node.log) == portrait(scratch(node.replica), node.log)
        every: dict[bytes, Op] = {}
        for node in self.nodes:
            every |= {op.id: op for op in (*node.written, *node.log.kept())}
        ops = list(every.values())
        portraits = []
        for seed, node in enumerate(self.nodes[:3]):
            for op in shuffled(ops, seed):
                node.replica.take(op, swarm_ms=FAR_MS)
            node.wake(FAR_MS)
            portraits.append(portrait(node.fold, node.log))
        fresh = feed(shuffled(ops, 99))
        assert all(p == portrait(fresh.fold, fresh.log) for p in portraits)
        assert portrait(fresh.fold, fresh.log) == portrait(scratch(fresh), fresh.log)
        check_budget(fresh.fold, ops)
        self.check_promises(fresh.fold)

    def check_promises(self, fold: TaskFold) -> None:
        """Invariant 9: v - b > P - v and v - b > P/2 (b = its voters burnt or denied since) stands."""
        sealed_by_fault = len(self.byz) > (0 if fold.open is None else fold.open.f)
        if fold.open is None or fold.open.objective != self.record.objective or sealed_by_fault:
            return
        for done_id, voters in self.promised.items():
            lost = sum(fold._log.silenced(a) for a in voters)
            size = len(fold.open.participants)
            if len(voters) - lost > size - len(voters) and 2 * (len(voters) - lost) > size:
                done = fold.done(done_id)
                assert done is not None
                assert fold.winner(done.parent) == done_id


def check_chain(fold: TaskFold) -> None:
    """Invariant 8: one chain from the open; each done is of its author's own valid claim on the one before."""
    node = fold.root
    for n, done_id in enumerate(fold.chain, start=1):
        done = fold.done(done_id)
        assert done is not None
        assert done.valid
        assert done.parent == node
        claim = fold.claim(done.claim)
        assert claim is not None
        assert claim.ok
        assert claim.author == done.author
        assert fold.step_of(done_id) == n
        assert (done.outcome in ENDS) <= (n == len(fold.chain))
        node = done_id
    levels = [("tentative", "majority", "final", "sealed").index(fold.finality(d)) for d in fold.chain]
    assert levels == sorted(levels, reverse=True)


def check_budget(fold: TaskFold, ops: list[Op]) -> None:
    """Invariant 11: no path from the open spends more than B; all valid claims together at most B x leaves."""
    claims = [c for op in ops if op.kind == OpKind.CLAIM and (c := fold.claim(op.id)) is not None and c.ok]
    dones = [d for op in ops if op.kind == OpKind.DONE and (d := fold.done(op.id)) is not None and d.form]
    for root in {c.step.terms.root for c in claims if c.step is not None}:
        tree = [c for c in claims if c.step is not None and c.step.terms.root == root]
        terms = fold.terms(root)
        ends: dict[bytes, Any] = {d.claim: fold.spent(d.id)[0] for d in dones}
        continued = {d.claim for d in dones if any(c.parent == d.id for c in tree)}
        behind = continued | {op.id for op in ops if any(_after(fold, c.id) == op.id for c in tree)}
        total = sum(ends.get(c.id, c.before[0] + c.slice[0]) - c.before[0] for c in tree)
        assert total <= terms.budget[0] * sum(c.id not in behind for c in tree)
        for claim in tree:
            assert claim.before[0] + claim.slice[0] <= terms.budget[0]
            assert fits(claim.slice, terms.open.slice_max)


def _after(fold: TaskFold, claim_id: bytes) -> bytes | None:
    record: Any = fold._log.record(claim_id)
    return None if record is None else record.after


Turns.TestCase.settings = settings(
    stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
TestTurns = pytest.mark.slow(Turns.TestCase)


def test_a_quiet_task_is_final_and_sealed_at_once() -> None:
    """The machine reaches what it is about: honest nodes alone bring a task to a sealed answer."""
    nodes = [Node(a) for a in "ABCDE"]
    for node in nodes:
        node.join(100)
    nodes[0].write(100, open_record())

    def all_hear() -> None:
        for source in nodes:
            for node in nodes:
                node.pull(10_000, list(source.log.kept()))

    t, order = 200, random.Random(1)
    all_hear()
    for x in (1, 2, 11):
        owner = order.choice(nodes)
        owner.step(t, x)
        owner.step(t, x)
        all_hear()
        for node in nodes:
            node.vote(t + 1)
        all_hear()
        t += 10
    for _ in range(3):
        for node in nodes:
            node.seal(t)
        all_hear()
    assert {node.fold.outcome for node in nodes} == {"answer"}
    assert [nodes[0].fold.finality(d) for d in nodes[0].fold.chain] == ["sealed"] * 3
    assert len({node.fold.state_digest() for node in nodes}) == 1
