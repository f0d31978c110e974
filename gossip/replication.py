"""The replicated log of a node: every space it holds, writing, taking, acknowledging.

The order that makes an acknowledgement true:

1. An own op is signed, enters the in-memory log, and waits in `_unsaved`; `flush` (end of every step of the node)
   turns all of them into one `Persist`.
2. Only when that is answered, `Durable` is told, and the ops are broadcast to the swarm (gossip/mesh/).
3. A peer that took them persists them, and only then sends a signed `Receipt` (ack level `w1`).

After a stop that was not clean nothing is written to a stored space before a peer was asked for this node's own
head there, or nobody could be asked in time: a restored backup that skipped this would burn itself (protocol.md §5).
Repair (gossip/repair.py) fills what pushing lost; this file never asks a peer for anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gossip.charges import Charges
from gossip.context import Context
from gossip.events import (
    Arrived,
    Broadcast,
    Durable,
    HeadUnsure,
    Judged,
    Linked,
    Missing,
    SpaceChanged,
    SpaceOpened,
    Unlinked,
    Verdict,
)
from gossip.own_head import OwnHeads
from gossip.receipts import Receipts, by_space, push
from gossip.space_log import Added, LogRules, SpaceLog
from gossip.space_table import SpaceTable
from protocol.admission import check_chain
from protocol.clock import HybridClock, hlc_from_ms
from protocol.errors import DecodeError, Refused, StoreError
from protocol.machine import (
    Boot,
    Count,
    Effect,
    JobDone,
    JobFailed,
    JobId,
    Local,
    Notify,
    Persist,
    Received,
    SetTimer,
    TimerFired,
    TimerKey,
)
from protocol.messages import OpBatch, Receipt, message_id
from protocol.op import Op, OpKind, Position, decode_wire_op, make_op
from protocol.peer import PeerID
from protocol.records import KIND_OF, SIGNED_BODIES, Join, Open, Record, body_bytes
from protocol.spaces import swarm_space, task_space
from protocol.store import OpRow
from protocol.versions import MESH

MACHINE = "replication"
TOPIC = "ops"  # of the mesh


@dataclass(frozen=True, slots=True)
class Draft:
    """An op to write. `named`: ids that its body names; `floor`: its stamp is after this HLC."""

    record: Record
    named: tuple[bytes, ...] = ()
    votes: tuple[bytes, ...] = ()
    floor: int = 0


@dataclass(frozen=True, slots=True)
class _Saving:
    """A Persist in flight. `source`: the peer that the ops came from, None for own ops."""

    ops: tuple[Op, ...]
    source: PeerID | None


class Replication:
    """The machine, and the port through which the kernel reads logs and writes ops."""

    def __init__(self, ctx: Context) -> None:
        self._keys = ctx.keys
        self._me = ctx.me
        self._genesis = ctx.genesis
        self._chain = ctx.chain
        self._clock = ctx.clock
        self._hlc = HybridClock()
        self._config = ctx.config
        self._jobs = ctx.jobs
        self._store = ctx.store
        self._verify = ctx.verify
        self._table = SpaceTable(ctx.config, self._rules())
        self._logs = self._table.logs
        self._heads = OwnHeads(ctx.config)
        self._receipts = Receipts(ctx)
        self._joined: dict[bytes, tuple[bytes, ...]] = {}  # space -> certificate of the own last join there
        self._unsaved: list[Op] = []
        self._saving: dict[JobId, _Saving] = {}
        self._linked: dict[PeerID, bool] = {}  # True where the mesh brings it this node's ops
        self._untold: dict[bytes, None] = {}  # own ops that are not on disk: nobody may learn of them
        self._charges = Charges(ctx.config.pending_bytes_per_peer_max)
        self._denied: set[bytes] = set()

    # ---- the port

    def log(self, space: bytes) -> SpaceLog | None:
        """The log of a space that this node holds."""
        return self._logs.get(space)

    def spaces(self) -> list[bytes]:
        """Every space of which this node holds an op, in byte order."""
        return self._table.kept()

    def writable(self, space: bytes) -> bool:
        """False while the own head in the space is not certain."""
        return space not in self._heads

    def tellable(self, op_id: bytes) -> bool:
        """False for an own op that is not on this node's disk yet: a crash may take it, and another get its place."""
        return op_id not in self._untold

    def next_stamp(self, space: bytes, now_us: int) -> int:
        """The stamp of an own op if it were written now: after all that this node heard there, or ever wrote."""
        log = self._logs.get(space)
        heads = [] if log is None else [op for i in log.heads() if (op := log.get(i)) is not None]
        after = max([self._hlc.high_water, *(op.hlc for op in heads)])
        return max(hlc_from_ms(self._clock.now_ms(now_us)), after + 1)

    def holders_of(self, op_id: bytes) -> list[bytes]:
        """Nodes whose receipt for an own op is on this node's disk, in byte order."""
        return [holder for holder, _ in self._store.receipts(op_id)]

    def repush(self, space: bytes, ids: tuple[bytes, ...]) -> list[Effect]:
        """Push own ops to every linked peer once more: who has them already sends its receipt again."""
        log = self._logs.get(space)
        found = [op for i in ids if log is not None and self.tellable(i) and (op := log.get(i)) is not None]
        return [effect for peer in sorted(self._linked) for effect in push(peer, found)]

    def unsure(self) -> list[bytes]:
        """Spaces that wait for a peer's word on the own head."""
        return self._heads.all()

    @property
    def denied(self) -> frozenset[bytes]:
        """Nodes that an admin denied in the swarm's own space."""
        return frozenset(self._denied)

    def append(self, space: bytes, draft: Draft, now_us: int) -> tuple[Op, list[Effect]]:
        """Write an op; it is durable when `Durable` names it.

        Raises:
            Refused: the own head is not certain yet, the node is burnt or outside its certificate here.
        """
        if not self.writable(space):
            raise Refused("own head in this space is not certain yet", hint="wait for a peer, or some seconds")
        log = self._table.open(space)
        if log.silenced(self._me) and KIND_OF[type(draft.record)] not in SIGNED_BODIES:
            raise Refused("this node is burnt or denied in this space", hint="another node may write there")
        effects: list[Effect] = []
        if self._own_certificate(space, log) != self._chain:
            _, effects = self._write(space, log, Draft(Join(cert=self._chain)), now_us)
            self._joined[space] = self._chain
        op, more = self._write(space, log, draft, now_us)
        return op, effects + more

    def _own_certificate(self, space: bytes, log: SpaceLog) -> tuple[bytes, ...] | None:
        """The certificate of the last own join: a renewed one is a further join in the chain (protocol.md §3)."""
        head = log.head(self._me)
        if head is not None and space not in self._joined:
            records = [log.record(op.id) for op in log.log(self._me, 0, head[0]) if op.kind == OpKind.JOIN]
            self._joined[space] = next((r.cert for r in reversed(records) if isinstance(r, Join)), ())
        return self._joined.get(space)

    def _write(self, space: bytes, log: SpaceLog, draft: Draft, now_us: int) -> tuple[Op, list[Effect]]:
        head = log.head(self._me)
        deps = log.deps_for(self._me, (*draft.named, *draft.votes))
        refs = [log.get(ref) for ref in (*deps, *((head[1],) if head else ()))]
        floor = max([draft.floor - 1, *(op.hlc for op in refs if op is not None)])
        stamp = self._hlc.stamp(self._clock.now_ms(now_us), floor)
        at = Position(
            space, self._jobs.inst, head[0] + 1 if head else 0, head[1] if head else None, deps, stamp
        )  # fmt: skip
        op = make_op(self._keys, KIND_OF[type(draft.record)], at, body_bytes(draft.record), draft.votes)
        # An own stamp may lie ahead of swarm time by eps at most; it is never quarantined here.
        added = log.add(op, swarm_ms=stamp >> 16, verified=True)
        if added.status != "accepted":
            raise Refused(f"own op was not accepted: {added.reason}", hint="see `masos status`")
        self._unsaved.append(op)
        self._untold[op.id] = None
        return op, [Local(SpaceChanged(space, added))]

    def flush(self) -> list[Effect]:
        """Everything written in this step, as one write to disk."""
        if not self._unsaved:
            return []
        ops, self._unsaved = tuple(self._unsaved), []
        return [self._persist(ops, None)]

    def _persist(self, ops: tuple[Op, ...], source: PeerID | None) -> Persist:
        job = self._jobs.next()
        self._saving[job] = _Saving(ops, source)
        # Own ops, and ops whose author gets a receipt for them, survive a power cut; what repair can fetch need not.
        return Persist(job, tuple(OpRow(op, sync=source is None or op.author == source) for op in ops))

    # ---- the machine

    def handle(self, event: object, now_us: int) -> list[Effect]:
        """Ops, receipts, persists and time; everything else is nothing to this machine."""
        match event:
            case Boot():
                return self._on_boot(event, now_us)
            case Linked(peer, hello):
                self._linked[peer] = MESH in hello.features
                return []
            case Unlinked(peer):
                self._linked.pop(peer, None)
                self._charges.forget(peer)
                return []
            case Received(peer, OpBatch(ops)) if peer in self._linked:
                return self.ingest(peer, ops, now_us)
            case Arrived(peer, "ops", items) if peer in self._linked:
                return self._on_arrived(peer, items, now_us)
            case Received(peer, Receipt() as receipt) if peer in self._linked:
                return self._receipts.take(peer, receipt, self._logs.get(receipt.space))
            case JobDone(job, _) if job in self._saving:
                return self._on_saved(self._saving.pop(job))
            case JobFailed(job, error) if job in self._saving:
                del self._saving[job]
                return [Notify("store_failed", error if isinstance(error, StoreError) else StoreError(str(error)))]
            case TimerFired(TimerKey(_, "quarantine", bytes() as space)):
                return self._on_quarantine(space, now_us)
            case TimerFired(TimerKey(_, "own_head")):
                return self._on_own_head_timer(now_us)
            case _:
                return []

    def _on_boot(self, boot: Boot, now_us: int) -> list[Effect]:
        effects: list[Effect] = []
        for space in self._store.spaces():
            log = self._table.open(space)
            for op in self._store.ops(space):
                log.add(op, swarm_ms=op.hlc >> 16, verified=True)
                if op.author == self._me:
                    self._hlc.high_water = max(self._hlc.high_water, op.hlc)
            self._table.loaded(log)
            effects += self._learn(space, Added("accepted", ops=tuple(log.kept())))  # one notice, however many ops
        self._heads.boot(self._table.kept(), now_us, clean=boot.clean)
        return effects + self._own_head_timer(now_us)

    def _own_head_timer(self, now_us: int) -> list[Effect]:
        if not self._heads.pending:
            return []
        return [SetTimer(TimerKey(MACHINE, "own_head"), now_us + self._config.own_head_min_us // 2)]

    def _on_own_head_timer(self, now_us: int) -> list[Effect]:
        self._heads.tick(now_us)
        effects: list[Effect] = []
        for space in self._heads.all():
            agreed = self._heads.settle(space, self._head_seq(space), self._linked, now_us)
            if agreed is not None:
                effects += [Local(SpaceOpened(space)), *([] if agreed else [Count("own_head_unasked")])]
        return effects + self._own_head_timer(now_us)

    def own_head_told(self, space: bytes, peer: PeerID, *, agrees: bool) -> None:
        """A peer said all it knows of the own head (gossip/own_head.py)."""
        self._heads.told(space, peer, agrees=agrees)

    def _head_seq(self, space: bytes) -> int:
        head = self._logs[space].head(self._me) if space in self._logs else None
        return head[0] if head else -1

    def _note_own(self, op: Op, now_us: int) -> list[Effect]:
        known = op.space in self._heads
        self._heads.ahead(op.space, op.seq, now_us)
        return [] if known else self._own_head_timer(now_us)

    # ---- taking

    def ingest(self, source: PeerID, wires: tuple[bytes, ...], now_us: int) -> list[Effect]:
        """Take ops from a peer: what is accepted is told, stored, and receipted when it is the peer's own.

        The peer's own ops that are on disk here already get their receipt again: it asks because it lost the first.
        """
        return self._ingest(source, wires, now_us)[0]

    def _on_arrived(self, source: PeerID, wires: tuple[bytes, ...], now_us: int) -> list[Effect]:
        """Ops that the mesh brought, each judged; those that wait for others are judged once they are accepted."""
        effects, verdicts = self._ingest(source, wires, now_us)
        return [*effects, Local(Judged(TOPIC, tuple(verdicts.items())))]

    def _ingest(
        self, source: PeerID, wires: tuple[bytes, ...], now_us: int
    ) -> tuple[list[Effect], dict[bytes, Verdict]]:
        """(effects, what each message is worth to others)."""
        effects: list[Effect] = []
        verdicts: dict[bytes, Verdict] = {}
        accepted: list[Op] = []
        again: list[Op] = []
        for wire in wires:
            try:
                op = decode_wire_op(wire)
                log = self._table.log_for(op.space)
            except (DecodeError, Refused) as exc:
                effects.append(Count(f"ops_refused_{exc.code}"))
                verdicts[message_id(TOPIC, wire)] = "reject" if isinstance(exc, DecodeError) else "ignore"
                continue
            if not self._may_wait(source, log, op, now_us):
                effects.append(Count("ops_refused_waiting"))
                verdicts[message_id(TOPIC, wire)] = "later"
                continue
            added = log.add(op, swarm_ms=self._clock.now_ms(now_us))
            if added.status in ("duplicate", "rejected"):
                verdicts[message_id(TOPIC, wire)] = "ignore" if added.status == "duplicate" else "reject"
            if added.status == "duplicate" and op.author == source:
                again.append(op)
            effects += [
                *self._doubt_new(source, log, now_us),
                *self._follow(log, added, accepted),
                *self._quarantine_timer(op.space, log, added, now_us),
            ]
            if op.author == self._me and added.status in ("pending", "quarantined"):
                effects += self._note_own(op, now_us)
            if added.missing:
                effects.append(Local(Missing(source, op.space, added.missing)))
        if accepted:
            effects.append(self._persist(tuple(accepted), source))
            verdicts |= {message_id(TOPIC, op.wire()): "accept" for op in accepted}
        return effects + self._receipts_again(source, again), verdicts

    def _receipts_again(self, source: PeerID, ops: list[Op]) -> list[Effect]:
        if not ops or source not in self._linked:
            return []
        in_flight = {op.id for saving in self._saving.values() for op in saving.ops}  # their receipt is still to come
        return self._receipts.give(source, [op for op in ops if op.id not in in_flight and self._keeps(op)])

    def _keeps(self, op: Op) -> bool:
        return self._table.is_kept(op.space) and self._logs[op.space].get(op.id) is not None

    def _doubt_new(self, source: PeerID, log: SpaceLog, now_us: int) -> list[Effect]:
        """A space that the store does not know, soon after boot: the peer may know own ops in it."""
        if not self._heads.new_unsure or log.space in self._logs:
            return []
        self._heads.doubt(log.space, now_us)
        return [Local(HeadUnsure(source, log.space))]

    def _follow(self, log: SpaceLog, added: Added, accepted: list[Op]) -> list[Effect]:
        """What became of an op: ops of a kept space are told and stored, all of them once it becomes kept."""
        if self._table.note(log, waiting=added.status in ("pending", "quarantined")):
            added = replace(added, ops=tuple(log.kept()))
        if not self._table.is_kept(log.space):
            if log.space not in self._logs:
                self._heads.forget(log.space)
            return [Count(f"ops_{added.status}")] if added.status != "accepted" else []
        accepted += added.ops
        return self._learn(log.space, added)

    def _learn(self, space: bytes, added: Added) -> list[Effect]:
        effects: list[Effect] = []
        if added.status in ("rejected", "pending", "quarantined"):
            effects.append(Count(f"ops_{added.status}"))
        if added.ops:
            effects.append(Local(SpaceChanged(space, added)))
            if space == swarm_space(self._genesis.swarm_id):
                denied = [op for op in added.ops if op.kind == OpKind.DENY]
                records = [self._logs[space].record(op.id) for op in denied]
                self._denied |= {
                    record.author for record in records if record is not None and hasattr(record, "author")
                }
        return effects

    def _quarantine_timer(self, space: bytes, log: SpaceLog, added: Added, now_us: int) -> list[Effect]:
        due_ms = log.next_due_ms() if added.status == "quarantined" else None
        if due_ms is None:
            return []
        wait_us = max(0, due_ms - self._clock.now_ms(now_us)) * 1000
        return [SetTimer(TimerKey(MACHINE, "quarantine", space), now_us + wait_us)]

    def _on_quarantine(self, space: bytes, now_us: int) -> list[Effect]:
        log = self._logs.get(space)
        if log is None:
            return []
        accepted: list[Op] = []
        effects = self._follow(log, log.due(self._clock.now_ms(now_us)), accepted)
        if accepted:
            effects.append(self._persist(tuple(accepted), None))
            effects.append(Local(Judged(TOPIC, tuple((message_id(TOPIC, op.wire()), "accept") for op in accepted))))
        due_ms = log.next_due_ms()
        if due_ms is not None:
            wait_us = max(1, due_ms - self._clock.now_ms(now_us)) * 1000
            effects.append(SetTimer(TimerKey(MACHINE, "quarantine", space), now_us + wait_us))
        return effects

    def _may_wait(self, source: PeerID, log: SpaceLog, op: Op, now_us: int) -> bool:
        """False for an op that would have to wait while its source has too much waiting; repair brings it later."""
        due = op.hlc >> 16 <= self._clock.now_ms(now_us)
        if log.settled(op.id) or (due and all(ref in log for ref in op.refs)):
            return True
        return self._charges.charge(source, op, self._logs)

    def _rules(self) -> LogRules:
        return LogRules(
            check_join=self._check_join,
            check_open=self._check_open,
            admins=tuple(sorted(self._genesis.admins)),
            verify=self._verify,
        )

    def _check_join(self, author: bytes, chain: tuple[bytes, ...]) -> tuple[int, int] | None:
        try:
            admission = check_chain(self._genesis, chain, author)
        except DecodeError:
            return None
        return admission.nbf_ms, admission.exp_ms

    def _check_open(self, space: bytes, record: Open) -> bool:
        return task_space(self._genesis.swarm_id, record.by, record.client_key) == space

    # ---- acknowledging

    def _on_saved(self, saved: _Saving) -> list[Effect]:
        for op in saved.ops:
            self._untold.pop(op.id, None)
        effects: list[Effect] = []
        if saved.source is None:
            own = [op for op in saved.ops if op.author == self._me]
            for space, ops in by_space(saved.ops).items():
                ids = tuple(op.id for op in ops if op.author == self._me)
                effects += [Local(Durable(space, ids))] if ids else []
            if own:
                effects.append(Local(Broadcast(TOPIC, tuple(op.wire() for op in own))))
            unmeshed = [peer for peer, meshed in sorted(self._linked.items()) if not meshed]
            return effects + [effect for peer in unmeshed for effect in push(peer, own)]
        if saved.source not in self._linked:
            return []
        return self._receipts.give(saved.source, [op for op in saved.ops if op.author == saved.source])
