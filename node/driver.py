"""The one place where the machine meets trio: take an event, call `handle`, carry out the effects in order.

One task steps the core, so nothing in it needs a lock. Around it:

- a **writer** applies Persists strictly in order, in one worker thread, several waiting ones in one transaction;
  their `JobDone`s come only after the data is on disk;
- each **job** is a task of its own under a cancel scope: `AbortJob` really stops the engine call;
- **timers** are a heap that the stepping task sleeps on.

Everything is bounded: the inbox (a full one slows its senders), jobs in flight, subscribers' queues (a slow watcher
misses notices, never the state it reads next). A store that fails stops the node: nothing may be acknowledged.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from gossip.events import Leaving
from gossip.reach import InboundLink
from node.clock import Clock
from node.core import ListenAddrs, NodeCore
from node.reach import Outreach
from protocol.errors import DecodeError, EngineError, Refused, RequestTimeout, StoreError, SwarmError
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
    JobProgress,
    JobSpec,
    Local,
    Misbehaved,
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
from protocol.messages import Hello, decode_frame, encode_frame
from protocol.peer import PeerID, short
from protocol.store import Row
from protocol.transport import (
    Lane,
    LinkDialFailed,
    LinkDown,
    LinkFrame,
    LinkUp,
    LinkWritable,
    Transport,
    TransportEvent,
)

log = logging.getLogger("masos.driver")

INBOX_MAX = 4_096
JOBS_MAX = 64
PERSISTS_MAX = 4_096
PERSIST_MERGE_MAX = 64
NOTICES_MAX = 256
SUBSCRIBERS_MAX = 256
SUSPEND_US = 1_000_000  # boot time ahead of awake time by more than this: the machine slept (protocol.md §1)
CLOCK_STEP_US = 100_000
LAG_FADE = 16  # of so many timers in time, each takes a part of the lag that was seen
IDLE_TICK_S = 1.0  # clocks are compared at least this often
DRAIN_S = 3.0  # writes and pushes at stopping
FATAL = frozenset(("store_failed", "identity_clash"))  # topics whose error stops the node

OnProgress = Callable[[int, str], None]
RunJob = Callable[[JobSpec, OnProgress], Awaitable[object]]


class Network(Transport, Outreach, Protocol):
    """A transport that also tells who dialled whom, and tests for others whether they can be reached."""


class Writer(Protocol):
    """The writing half of the store."""

    def apply(self, rows: tuple[Row, ...]) -> None:
        """Write atomically and durably; blocks, raises StoreError."""
        ...


class Driver:
    """Runs one core over one transport, one store and one executor."""

    def __init__(self, core: NodeCore, transport: Network, writer: Writer, run_job: RunJob, clock: Clock) -> None:
        self.core = core
        self._transport = transport
        self._writer = writer
        self._run_job = run_job
        self._clock = clock
        self._inbox_in, self._inbox_out = trio.open_memory_channel[object](INBOX_MAX)
        self._persists_in, self._persists_out = trio.open_memory_channel[Persist](PERSISTS_MAX)
        self._timers: dict[TimerKey, int] = {}
        self._heap: list[tuple[int, int, TimerKey]] = []
        self._ticket = 0
        self._lag_us = 0  # how late timers fire: the most of late, fading
        self._jobs: dict[JobId, trio.CancelScope] = {}
        self._waiting: dict[int, trio.MemorySendChannel[object]] = {}
        self._subscribers: dict[int, tuple[str, trio.MemorySendChannel[tuple[str, object]]]] = {}
        self._unwritten = 0
        self._nursery: trio.Nursery | None = None
        self.failed: SwarmError | None = None

    @asynccontextmanager
    async def run(self, inst: int, *, clean: bool) -> AsyncIterator[None]:
        """A life of the node: links are served while the context is open; leaving it stops in order.

        Raises:
            StoreError: the store failed; the node stopped because of it.
            ConfigError: another node runs with this node's key; this one came second.
        """
        async with self._transport.run(self._hello_bytes), trio.open_nursery() as nursery:
            self._nursery = nursery
            self._boot(inst, clean=clean)
            nursery.start_soon(self._step_loop)
            nursery.start_soon(self._write_loop)
            nursery.start_soon(self._pump_transport)
            try:
                yield
                await self._stop()
            finally:
                nursery.cancel_scope.cancel()
        if self.failed is not None:
            raise self.failed

    def _boot(self, inst: int, *, clean: bool) -> None:
        self._awake_gap_us = self._clock.now_us() - self._clock.awake_us()
        self._wall_offset_us = self._clock.wall_offset_us()
        self._step(Boot(inst, self._wall_offset_us, clean))
        self._step(ListenAddrs(self._transport.listen_addrs()))

    async def _stop(self) -> None:
        now_us = self._clock.now_us()
        await self._inbox_in.send(Stopping(now_us + int(DRAIN_S * 1e6)))
        with trio.move_on_after(DRAIN_S):
            await trio.sleep(0.05)
            while self._unwritten or self._inbox_out.statistics().current_buffer_used:  # noqa: ASYNC110 - two conditions
                await trio.sleep(0.02)
            await self._inbox_in.send(Leaving())
            await trio.sleep(0.2)

    def lag_us(self) -> int:
        """How late this loop runs: the most that a timer was late, fading. A slow loop must not doubt its peers."""
        return self._lag_us

    # ---- asking

    async def ask(self, command: object, timeout_s: float = 30.0) -> object:
        """Give the core a command and wait for its reply.

        Raises:
            SwarmError: the reply is an error.
            RequestTimeout: no reply in time.
        """
        self._ticket += 1
        request_id = self._ticket
        send, receive = trio.open_memory_channel[object](1)
        self._waiting[request_id] = send
        try:
            with trio.fail_after(timeout_s):
                await self._inbox_in.send(Command(request_id, command))
                result = await receive.receive()
        except trio.TooSlowError as exc:
            raise RequestTimeout("the node did not answer in time", hint="see its log; try again") from exc
        finally:
            self._waiting.pop(request_id, None)
        if isinstance(result, SwarmError):
            raise result
        return result

    async def tell(self, event: object) -> None:
        """Give the core an event from the outside (an engine report)."""
        await self._inbox_in.send(event)

    @asynccontextmanager
    async def subscribe(self, prefix: str) -> AsyncIterator[trio.MemoryReceiveChannel[tuple[str, object]]]:
        """Notices whose topic starts with a prefix; a full queue drops them, the state itself is never lost."""
        if len(self._subscribers) >= SUBSCRIBERS_MAX:
            raise Refused("too many watchers on this node", hint="close some and try again")
        self._ticket += 1
        key = self._ticket
        send, receive = trio.open_memory_channel[tuple[str, object]](NOTICES_MAX)
        self._subscribers[key] = (prefix, send)
        try:
            yield receive
        finally:
            del self._subscribers[key]  # before the channel closes: a notice to a closed one would raise in the step
            receive.close()

    # ---- stepping

    async def _step_loop(self) -> None:
        while self.failed is None:
            wait_s = self._next_timer_s()
            event: object | None = None
            with trio.move_on_after(min(wait_s, IDLE_TICK_S)):
                event = await self._inbox_out.receive()
            self._check_clocks()  # a suspend is known before anything that waited through it
            self._fire_timers()
            if event is not None:
                self._step(event)
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()

    def _check_clocks(self) -> None:
        gap = self._clock.now_us() - self._clock.awake_us()
        if gap - self._awake_gap_us > SUSPEND_US:
            self._step(Suspended(gap - self._awake_gap_us))
        self._awake_gap_us = gap
        offset = self._clock.wall_offset_us()
        if abs(offset - self._wall_offset_us) > CLOCK_STEP_US:
            self._wall_offset_us = offset
            self._step(ClockOffset(offset))

    def _next_timer_s(self) -> float:
        while self._heap and self._timers.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # moved or cancelled
        return max(0.0, (self._heap[0][0] - self._clock.now_us()) / 1e6) if self._heap else math.inf

    def _fire_timers(self) -> None:
        while self._next_timer_s() <= 0:
            at_us, _, key = heapq.heappop(self._heap)
            if self._timers.get(key) == at_us:
                del self._timers[key]
                self._lag_us = max(self._clock.now_us() - at_us, self._lag_us - self._lag_us // LAG_FADE)
                self._step(TimerFired(key))

    def _step(self, event: object) -> None:
        for effect in self.core.handle(event, self._clock.now_us()):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(peer, lane, frame, ref):
                if not self._transport.send(peer, lane, encode_frame(frame)):
                    self._later(SendDropped(peer, type(frame).__name__, ref))
            case Dial(info):
                self._transport.connect(info)
            case Hangup(peer, reason):
                self._transport.disconnect(peer, reason)
            case SetTimer(key, at_us):
                self._timers[key] = at_us
                self._ticket += 1
                heapq.heappush(self._heap, (at_us, self._ticket, key))
            case CancelTimer(key):
                self._timers.pop(key, None)
            case Persist():
                self._enqueue(effect)
            case StartJob(job, spec):
                self._start_job(job, spec)
            case AbortJob(job):
                scope = self._jobs.get(job)
                if scope is not None:
                    scope.cancel()
            case Reply(request_id, result):
                waiting = self._waiting.get(request_id)
                if waiting is not None:
                    waiting.send_nowait(result)
            case Notify(topic, value):
                self._notify(topic, value)
            case Local() | Count():
                raise AssertionError("drained inside the core")

    def _later(self, event: object) -> None:
        try:
            self._inbox_in.send_nowait(event)
        except trio.WouldBlock:
            log.warning("inbox full, %s dropped", type(event).__name__)

    def _notify(self, topic: str, value: object) -> None:
        if topic in FATAL and isinstance(value, SwarmError):
            self.failed = value
        for prefix, channel in self._subscribers.values():
            if topic.startswith(prefix):
                try:
                    channel.send_nowait((topic, value))
                except trio.WouldBlock:
                    continue  # the watcher is behind; it reads the whole state at its next notice

    # ---- writing

    def _enqueue(self, persist: Persist) -> None:
        try:
            self._persists_in.send_nowait(persist)
            self._unwritten += 1
        except trio.WouldBlock:
            self.failed = StoreError("the disk is too slow: too many writes wait", hint="check the disk")

    async def _write_loop(self) -> None:
        async for first in self._persists_out:
            batch = [first]
            while len(batch) < PERSIST_MERGE_MAX:
                try:
                    batch.append(self._persists_out.receive_nowait())
                except trio.WouldBlock:
                    break
            rows = tuple(row for persist in batch for row in persist.rows)
            error: StoreError | None = None
            try:
                await trio.to_thread.run_sync(self._writer.apply, rows)
            except StoreError as exc:
                error = exc
                log.error("%s", exc)  # noqa: TRY400 - one line for the operator, the error travels on
            for persist in batch:
                self._unwritten -= 1
                await self._inbox_in.send(JobFailed(persist.job, error) if error else JobDone(persist.job, None))

    # ---- jobs

    def _start_job(self, job: JobId, spec: JobSpec) -> None:
        assert self._nursery is not None
        if len(self._jobs) >= JOBS_MAX:
            self._later(JobFailed(job, EngineError("too much work in flight on this node", hint="try later")))
            return
        scope = self._jobs[job] = trio.CancelScope()
        self._nursery.start_soon(self._job, job, spec, scope)

    async def _job(self, job: JobId, spec: JobSpec, scope: trio.CancelScope) -> None:
        def on_progress(tokens: int, tail: str) -> None:
            self._later(JobProgress(job, tokens, tail))

        event: object | None = None
        with scope:
            try:
                event = JobDone(job, await self._run_job(spec, on_progress))
            except SwarmError as exc:
                event = JobFailed(job, exc)
            except Exception as exc:
                log.exception("job %s failed", type(spec).__name__)
                event = JobFailed(job, EngineError(f"{type(exc).__name__}: {exc}"))
        del self._jobs[job]
        if event is not None:
            await self._inbox_in.send(event)

    # ---- network

    def _hello_bytes(self, peer: PeerID) -> bytes:
        del peer
        return encode_frame(self.core.hello(self._clock.now_us()))

    async def _pump_transport(self) -> None:
        async for event in self._transport.events():
            await self._give(self._translate(event))
            if isinstance(event, LinkUp) and self._transport.accepted(event.peer):
                await self._give(InboundLink(event.peer))

    async def _give(self, event: object) -> None:
        """Into the inbox; who brings more than it holds waits. A task switch for each event would halve the rate."""
        try:
            self._inbox_in.send_nowait(event)
        except trio.WouldBlock:
            await self._inbox_in.send(event)

    def _translate(self, event: TransportEvent) -> object:
        match event:
            case LinkUp(peer, raw):
                return self._on_hello(peer, raw)
            case LinkFrame(peer, lane, raw):
                try:
                    return Received(peer, decode_frame(raw, lane))
                except DecodeError as exc:
                    log.warning("peer %s sent a malformed frame: %s", short(peer), exc)
                    return Misbehaved(peer, exc.message)
            case LinkDown(peer, reason):
                log.info("peer %s down: %s", short(peer), reason)
                return PeerDown(peer, reason)
            case LinkDialFailed(peer, reason):
                return DialFailed(peer, reason)
            case LinkWritable(peer):
                return Writable(peer)

    def _on_hello(self, peer: PeerID, raw: bytes) -> object:
        try:
            hello = decode_frame(raw, Lane.CONTROL)
        except DecodeError as exc:
            return Misbehaved(peer, exc.message)
        if not isinstance(hello, Hello):
            return Misbehaved(peer, "the first frame is not a Hello")
        log.info("peer %s up", short(peer))
        return PeerUp(peer, hello)
