"""What must hold in every run. Each checker fails on a planted bug (tests/simulations/test_sim_checkers.py).

Always on, at every event:
- `Reach` (S1): a frame is taken only by a node that is up, after it was sent, never across a partition.
- `WriteAhead`: nothing is told to anybody before it is on disk: own ops that are pushed or fetched, and receipts.
- `OneChain` (S5): an author writes one op per place in its chain, over all its lives.
- `Majority` (7.5): two dones of one parent never both have a majority, on whatever node and at whatever time.
- `Budget` (7.8): no effective chain spends more than the task's budget; counted here from the ops alone.

At the end, when the swarm is quiet:
- `Converged` (E1): equal sets of ops and equal derived state on all nodes.
- `OneWinner` (S6): equal chains everywhere, one winner per parent, and every engine turn accounted for.
- `AckedKept` (E2): every op for which a receipt was given, and every own op that was durable, is on every node.
- `TasksEnd` (E6): every acknowledged task is known everywhere and has ended.
- `NothingLeft` (E7): no run, job, write or follow-up is left over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.replication import TOPIC as OPS
from gossip.space_log import SpaceLog
from kernel.commands import Submit
from kernel.task import Task
from protocol.contract import ZERO, Vector, add, fits, least
from protocol.machine import Effect, Persist, Received, Send
from protocol.messages import Fetched, Frame, OpBatch, Receipt, Spread
from protocol.op import Op, decode_wire_op
from protocol.records import Claim, Done
from protocol.store import OpRow
from simulations.host import SimHost
from simulations.link import Delivery

if TYPE_CHECKING:  # the swarm holds its checkers
    from simulations.swarm import SimSwarm


class Violation(AssertionError):
    """A property does not hold."""


class Checker:
    """A property of a run. Every hook may raise Violation."""

    def bind(self, swarm: SimSwarm) -> None:
        """Before the run."""
        self.swarm = swarm

    def on_event(self, host: SimHost, event: object) -> None:
        """A core is about to take an event."""

    def on_effects(self, host: SimHost, effects: list[Effect]) -> None:
        """A core has answered; nothing is carried out yet."""

    def on_delivery(self, delivery: Delivery) -> None:
        """The network is about to hand over a frame."""

    def at_end(self) -> None:
        """The swarm is quiet."""


class Reach(Checker):
    """S1."""

    def bind(self, swarm: SimSwarm) -> None:
        """See Checker."""
        super().bind(swarm)
        self._by_peer = {host.peer: host for host in swarm.hosts}

    def on_delivery(self, delivery: Delivery) -> None:
        """See Checker."""
        target = self._by_peer[delivery.target]
        if not target.up or target.asleep:
            raise Violation(f"node {target.index} is not up and was handed a frame")
        if delivery.at_us < delivery.sent_us:
            raise Violation(f"node {target.index} was handed a frame before it was sent")
        if self.swarm.cut(delivery.source, delivery.target):
            raise Violation(f"a frame for node {target.index} crossed a partition")

    def on_event(self, host: SimHost, event: object) -> None:
        """See Checker."""
        if self.swarm.heap.life(host.index) != host.life:
            raise Violation(f"node {host.index} took {type(event).__name__} outside its life")


def ops_in(frame: Frame) -> tuple[bytes, ...]:
    """The ops that a frame carries, whatever its way: pushed, fetched or spread."""
    match frame:
        case OpBatch(ops) | Fetched(ops=ops):
            return ops
        case Spread(topic, _, items) if topic == OPS:
            return items
        case _:
            return ()


class WriteAhead(Checker):
    """Nothing is told before it is durable."""

    def __init__(self) -> None:
        self.receipted: dict[bytes, bytes] = {}  # op -> space
        self._seen: dict[bytes, Op] = {}

    def on_effects(self, host: SimHost, effects: list[Effect]) -> None:
        """See Checker."""
        for effect in effects:
            if not isinstance(effect, Send):
                continue
            self._own_ops(host, ops_in(effect.frame))
            if isinstance(effect.frame, Receipt):
                for op_id in effect.frame.ids:
                    self._held(host, op_id, "gave a receipt for")
                    self.receipted[op_id] = effect.frame.space

    def _own_ops(self, host: SimHost, wires: tuple[bytes, ...]) -> None:
        for wire in wires:
            op = self._seen.get(wire)
            if op is None:
                op = self._seen[wire] = decode_wire_op(wire)
            if op.author == host.peer:
                self._held(host, op.id, f"told of its own {op!r},")

    def _held(self, host: SimHost, op_id: bytes, deed: str) -> None:
        if op_id not in host.disk:
            raise Violation(f"node {host.index} {deed} {op_id.hex()[:8]}, which is not on its disk")


class OneChain(Checker):
    """S5: no fork by an honest node. What a crash took before anybody received it is no fork."""

    def __init__(self) -> None:
        self._places: dict[tuple[bytes, bytes, int], bytes] = {}
        self._seen: dict[bytes, None] = {}

    def on_event(self, host: SimHost, event: object) -> None:  # noqa: ARG002 - whoever hears of it
        """See Checker."""
        for wire in ops_in(event.frame) if isinstance(event, Received) else ():
            if wire not in self._seen:
                self._seen[wire] = None
                self._note(decode_wire_op(wire))

    def _note(self, op: Op) -> None:
        first = self._places.setdefault((op.space, op.author, op.seq), op.id)
        if first != op.id:
            author = next(h.index for h in self.swarm.hosts if h.peer == op.author)
            raise Violation(
                f"node {author} burnt itself: two ops at seq {op.seq} of {op.space.hex()[:8]}, one is {op!r}"
            )


def written(effects: list[Effect]) -> list[bytes]:
    """The spaces of which ops are about to be written."""
    rows = [row for effect in effects if isinstance(effect, Persist) for row in effect.rows]
    return list(dict.fromkeys(row.op.space for row in rows if isinstance(row, OpRow)))


class Majority(Checker):
    """7.5: a majority is never contradicted. Only sound while nobody forks, which OneChain sees to."""

    def __init__(self) -> None:
        self._won: dict[tuple[bytes, bytes], bytes] = {}

    def on_effects(self, host: SimHost, effects: list[Effect]) -> None:
        """See Checker."""
        spaces = {
            row.op.space: None for e in effects if isinstance(e, Persist) for row in e.rows if isinstance(row, OpRow)
        }
        for space in spaces:
            task = self.swarm.task_in(host, space)
            if task is not None and task.fold.open is not None:
                self._check(host, task)

    def _check(self, host: SimHost, task: Task) -> None:
        for done_id in task.fold.chain:
            done = task.fold.done(done_id)
            if done is None or task.fold.finality(done_id) == "tentative":
                break
            first = self._won.setdefault((task.space, done.parent), done_id)
            if first != done_id:
                raise Violation(
                    f"node {host.index} sees a majority for {done_id.hex()[:8]}, after one for {first.hex()[:8]}"
                )


class Budget(Checker):
    """7.8, from the ops alone: what every effective chain spent, dead claims on its way included."""

    def on_effects(self, host: SimHost, effects: list[Effect]) -> None:
        """See Checker."""
        spaces = {
            row.op.space: None for e in effects if isinstance(e, Persist) for row in e.rows if isinstance(row, OpRow)
        }
        for space in spaces:
            task = self.swarm.task_in(host, space)
            if task is not None and task.fold.open is not None and task.fold.chain:
                spent = chain_spent(task.log, task.fold.chain)
                if not fits(spent, task.budget):
                    raise Violation(f"node {host.index} sees {spent} spent of {task.budget} in {space.hex()[:8]}")


def chain_spent(log: SpaceLog, chain: tuple[bytes, ...]) -> Vector:
    """The sum over a chain of dones: used within the slice, and the slices of the claims that each one came after."""
    spent: Vector = ZERO
    for done_id in chain:
        done = log.record(done_id)
        assert isinstance(done, Done), "a chain is made of dones"
        claim = log.record(done.claim)
        assert isinstance(claim, Claim), "a done names its claim"
        spent = add(spent, least(done.used, claim.slice))
        while claim.after is not None:
            claim = log.record(claim.after)
            assert isinstance(claim, Claim), "a takeover names a claim"
            spent = add(spent, claim.slice)
    return spent


class Converged(Checker):
    """E1."""

    def at_end(self) -> None:
        """See Checker."""
        for client_key, space in self.swarm.submitted.items():
            digests = self.swarm.digests(space)
            if any(digest != digests[0] for digest in digests):
                raise Violation(f"task {client_key}: the nodes disagree")
            views = [memory_view(t) for host in self.swarm.up() if (t := self.swarm.task_in(host, space)) is not None]
            if any(view != views[0] for view in views):
                raise Violation(f"task {client_key}: the nodes disagree on units, edges or the summary")
            for host in self.swarm.up():
                task = self.swarm.task_in(host, space)
                if task is not None:
                    before = task.fold.state_digest()
                    task.fold.rebuild()
                    if task.fold.state_digest() != before:
                        raise Violation(f"task {client_key}: node {host.index}'s fold is not what a refold gives")


def memory_view(task: Task) -> tuple[object, ...]:
    """The memory of a task: units in order with their edges, and the summary that is read."""
    pool = task.pool
    units = [
        (u.id, tuple(p.id for p in pool.predecessors(u.id)), tuple(v.id for v in pool.neighbours(u.id)))
        for u in pool.units()
    ]
    read = task.summaries.read()
    return units, read.id, read.text, tuple(view.id for view in read.tail)


class OneWinner(Checker):
    """S6: exactly one effective completion per step."""

    def at_end(self) -> None:
        """See Checker."""
        for client_key, space in self.swarm.submitted.items():
            tasks = [t for host in self.swarm.up() if (t := self.swarm.task_in(host, space)) is not None]
            chains = {task.fold.chain: None for task in tasks}
            if len(chains) > 1:
                raise Violation(f"task {client_key}: {len(chains)} effective chains")
            for task in tasks[:1]:
                self._check(client_key, task)

    def _check(self, client_key: str, task: Task) -> None:
        parents: dict[bytes, bytes] = {}
        for done_id in task.fold.chain:
            done = task.fold.done(done_id)
            assert done is not None
            if parents.setdefault(done.parent, done_id) != done_id or task.fold.winner(done.parent) != done_id:
                raise Violation(f"task {client_key}: a step has two effective completions")


class AckedKept(Checker):
    """E2: what anybody vouched for, and what was durable at its author, is everywhere."""

    def __init__(self) -> None:
        self.vouched: dict[bytes, tuple[bytes, int]] = {}  # op -> (space, node that vouches)

    def on_effects(self, host: SimHost, effects: list[Effect]) -> None:
        """See Checker."""
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.frame, Receipt):
                for op_id in effect.frame.ids:
                    self.vouched.setdefault(op_id, (effect.frame.space, host.index))

    def at_end(self) -> None:
        """See Checker."""
        for host in self.swarm.up():
            for op_id, (space, holder) in self.vouched.items():
                log = host.core.replication.log(space)
                if log is None or op_id not in log:
                    raise Violation(
                        f"op {op_id.hex()[:8]}, for which node {holder} gave a receipt, is not on node {host.index}"
                    )


class TasksEnd(Checker):
    """E6: every acknowledged submit is a task that has ended on every node."""

    def at_end(self) -> None:
        """See Checker."""
        for client_key, space in self.swarm.submitted.items():
            acked = any(
                ask.ok and isinstance(ask.command, Submit) and ask.command.client_key == client_key
                for ask in self.swarm.asks
            )
            tasks = {host.index: self.swarm.task_in(host, space) for host in self.swarm.hosts}
            for node, task in tasks.items():
                if acked and (task is None or task.fold.open is None):
                    raise Violation(f"task {client_key} was acknowledged and is unknown to node {node}")
            for node, task in tasks.items():
                if task is not None and task.fold.open is not None and task.fold.outcome == "open":
                    raise Violation(f"task {client_key} has not ended on node {node}")


class NothingLeft(Checker):
    """E7."""

    def at_end(self) -> None:
        """See Checker."""
        for host in self.swarm.up():
            if host.unwritten or host.jobs_in_flight:
                raise Violation(
                    f"node {host.index} has {host.unwritten} writes and {host.jobs_in_flight} jobs left over"
                )
            for space in self.swarm.submitted.values():
                task = self.swarm.task_in(host, space)
                if task is not None and (task.run is not None or task.summary_job is not None):
                    raise Violation(f"node {host.index} still has a run or a summary job in {space.hex()[:8]}")


def standard_checkers() -> list[Checker]:
    """All of them, new for a run."""
    return [
        Reach(), WriteAhead(), OneChain(), Majority(), Budget(), Converged(), OneWinner(), AckedKept(), TasksEnd(),
        NothingLeft(),
    ]  # fmt: skip
