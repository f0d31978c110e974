"""Every checker turns red on the bug that it is for, planted into a core, a network or a disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gossip.space_log import Added
from kernel.task import Task
from kernel.turns.fold import TaskFold
from kernel.turns.fold_claims import ClaimTable
from kernel.turns.fold_dones import DoneTable
from kernel.turns.machine import Turns
from node.core import NodeCore
from protocol.contract import Vector
from protocol.machine import AbortJob, Effect, Persist, Received, Send
from protocol.messages import OpBatch, Ping, Receipt, Spread
from protocol.op import OpKind
from protocol.peer import PeerID
from protocol.store import OpRow
from protocol.transport import Lane
from simulations import checkers
from simulations.checkers import Checker, Violation
from simulations.engine import EngineConfig
from simulations.link import Delivery
from simulations.network import SimNetwork
from simulations.swarm import SimSwarm, SwarmConfig

KEY = "one"


def swarm_of(checker: Checker, seed: int = 1, **changes: Any) -> SimSwarm:
    return SimSwarm(replace(SwarmConfig(), **changes), seed, [checker])


def run_one(swarm: SimSwarm, **more: Any) -> None:
    """One task from start to quiet, and the end checks."""
    swarm.begin()
    ask = swarm.submit(0, KEY, **more)
    swarm.run_until(lambda: ask.done, 30)
    swarm.settle(200)


def one_turn_twice(swarm: SimSwarm) -> None:
    """A step is run and completed on both sides of a partition, which then heals."""
    swarm.begin()
    ask = swarm.submit(0, KEY)
    swarm.run_until(lambda: ask.done, 30)
    swarm.run_until(lambda: swarm.owner(KEY) is not None, 30)
    owner = swarm.owner(KEY)
    assert owner is not None
    others = [node for node in range(5) if node != owner]
    swarm.partition([owner, others[0]], others[1:])
    swarm.run_for(70)
    swarm.settle()


def bad_core(change: Callable[[NodeCore, object, list[Effect]], list[Effect]]) -> type[NodeCore]:
    """A core whose effects are changed on their way out."""

    class BadCore(NodeCore):
        def handle(self, event: object, now_us: int) -> list[Effect]:
            return change(self, event, super().handle(event, now_us))

    return BadCore


def test_the_scenarios_here_are_good_without_a_planted_bug() -> None:
    run_one(SimSwarm(SwarmConfig(), 1), contract=(3_000, 20, 600_000, 0))
    one_turn_twice(SimSwarm(SwarmConfig(), 1))


# ---- always on


def test_reach_sees_a_frame_that_crosses_a_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimNetwork, "partition", lambda *_: None)
    with pytest.raises(Violation, match="crossed a partition"):
        one_turn_twice(swarm_of(checkers.Reach()))


def test_reach_sees_a_frame_for_a_node_that_is_down() -> None:
    reach = checkers.Reach()
    swarm = swarm_of(reach)
    swarm.begin()
    swarm.crash(1)
    with pytest.raises(Violation, match="is not up"):
        reach.on_delivery(Delivery(swarm.hosts[0].peer, swarm.hosts[1].peer, Lane.BULK, 0, swarm.heap.now_us))
    with pytest.raises(Violation, match="before it was sent"):
        reach.on_delivery(Delivery(swarm.hosts[1].peer, swarm.hosts[0].peer, Lane.BULK, 2, 1))


def test_write_ahead_sees_a_push_before_the_disk() -> None:
    def push_early(core: NodeCore, event: object, effects: list[Effect]) -> list[Effect]:
        rows = [row for e in effects if isinstance(e, Persist) for row in e.rows]
        own = tuple(row.op.wire() for row in rows if isinstance(row, OpRow) and row.op.author == core.me)
        return effects + [Send(peer, Lane.BULK, OpBatch(own)) for peer in core.links.linked if own]

    with pytest.raises(Violation, match="not on its disk"):
        run_one(swarm_of(checkers.WriteAhead(), build_core=bad_core(push_early)))


def test_write_ahead_sees_a_receipt_before_the_disk() -> None:
    def receipt_early(core: NodeCore, event: object, effects: list[Effect]) -> list[Effect]:
        if not isinstance(event, Received) or not isinstance(event.frame, Spread):
            return effects
        ops = [row.op for e in effects if isinstance(e, Persist) for row in e.rows if isinstance(row, OpRow)]
        early = [Send(event.peer, Lane.CONTROL, Receipt(op.space, 1, (op.id,), bytes(64))) for op in ops]
        return [*effects, *early]

    with pytest.raises(Violation, match="gave a receipt"):
        run_one(swarm_of(checkers.WriteAhead(), build_core=bad_core(receipt_early)))


def test_one_chain_sees_a_restored_backup_that_asks_nobody() -> None:
    class Careless(NodeCore):
        def handle(self, event: object, now_us: int) -> list[Effect]:
            self.replication.writable = lambda _: True  # type: ignore[method-assign, assignment]
            return super().handle(event, now_us)

    swarm = swarm_of(checkers.OneChain(), build_core=Careless, engine=EngineConfig(decide_us=2_000_000))
    swarm.begin()
    ask = swarm.submit(0, KEY)
    swarm.run_until(lambda: ask.done, 30)
    swarm.run_until(lambda: swarm.owner(KEY) is not None, 30)
    owner = swarm.owner(KEY)
    assert owner is not None
    swarm.run_for(0.2)
    backup = swarm.hosts[owner].disk.length
    swarm.run_until(lambda: (t := swarm.task(owner, KEY)) is not None and len(t.fold.chain) == 1, 60)
    swarm.run_for(0.3)
    swarm.crash(owner)
    swarm.restart(owner, rollback=backup)
    with pytest.raises(Violation, match="burnt itself"):
        swarm.settle()


def test_majority_sees_a_majority_that_is_displaced(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = DoneTable.count
    monkeypatch.setattr(DoneTable, "count", lambda self, done_id: honest(self, done_id) + 2)
    with pytest.raises(Violation, match="sees a majority"):
        one_turn_twice(swarm_of(checkers.Majority()))


def test_budget_sees_a_slice_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(self: Task, wanted: Vector) -> Vector:
        return self.budget

    monkeypatch.setattr(ClaimTable, "_fits", lambda *_: True)
    monkeypatch.setattr(Task, "slice_for_claim", everything)
    with pytest.raises(Violation, match="spent of"):
        run_one(swarm_of(checkers.Budget()), contract=(600, 20, 600_000, 0))


# ---- at the end


def test_converged_sees_a_fold_that_depends_on_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TaskFold.update
    odd: list[TaskFold] = []

    def forgetful(self: TaskFold, added: Added) -> None:
        """The fold of one node misses what others have seen."""
        odd.extend([] if odd else [self])
        votes = [op for op in added.ops if op.kind == OpKind.SEEN]
        honest(self, replace(added, ops=tuple(op for op in added.ops if self is not odd[0] or op not in votes)))

    monkeypatch.setattr(TaskFold, "update", forgetful)
    checker = checkers.Converged()
    swarm = swarm_of(checker)
    swarm.begin()
    ask = swarm.submit(0, KEY)
    swarm.run_until(lambda: ask.done, 30)
    swarm.run_for(12)
    with pytest.raises(Violation, match="disagree"):
        checker.at_end()


def test_converged_sees_a_node_that_misses_an_op() -> None:
    class Deaf(NodeCore):
        def handle(self, event: object, now_us: int) -> list[Effect]:
            return [] if isinstance(event, Received) and self.deaf else super().handle(event, now_us)

        @property
        def deaf(self) -> bool:
            return len(self.replication.spaces()) > 0 and self.me == deaf[0]

    checker = checkers.Converged()
    deaf: list[PeerID] = []
    swarm = swarm_of(checker, build_core=Deaf)
    deaf.append(swarm.hosts[4].peer)
    swarm.begin()
    ask = swarm.submit(0, KEY)
    swarm.run_until(lambda: ask.done, 30)
    swarm.run_for(60)
    with pytest.raises(Violation, match="disagree"):
        checker.at_end()


def test_one_winner_sees_two_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_who_asks(self: TaskFold) -> tuple[bytes, ...]:
        swap = self is odd[0] if odd else False
        return tuple(self._chain[:-1]) if swap else tuple(self._chain)

    odd: list[TaskFold] = []
    checker = checkers.OneWinner()
    swarm = swarm_of(checker)
    run_one(swarm)
    task = swarm.task(2, KEY)
    assert task is not None
    odd.append(task.fold)
    monkeypatch.setattr(TaskFold, "chain", property(by_who_asks))
    with pytest.raises(Violation, match="effective chains"):
        checker.at_end()


def test_one_winner_sees_a_step_that_two_dones_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    checker = checkers.OneWinner()
    swarm = swarm_of(checker)
    run_one(swarm)
    monkeypatch.setattr(TaskFold, "winner", lambda *_: None)
    with pytest.raises(Violation, match="two effective completions"):
        checker.at_end()


def test_acked_kept_sees_a_receipt_for_what_nobody_has() -> None:
    def forge(core: NodeCore, event: object, effects: list[Effect]) -> list[Effect]:
        forged = [
            Send(effect.peer, effect.lane, replace_ids(effect.frame))
            for effect in effects
            if isinstance(effect, Send) and isinstance(effect.frame, Receipt)
        ]
        return [*effects, *forged]

    def replace_ids(receipt: Receipt) -> Receipt:
        return Receipt(receipt.space, receipt.level, (b"\x07" * 32,), receipt.sig)

    with pytest.raises(Violation, match="gave a receipt, is not on"):
        run_one(swarm_of(checkers.AckedKept(), build_core=bad_core(forge)))


def test_tasks_end_sees_a_task_that_nobody_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Turns, "consider", lambda *_: [])
    checker = checkers.TasksEnd()
    swarm = swarm_of(checker)
    swarm.begin()
    ask = swarm.submit(0, KEY)
    swarm.run_until(lambda: ask.done, 30)
    swarm.run_for(120)
    with pytest.raises(Violation, match="has not ended"):
        checker.at_end()


def test_tasks_end_sees_an_acknowledged_task_that_is_unknown_elsewhere() -> None:
    checker = checkers.TasksEnd()
    swarm = swarm_of(checker)
    swarm.begin()
    swarm.partition([0], [1, 2, 3, 4])
    ask = swarm.submit(0, KEY, ack="local")
    swarm.run_until(lambda: ask.done, 30)
    with pytest.raises(Violation, match="is unknown to node"):
        checker.at_end()


def test_nothing_left_sees_an_engine_call_that_goes_on() -> None:
    def keep_running(core: NodeCore, event: object, effects: list[Effect]) -> list[Effect]:
        return [effect for effect in effects if not isinstance(effect, AbortJob)]

    checker = checkers.NothingLeft()
    swarm = swarm_of(checker, build_core=bad_core(keep_running))
    swarm.begin()
    for node in range(5):
        swarm.script(node, "hang")
    ask = swarm.submit(0, KEY)
    swarm.run_until(lambda: ask.done, 30)
    swarm.run_until(lambda: swarm.owner(KEY) is not None, 30)
    swarm.run_for(1)
    swarm.cancel(0, KEY)
    with pytest.raises(Violation, match="left over"):
        swarm.settle(100)


def test_a_task_that_does_not_end_is_a_liveness_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Turns, "consider", lambda *_: [])
    with pytest.raises(Violation, match=r"not reached within 200 virtual seconds\nreplay: seed 1, 5 nodes"):
        run_one(swarm_of(checkers.TasksEnd()))


def test_a_frame_that_its_bytes_do_not_say_is_found() -> None:
    def bend(core: NodeCore, event: object, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.frame, Ping):
                object.__setattr__(effect.frame, "req", -1)
        return effects

    swarm = swarm_of(checkers.Reach(), build_core=bad_core(bend))
    swarm.start()
    with pytest.raises(Violation, match="Ping does not decode"):
        swarm.run_for(20)
