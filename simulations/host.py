"""One simulated machine: node/driver.py's duties, on the heap instead of trio.

It steps one NodeCore per life and carries out its effects in order, with the same bounds as the driver: Persists are
written strictly in order and answered after the durability point; jobs can be aborted; a timer moves when it is set
again; frames are encoded and strictly decoded at the seam; `Suspended` and `ClockOffset` come when the clocks say so;
a stop goes in order and leaves its clean mark.

The machine has its own boot clock (each power-on begins somewhere else), and a wall clock that can be wrong. Its disk
outlives its lives. What a crash loses: memory, jobs, frames, and every write that was not answered; the transaction
in flight is on disk or not, as a seeded coin falls.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from gossip.events import Leaving
from gossip.reach import InboundLink, ReachTest, Reserve
from kernel.commands import EngineReport, Offer
from node.core import ListenAddrs, Membership, NodeCore
from protocol.errors import SwarmError
from protocol.machine import (
    AbortJob,
    Boot,
    CancelTimer,
    ClockOffset,
    Command,
    Count,
    Dial,
    DialFailed,
    Effect,
    Hangup,
    JobDone,
    JobFailed,
    JobId,
    Local,
    Notify,
    PeerDown,
    PeerUp,
    Persist,
    Received,
    Reply,
    Send,
    SendDropped,
    SetTimer,
    StartJob,
    Stopping,
    Suspended,
    TimerFired,
    TimerKey,
    Writable,
)
from protocol.peer import PeerID
from protocol.transport import LinkDialFailed, LinkDown, LinkFrame, LinkUp, LinkWritable, TransportEvent
from simulations.engine import EngineJobs, Ran, ScriptedEngine
from simulations.history import HistoryRow, RowType
from simulations.rng import stream
from simulations.store import DiskConfig, SimDisk
from simulations.world import Ask, Life, World
from simulations.writer import Writer

EPOCH_US: Final = 1_790_000_000_000_000  # wall time at the start of every run
DRAIN_US: Final = 3_000_000
CLOCK_CHECK_US: Final = 1_000_000  # the driver compares its clocks at least this often


class SimHost:
    """A machine that runs a node, on and off.

    Attributes:
        index: its number in the swarm.
        skew_us: how wrong its wall clock is.
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
        self.offer = Offer()  # what its operator says of its agents
        self.turns: list[Ran] = []
        self.asleep = False
        self._world = world
        self._disk_config = disk
        self._disk_factor = 1
        self._rng = stream(world.seed, "host", index)
        self._power_on()
        self._life: Life | None = None
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
        return 0 if self._life is None else self._life.writer.unanswered

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
        writer = Writer(self.disk, self._disk_config, self._rng, later=self._later, answer=self._post)
        writer.factor = self._disk_factor
        self._life = Life(inst, core, transport, jobs, writer)
        transport.open(self._hello)
        self._step(Boot(inst, self.wall_offset_us, clean))
        self._step(ListenAddrs(transport.listen_addrs()))
        if self.engine.config.roles:
            report = EngineReport(self.engine.capabilities(), self.engine.config.roles, self.offer)
            self._later(partial(self._step, report), self.engine.config.boot_us)

    def crash(self, *, power: bool = False) -> None:
        """The process ends at once; with `power` the machine does, and what was not synced may be lost."""
        life = self._life
        assert life is not None, f"node {self.index} is down"
        life.writer.crash()
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

    def slow_disk(self, factor: int) -> None:
        """Writes take so many times their configured time from now on."""
        self._disk_factor = factor
        if self._life is not None:
            self._life.writer.factor = factor

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

    def _carry_out(self, life: Life, effect: Effect) -> None:
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
                life.writer.write(effect)
            case StartJob(job, ReachTest() | Reserve() as spec):
                life.transport.reach_out(spec, partial(self._on_reached, job))
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

    # ---- network

    def _on_reached(self, job: JobId, found: object) -> None:
        event = JobFailed(job, found) if isinstance(found, SwarmError) else JobDone(job, found)
        self._awake(partial(self._step, event))

    def _hello(self, peer: PeerID) -> bytes:
        del peer
        return self._world.codec.encode(self.core.hello(self.now_us))

    def _on_transport(self, event: TransportEvent) -> None:
        match event:
            case LinkUp(peer, raw):
                self._step(self._world.codec.greeting(peer, raw), raw)
                if self._life is not None and self._life.transport.accepted(peer):
                    self._step(InboundLink(peer))
            case LinkFrame(peer, lane, raw):
                self._step(self._world.codec.received(peer, lane, raw), raw)
            case LinkDown(peer, reason):
                self._step(PeerDown(peer, reason))
            case LinkDialFailed(peer, reason):
                self._step(DialFailed(peer, reason))
            case LinkWritable(peer):
                self._step(Writable(peer))


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
