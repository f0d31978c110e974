"""One simulated machine: node/driver.py's duties, on the heap instead of trio.

It steps one NodeCore per life and carries out its effects in order, with the same bounds as the driver: a writer that
applies Persists strictly in order, several waiting ones in one transaction, and answers after the durability point;
jobs that can be aborted; timers that move when they are set again; frames encoded and strictly decoded at the seam;
`Suspended` and `ClockOffset` when the clocks say so; a stop in order, with its clean mark.

The machine has its own boot clock (each power-on begins somewhere else), and a wall clock that can be wrong. Its disk
outlives its lives. What a crash loses: memory, jobs, frames, and every write that was not answered; the transaction
in flight is on disk or not, as a seeded coin falls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from gossip.events import Leaving
from kernel.commands import EngineReport
from node.core import CoreConfig, ListenAddrs, Membership, NodeCore
from protocol.errors import DecodeError, StoreError, SwarmError
from protocol.identity import Verify
from protocol.machine import (
    AbortJob, Boot, CancelTimer, ClockOffset, Command, Count, Dial, DialFailed, Effect, Hangup, JobDone, JobFailed,
    Local, Misbehaved, Notify, PeerDown, PeerUp, Persist, Received, Reply, Send, SendDropped, SetTimer, StartJob,
    Stopping, Suspended, TimerFired, TimerKey, Writable,
)  # fmt: skip
from protocol.messages import Hello
from protocol.peer import PeerID
from protocol.store import Row
from protocol.transport import (
    Lane, LinkDialFailed, LinkDown, LinkFrame, LinkUp, LinkWritable, TransportEvent,
)  # fmt: skip
from simulations.codec import FrameCodec
from simulations.engine import EngineJobs, Ran, ScriptedEngine
from simulations.heap import EventHeap
from simulations.history import History, HistoryRow, RowType
from simulations.network import SimNetwork, SimTransport
from simulations.rng import stream
from simulations.store import DiskConfig, SimDisk, wants_sync

EPOCH_US: Final = 1_790_000_000_000_000  # wall time at the start of every run
PERSIST_MERGE_MAX: Final = 64  # as node/driver.py
PERSISTS_MAX: Final = 4_096
DRAIN_US: Final = 3_000_000
CLOCK_CHECK_US: Final = 1_000_000  # the driver compares its clocks at least this often


@dataclass(slots=True, eq=False)
class Ask:
    """A command to a node and what became of it."""

    node: int
    life: int
    command: object
    at_us: int
    result: object = None
    done: bool = False
    done_us: int = 0

    @property
    def ok(self) -> bool:
        """True once answered, and not with an error."""
        return self.done and not isinstance(self.result, SwarmError)


class Watch(Protocol):
    """What the checkers see of a host."""

    def on_event(self, host: SimHost, event: object) -> None:
        """Before a core takes an event."""
        ...

    def on_effects(self, host: SimHost, effects: list[Effect]) -> None:
        """After it, before they are carried out."""
        ...


@dataclass(frozen=True, slots=True)
class World:
    """What all hosts of a run share."""

    heap: EventHeap
    network: SimNetwork
    history: History
    watch: Watch
    codec: FrameCodec
    verify: Verify
    core: CoreConfig
    seed: int
    build_core: Callable[..., NodeCore] = NodeCore


@dataclass(slots=True, eq=False)
class _Life:
    """What ends with the life of a node."""

    inst: int
    core: NodeCore
    transport: SimTransport
    jobs: EngineJobs
    timers: dict[TimerKey, tuple[int, int]] = field(default_factory=dict)  # key -> (boot time, ticket)
    persists: deque[Persist] = field(default_factory=deque)
    writing: tuple[Persist, ...] = ()
    held: deque[Callable[[], None]] = field(default_factory=deque)
    inbox: deque[object] = field(default_factory=deque)
    stopping: bool = False


class SimHost:
    """A machine that runs a node, on and off.

    Attributes:
        index: its number in the swarm.
        skew_us: how wrong its wall clock is.
        disk_factor: how much slower than configured its disk is.
        turns: every turn that its engine began, in all lives.
        asleep: the machine is suspended.
    """

    def __init__(
        self,
        index: int,
        member: Membership,
        world: World,
        disk: DiskConfig,
        engine: ScriptedEngine,
        *,
        skew_us: int = 0,
    ) -> None:
        self.index = index
        self.member = member
        self.peer = PeerID(member.node.public)
        self.disk = SimDisk()
        self.engine = engine
        self.skew_us = skew_us
        self.disk_factor = 1
        self.turns: list[Ran] = []
        self.asleep = False
        self._world = world
        self._disk_config = disk
        self._rng = stream(world.seed, "host", index)
        self._power_on()
        self._life: _Life | None = None
        self._ticket = 0
        self._asks: dict[int, Ask] = {}

    def _power_on(self) -> None:
        """The boot clock begins anew, at a time of its own."""
        self._boot_shift_us = self._rng.randrange(1, 10**9) - self._world.heap.now_us

    # ---- clocks

    @property
    def now_us(self) -> int:
        """Boot time of this machine."""
        return self._world.heap.now_us + self._boot_shift_us

    @property
    def wall_offset_us(self) -> int:
        """Wall time minus boot time."""
        return EPOCH_US + self.skew_us - self._boot_shift_us

    def set_clock(self, skew_us: int) -> None:
        """Somebody sets the wall clock; the node notices within a second."""
        self.skew_us = skew_us
        if self._life is not None:
            self._later(partial(self._check_clock, self.wall_offset_us), CLOCK_CHECK_US)

    def _check_clock(self, offset_us: int) -> None:
        self._step(ClockOffset(offset_us))

    # ---- lives

    @property
    def up(self) -> bool:
        """True while a life is going on."""
        return self._life is not None

    @property
    def life(self) -> int:
        """The incarnation, 0 while down."""
        return self._life.inst if self._life is not None else 0

    @property
    def core(self) -> NodeCore:
        """The core of the present life."""
        assert self._life is not None, f"node {self.index} is down"
        return self._life.core

    @property
    def unwritten(self) -> int:
        """Persists that are not answered."""
        return 0 if self._life is None else len(self._life.persists) + len(self._life.writing)

    @property
    def jobs_in_flight(self) -> int:
        """Jobs of the present life that are not answered."""
        return 0 if self._life is None else self._life.jobs.in_flight

    def start(self) -> None:
        """Begin the next life on the disk as it is."""
        assert self._life is None, f"node {self.index} is up"
        world = self._world
        inst, clean = self.disk.begin_life()
        world.heap.begin(self.index, inst)
        transport = world.network.transport(self.peer, self._on_transport)
        rng = stream(world.seed, "core", self.index, inst)
        core = world.build_core(self.member, world.core, rng, store=self.disk, verify=world.verify)
        jobs = EngineJobs(self.engine, world.heap, self.index, self._job_event, self.turns)
        self._life = _Life(inst, core, transport, jobs)
        transport.open(self._hello)
        self._step(Boot(inst, self.wall_offset_us, clean))
        self._step(ListenAddrs(transport.listen_addrs()))
        if self.engine.config.roles:
            report = EngineReport(self.engine.capabilities(), self.engine.config.roles)
            self._later(partial(self._step, report), self.engine.config.boot_us)

    def crash(self, *, power: bool = False) -> None:
        """The process ends at once; with `power` the machine does, and what was not synced may be lost."""
        life = self._life
        assert life is not None, f"node {self.index} is down"
        if life.writing and self._rng.random() < 0.5:
            self._apply(life.writing)
        self._end()
        life.transport.kill(power=power)
        life.jobs.kill()
        if power:
            self.disk.cut_power(self._rng)
            self._power_on()

    def stop(self) -> None:
        """The operator stops the node: work is given back, writes are drained, peers hear a goodbye."""
        life = self._life
        assert life is not None, f"node {self.index} is down"
        if life.stopping:
            return
        life.stopping = True
        self._step(Stopping(self.now_us + DRAIN_US))
        self._drain(self._world.heap.now_us + DRAIN_US)

    def _drain(self, deadline_us: int) -> None:
        heap = self._world.heap
        if self.unwritten and heap.now_us < deadline_us:
            self._later(partial(self._drain, deadline_us), 20_000)
            return
        self._step(Leaving())
        self._later(self._close, 200_000)

    def _close(self) -> None:
        life = self._life
        assert life is not None
        life.transport.close()
        self._await_closed()

    def _await_closed(self) -> None:
        life = self._life
        assert life is not None
        if not life.transport.idle:
            self._later(self._await_closed, 20_000)
            return
        clean = not self.unwritten
        self._end()
        life.transport.kill()
        life.jobs.kill()
        if clean:
            self.disk.end_life(life.inst)

    def _end(self) -> None:
        self._life = None
        self.asleep = False
        self._world.heap.end(self.index)
        for ask in self._asks.values():
            self._note(ask, "info", "the node went down")
        self._asks.clear()

    # ---- suspend

    def suspend(self, us: int) -> None:
        """The lid is closed: nothing runs here, the boot clock goes on."""
        life = self._life
        assert life is not None, f"node {self.index} is down"
        if self.asleep:
            return
        self.asleep = True
        life.transport.pause()
        self._world.heap.after(us, partial(self._wake, us), self.index)

    def _wake(self, us: int) -> None:
        life = self._life
        assert life is not None
        self.asleep = False
        self._step(Suspended(us))
        while life.held and self._life is life:
            life.held.popleft()()
        if self._life is life:
            life.transport.resume()

    def _later(self, run: Callable[[], None], wait_us: int) -> None:
        """Run something in this life; while the machine sleeps it waits for the waking."""
        self._world.heap.after(wait_us, partial(self._awake, run), self.index)

    def _post(self, event: object) -> None:
        """Put an event into the inbox, which is first-in first-out whatever order the heap explores."""
        assert self._life is not None
        self._life.inbox.append(event)
        self._later(self._take, 0)

    def _take(self) -> None:
        assert self._life is not None
        self._step(self._life.inbox.popleft())

    def _awake(self, run: Callable[[], None]) -> None:
        assert self._life is not None
        if self.asleep:
            self._life.held.append(run)
        else:
            run()

    # ---- asking

    def ask(self, command: object) -> Ask:
        """Give the node a command; the answer comes with time, or never if the node goes down."""
        assert self._life is not None, f"node {self.index} is down"
        self._ticket += 1
        ask = Ask(self.index, self.life, command, self._world.heap.now_us)
        self._asks[self._ticket] = ask
        self._note(ask, "invoke", repr(command))
        self._post(Command(self._ticket, command))
        return ask

    def _note(self, ask: Ask, kind: RowType, value: str) -> None:
        now_us, name = self._world.heap.now_us, type(ask.command).__name__
        self._world.history.row(HistoryRow(now_us, str(self.index), ask.life, name, kind, value))

    def _on_reply(self, request_id: int, result: object) -> None:
        ask = self._asks.pop(request_id, None)
        if ask is not None:
            ask.result, ask.done, ask.done_us = result, True, self._world.heap.now_us
            self._note(ask, "ok" if ask.ok else "fail", f"{result!r}"[:2000])

    # ---- stepping

    def _step(self, event: object, raw: bytes = b"") -> None:
        life = self._life
        assert life is not None
        world = self._world
        name = f"{type(event).__name__} {_shown(event)}"
        world.history.step(world.heap.now_us, self.index, life.inst, name, raw)
        world.watch.on_event(self, event)
        effects = life.core.handle(event, self.now_us)
        world.watch.on_effects(self, effects)
        for effect in effects:
            if self._life is life:
                self._carry_out(life, effect)

    def _carry_out(self, life: _Life, effect: Effect) -> None:  # noqa: C901, PLR0912 - one branch per effect
        match effect:
            case Send(peer, lane, frame, ref):
                if not life.transport.send(peer, lane, self._world.codec.encode(frame)):
                    self._post(SendDropped(peer, type(frame).__name__, ref))
            case Dial(info):
                life.transport.connect(info)
            case Hangup(peer, reason):
                life.transport.disconnect(peer, reason)
            case SetTimer(key, at_us):
                self._ticket += 1
                life.timers[key] = (at_us, self._ticket)
                self._later(partial(self._fire, key, self._ticket), max(0, at_us - self.now_us))
            case CancelTimer(key):
                life.timers.pop(key, None)
            case Persist():
                self._enqueue(life, effect)
            case StartJob(job, spec):
                life.jobs.start(job, spec)
            case AbortJob(job):
                life.jobs.abort(job)
            case Reply(request_id, result):
                self._on_reply(request_id, result)
            case Notify(topic, _):
                if topic == "store_failed":
                    self.crash()  # nothing may be acknowledged any more: the node ends
            case Local() | Count():
                raise AssertionError("drained inside the core")

    def _fire(self, key: TimerKey, ticket: int) -> None:
        assert self._life is not None
        if self._life.timers.get(key, (0, 0))[1] == ticket:
            del self._life.timers[key]
            self._step(TimerFired(key))

    def _job_event(self, event: object) -> None:
        self._awake(partial(self._step, event))

    # ---- writing

    def _enqueue(self, life: _Life, persist: Persist) -> None:
        assert len(life.persists) < PERSISTS_MAX, "the disk is too slow: too many writes wait"
        life.persists.append(persist)
        if not life.writing:
            self._write(life)

    def _write(self, life: _Life) -> None:
        batch = [life.persists.popleft() for _ in range(min(PERSIST_MERGE_MAX, len(life.persists)))]
        life.writing = tuple(batch)
        config = self._disk_config
        wait_us = config.write_us + self._rng.randrange(config.jitter_us + 1)
        if wants_sync(_rows(life.writing)):
            wait_us += config.sync_us
        self._later(self._written, wait_us * self.disk_factor)

    def _apply(self, batch: tuple[Persist, ...]) -> StoreError | None:
        try:
            self.disk.apply(_rows(batch))
        except StoreError as exc:
            return exc
        return None

    def _written(self) -> None:
        life = self._life
        assert life is not None
        batch, life.writing = life.writing, ()
        error = self._apply(batch)
        for persist in batch:
            self._post(JobDone(persist.job, None) if error is None else JobFailed(persist.job, error))
        if life.persists:
            self._write(life)

    # ---- network

    def _hello(self, peer: PeerID) -> bytes:
        del peer
        return self._world.codec.encode(self.core.hello(self.now_us))

    def _on_transport(self, event: TransportEvent) -> None:
        match event:
            case LinkUp(peer, raw):
                self._step(self._greeting(peer, raw), raw)
            case LinkFrame(peer, lane, raw):
                try:
                    taken: object = Received(peer, self._world.codec.decode(raw, lane))
                except DecodeError as exc:
                    taken = Misbehaved(peer, exc.message)
                self._step(taken, raw)
            case LinkDown(peer, reason):
                self._step(PeerDown(peer, reason))
            case LinkDialFailed(peer, reason):
                self._step(DialFailed(peer, reason))
            case LinkWritable(peer):
                self._step(Writable(peer))

    def _greeting(self, peer: PeerID, raw: bytes) -> object:
        try:
            hello = self._world.codec.decode(raw, Lane.CONTROL)
        except DecodeError as exc:
            return Misbehaved(peer, exc.message)
        return PeerUp(peer, hello) if isinstance(hello, Hello) else Misbehaved(peer, "the first frame is not a Hello")


def _rows(batch: tuple[Persist, ...]) -> tuple[Row, ...]:
    return tuple(row for persist in batch for row in persist.rows)


def _shown(event: object) -> str:
    """An event in a line; frames are told by kind, their bytes go into the digest apart."""
    match event:
        case Received(peer, frame):
            return f"{peer.hex()[:8]} {type(frame).__name__}"
        case PeerUp(peer, _):
            return peer.hex()[:8]
        case TimerFired(key):
            return f"{key.machine}/{key.what} {key.ref.hex()[:8] if isinstance(key.ref, bytes) else key.ref}"
        case _:
            return repr(event)
