"""A few nodes made of the gossip machines alone, wired through real frames in virtual time.

Every frame is encoded, checked against its lane and decoded again, as on a wire. A write is answered PERSIST_US
later, unless `hold_writes` keeps it. `cut` says which frames are lost on the way, `full` which find no room in
the queue of their link, which the sender hears of.
"""

from __future__ import annotations

import copy
import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, TypeVar

from gossip.config import GossipConfig
from gossip.context import Context
from gossip.links import Links
from gossip.record_map import RecordMap
from gossip.repair import Repair
from gossip.replication import Draft, Replication
from protocol import versions
from protocol.admission import CERT_LIFE_MS_MAX, MEMBER, Genesis, issue
from protocol.clock import SwarmClock
from protocol.identity import KeyPair, verify_raw
from protocol.machine import (
    Boot,
    Count,
    Dial,
    Effect,
    Hangup,
    JobDone,
    JobFailed,
    JobIds,
    Local,
    Notify,
    PeerDown,
    PeerUp,
    Persist,
    Received,
    Send,
    SendDropped,
    SetTimer,
    TimerFired,
    TimerKey,
)
from protocol.messages import LANE_OF, Frame, Hello, decode_frame, encode_frame
from protocol.op import Op, Position, make_op
from protocol.peer import PeerID
from protocol.records import KIND_OF, Join, Record, Unit, body_bytes
from protocol.store import MetaRow, OpRow, ReceiptRow, RecordGone, RecordRow, Row
from protocol.transport import FRAME_BYTES_MAX
from tests.strategies import keypair

NOW_MS = 1_700_000_000_000
PERSIST_US = 1_000
LATENCY_US = 2_000
SPACE = b"s" * 16
ADMIN = keypair("admin")
GENESIS = Genesis(name="test", creator=ADMIN.public, admins=(ADMIN.public,), created_ms=NOW_MS - 1000)
verify = lru_cache(maxsize=1 << 16)(verify_raw)
T = TypeVar("T")


def seconds(amount: float) -> int:
    return int(amount * 1_000_000)


@cache
def chain_of(keys: KeyPair, nbf_ms: int = NOW_MS - 86_400_000) -> tuple[bytes, ...]:
    """A certificate chain of one link."""
    return (issue(ADMIN, GENESIS.swarm_id, keys.public, (MEMBER,), (nbf_ms, nbf_ms + CERT_LIFE_MS_MAX)),)


def hello(keys: KeyPair, **changes: Any) -> Hello:
    """The Hello of a good peer, with some of its fields changed."""
    fields: dict[str, Any] = {
        "wire_min": versions.WIRE_MIN, "wire_max": versions.WIRE_MAX, "swarm_id": GENESIS.swarm_id,
        "cert_chain": chain_of(keys), "inst": 1, "wall_ms": NOW_MS, "derive_vers": versions.DERIVE_VERSIONS,
        "roles": (MEMBER,), "listen_addrs": (), "features": (), **changes,
    }  # fmt: skip
    return Hello(**fields)


Loss = Callable[[str, str, Frame], bool]  # (source, target, frame)


def losing(*kinds: type[Any], source: str | None = None) -> Loss:
    """Loses frames of these kinds, or all of one node if none is named."""
    return lambda who, _target, frame: (not kinds or isinstance(frame, kinds)) and source in (None, who)


def losing_nothing(_source: str, _target: str, _frame: Frame) -> bool:
    return False


class MemoryStore:
    """A StoreReader over what was applied."""

    def __init__(self) -> None:
        self._ops: dict[bytes, Op] = {}
        self._records: dict[tuple[bytes, bytes], bytes] = {}
        self._meta: dict[str, bytes] = {}
        self.receipt_rows: list[ReceiptRow] = []

    def apply(self, rows: tuple[Row, ...]) -> None:
        for row in rows:
            match row:
                case OpRow(op):
                    self._ops[op.id] = op
                case RecordRow(publisher, key, wire):
                    self._records[publisher, key] = wire
                case RecordGone(publisher, key):
                    self._records.pop((publisher, key), None)
                case MetaRow(key, value):
                    self._meta[key] = value
                case ReceiptRow():
                    self.receipt_rows.append(row)
                case _:
                    raise AssertionError(row)

    def backup(self) -> MemoryStore:
        return copy.deepcopy(self)

    def meta(self, key: str) -> bytes | None:
        return self._meta.get(key)

    def spaces(self) -> list[bytes]:
        return sorted({op.space for op in self._ops.values()})

    def ops(self, space: bytes) -> Iterator[Op]:
        found = [op for op in self._ops.values() if op.space == space]
        return iter(sorted(found, key=lambda op: (op.hlc, op.id)))

    def records(self) -> Iterator[bytes]:
        return iter([self._records[slot] for slot in sorted(self._records)])

    def receipts(self, op_id: bytes) -> list[tuple[bytes, int]]:
        return sorted({(row.holder, row.level) for row in self.receipt_rows if row.op_id == op_id})

    def seal_vote(self, _space: bytes) -> bytes | None:
        return None

    def holds(self, op_id: bytes) -> bool:
        return op_id in self._ops


class Node:
    """One node: the four machines, stepped as node/core.py steps them."""

    def __init__(self, name: str, config: GossipConfig, store: MemoryStore, chain: tuple[bytes, ...] | None) -> None:
        self.name = name
        self.keys = keypair(name)
        self.me = PeerID(self.keys.public)
        self.store = store
        self.jobs = JobIds()
        self.clock = SwarmClock(0)
        self.chain = chain_of(self.keys) if chain is None else chain
        ctx = Context(self.keys, GENESIS, self.chain, self.clock, config, self.jobs, store=store, verify=verify)
        rng = random.Random(name)
        self.links = Links(self.me, GENESIS, self.clock, config, rng)
        self.records = RecordMap(ctx, random.Random(3))
        self.replication = Replication(ctx)
        self.repair = Repair(self.me, self.replication, config, rng)
        self.machines: dict[str, Any] = {
            "links": self.links, "records": self.records, "replication": self.replication, "repair": self.repair,
        }  # fmt: skip
        self.counters: Counter[str] = Counter()
        self.told: list[object] = []  # every Local event, in order
        self.notices: list[tuple[str, object]] = []

    def boot(self, inst: int, *, clean: bool, offset_us: int) -> list[Effect]:
        self.jobs.start(inst)
        self.clock.set_wall_offset(offset_us)
        return self.handle(Boot(inst, offset_us, clean), 0)

    def handle(self, event: object, now_us: int) -> list[Effect]:
        out: list[Effect] = []
        queue: deque[object] = deque([event])
        while queue:
            event = queue.popleft()
            if isinstance(event, TimerFired):
                found = self.machines[event.key.machine].handle(event, now_us)
            else:
                found = [effect for machine in self.machines.values() for effect in machine.handle(event, now_us)]
            self.links.denied = self.replication.denied
            for effect in found:
                match effect:
                    case Local(inner):
                        self.told.append(inner)
                        queue.append(inner)
                    case Count(name, n):
                        self.counters[name] += n
                    case _:
                        out.append(effect)
        return out + self.replication.flush()

    def heard(self, kind: type[T]) -> list[T]:
        """The Local events of one kind so far."""
        return [event for event in self.told if isinstance(event, kind)]

    def digest(self, space: bytes = SPACE) -> bytes | None:
        log = self.replication.log(space)
        return log.digest() if log is not None else None


@dataclass(frozen=True, slots=True)
class _Arrival:
    source: str
    frame: Frame


@dataclass(slots=True)
class World:
    """The network, the disks and the clock."""

    config: GossipConfig = field(default_factory=GossipConfig)
    now_us: int = 0
    nodes: dict[str, Node] = field(default_factory=dict)
    cut: Loss = losing_nothing
    full: Loss = losing_nothing
    idle: frozenset[str] = frozenset()  # machines whose timers never fire, for runs of hours
    hold_writes: set[str] = field(default_factory=set)
    held: list[tuple[str, Persist]] = field(default_factory=list)
    sent: list[tuple[str, str, Frame]] = field(default_factory=list)
    dials: list[tuple[str, Dial]] = field(default_factory=list)
    links: set[tuple[str, str]] = field(default_factory=set)
    _agenda: list[tuple[int, int, str, object]] = field(default_factory=list)
    _timers: dict[tuple[str, TimerKey], int] = field(default_factory=dict)
    _ticket: int = 0

    def add(
        self,
        name: str,
        *,
        store: MemoryStore | None = None,
        inst: int = 1,
        clean: bool = True,
        wall_off_ms: int = 0,
        chain: tuple[bytes, ...] | None = None,
    ) -> Node:
        """Start a node, also again after `stop`."""
        node = self.nodes[name] = Node(name, self.config, store or MemoryStore(), chain)
        offset_us = (NOW_MS + wall_off_ms) * 1000
        node.jobs.start(inst)
        node.clock.set_wall_offset(offset_us)
        self._carry_out(name, node.handle(Boot(inst, offset_us, clean), self.now_us))
        return node

    def stop(self, name: str) -> MemoryStore:
        """The node is gone at once; its disk stays. Nothing that was on its way to it arrives."""
        for other in list(self.nodes):
            self.unlink(name, other)
        self._agenda = [entry for entry in self._agenda if entry[2] != name]
        heapq.heapify(self._agenda)
        self._timers = {key: at for key, at in self._timers.items() if key[0] != name}
        return self.nodes.pop(name).store

    def link(self, a: str, b: str) -> None:
        self.links |= {(a, b), (b, a)}
        for one, other in ((a, b), (b, a)):
            node = self.nodes[other]
            greeting = hello(
                node.keys, cert_chain=node.chain, inst=node.jobs.inst, wall_ms=node.clock.wall_ms(self.now_us)
            )
            self.tell(one, PeerUp(node.me, greeting))

    def unlink(self, a: str, b: str, reason: str = "cut") -> None:
        if (a, b) in self.links:
            self.links -= {(a, b), (b, a)}
            self.tell(a, PeerDown(self.nodes[b].me, reason))
            self.tell(b, PeerDown(self.nodes[a].me, reason))

    def tell(self, name: str, event: object) -> None:
        """Give a node an event now."""
        self._carry_out(name, self.nodes[name].handle(event, self.now_us))

    def give(self, name: str, source: str, frame: Frame) -> None:
        """Give a node a frame as if a linked peer had sent it."""
        self.tell(name, Received(PeerID(keypair(source).public), frame))

    def write(self, name: str, record: Record, space: bytes = SPACE, **draft: Any) -> Op:
        node = self.nodes[name]
        op, effects = node.replication.append(space, Draft(record, **draft), self.now_us)
        out: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Local):
                node.told.append(effect.event)
                out += node.handle(effect.event, self.now_us)
            else:
                out.append(effect)
        self._carry_out(name, out + node.replication.flush())
        return op

    def run(self, us: int) -> None:
        """Let virtual time pass."""
        until = self.now_us + us
        while self._agenda and self._agenda[0][0] <= until:
            at_us, _, name, event = heapq.heappop(self._agenda)
            self.now_us = max(self.now_us, at_us)
            if name not in self.nodes:
                continue
            match event:
                case TimerKey():
                    if self._timers.get((name, event)) == at_us:
                        del self._timers[name, event]
                        self.tell(name, TimerFired(event))
                case Persist(job, rows):
                    self.nodes[name].store.apply(rows)
                    self.tell(name, JobDone(job, None))
                case _Arrival(source, frame):
                    if (source, name) in self.links:
                        self.tell(name, Received(self.nodes[source].me, frame))
                case SendDropped():
                    self.tell(name, event)
                case _:
                    raise AssertionError(event)
        self.now_us = until

    def release(self, name: str, error: Any = None) -> None:
        """Answer the writes that `hold_writes` kept back, in order."""
        mine, self.held = [p for n, p in self.held if n == name], [entry for entry in self.held if entry[0] != name]
        for persist in mine:
            if error is None:
                self.nodes[name].store.apply(persist.rows)
                self.tell(name, JobDone(persist.job, None))
            else:
                self.tell(name, JobFailed(persist.job, error))

    def frames(self, kind: type[T], source: str | None = None) -> list[T]:
        """Frames of one kind that were sent so far."""
        return [frame for who, _, frame in self.sent if isinstance(frame, kind) and source in (None, who)]

    # ---- the outside

    def _at(self, at_us: int, name: str, event: object) -> None:
        self._ticket += 1
        heapq.heappush(self._agenda, (at_us, self._ticket, name, event))

    def _name_of(self, peer: PeerID) -> str | None:
        return next((name for name, node in self.nodes.items() if node.me == peer), None)

    def _carry_out(self, name: str, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(peer, lane, frame, ref):
                    raw = encode_frame(frame)
                    assert LANE_OF[type(frame)] is lane
                    assert len(raw) <= FRAME_BYTES_MAX[lane], type(frame).__name__
                    target = self._name_of(peer)
                    if target is None or (name, target) not in self.links or self.full(name, target, frame):
                        self._at(self.now_us, name, SendDropped(peer, type(frame).__name__, ref))
                        continue
                    if self.cut(name, target, frame):
                        continue
                    self.sent.append((name, target, frame))
                    self._at(self.now_us + LATENCY_US, target, _Arrival(name, decode_frame(raw, lane)))
                case SetTimer(key, at_us) if key.machine not in self.idle:
                    self._timers[name, key] = at_us
                    self._at(at_us, name, key)
                case Persist():
                    if name in self.hold_writes:
                        self.held.append((name, effect))
                    else:
                        self._at(self.now_us + PERSIST_US, name, effect)
                case SetTimer():
                    pass
                case Dial():
                    self.dials.append((name, effect))
                case Hangup(peer, reason):
                    target = self._name_of(peer)
                    if target is not None:
                        self.unlink(name, target, reason)
                case Notify(topic, value):
                    self.nodes[name].notices.append((topic, value))
                case _:
                    raise AssertionError(effect)


# ---- ops of authors that no node speaks for


def unit(text: str) -> Unit:
    return Unit(agent="agent", role="role", content=text)


def op_by(
    keys: KeyPair,
    seq: int,
    prev: Op | None,
    deps: tuple[Op, ...] = (),
    *,
    record: Record | None = None,
    at_ms: int = NOW_MS,
    space: bytes = SPACE,
) -> Op:
    """A signed op at any place of an author's chain; the first is a join."""
    if record is None:
        record = Join(cert=chain_of(keys)) if prev is None else unit(f"{seq}")
    refs = (*deps, *(() if prev is None else (prev,)))
    hlc = max([at_ms << 16, *(op.hlc + 1 for op in refs)])
    at = Position(space, 1, seq, prev.id if prev else None, tuple(op.id for op in deps), hlc)
    return make_op(keys, KIND_OF[type(record)], at, body_bytes(record))


def chain_by(keys: KeyPair, count: int, *, text: str = "", space: bytes = SPACE, at_ms: int = NOW_MS) -> list[Op]:
    """A chain of `count` ops of one author."""
    ops: list[Op] = []
    for seq in range(count):
        record = unit(f"{text}{seq}") if seq else None
        ops.append(op_by(keys, seq, ops[-1] if ops else None, record=record, space=space, at_ms=at_ms))
    return ops
