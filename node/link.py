"""One link: its four lane tasks, its end, and the events it emits.

A link ends when a lane breaks or misbehaves, when the peer finishes writing, or by `finish`, which first sends
what is queued. Ending has two steps, so that the last frames arrive: each side finishes writing and reads the
other to the end; only then the connection is closed, which throws away what lies unread.

No error of one link leaves its task: the guard of `_guarded` counts it (P1).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import trio

from node.lanes import ByteStream, FrameReader, Outbox, frame_reader
from protocol.errors import PeerError, PeerMisbehaved
from protocol.peer import PeerID
from protocol.transport import Lane, LinkDown, LinkFrame, LinkUp, LinkWritable, TransportEvent

FLUSH_S: Final = 2.0  # for what is queued, when a link is ended on purpose
LINGER_S: Final = 1.0  # for the other lane or the other side to end as well
CLOSE_S: Final = 2.0  # for a connection to close


class Connection(Protocol):
    """An authenticated connection with a stream per lane, as an adapter gives it."""

    @property
    def peer(self) -> PeerID:
        """The identity that the other side has proved."""
        ...

    @property
    def remote_address(self) -> tuple[str, int] | None:
        """IP address and port at the other end; None when a relay carries the connection."""
        ...

    def stream(self, lane: Lane) -> ByteStream:
        """The stream of a lane."""
        ...

    async def close(self) -> None:
        """Drop the connection; both sides' streams end."""
        ...


class EventSink:
    """Where links put their events and counts.

    Args:
        channel: bounded; while its consumer is slow, `emit` waits, and that wait is the backpressure on peers.
        counters: counted in place.
    """

    def __init__(self, channel: trio.MemorySendChannel[TransportEvent], counters: dict[str, int]) -> None:
        self._channel = channel
        self._counters = counters

    async def emit(self, event: TransportEvent) -> None:
        """Deliver an event; waits for room, and switches tasks only then: what one read brought is told in one go."""
        try:
            self._channel.send_nowait(event)
        except trio.WouldBlock:
            await self._channel.send(event)

    def emit_nowait(self, event: TransportEvent) -> None:
        """Deliver an event if there is room, while all is being torn down."""
        try:
            self._channel.send_nowait(event)
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            return

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter."""
        self._counters[name] += by


@dataclass(frozen=True, slots=True)
class Greeted:
    """A connection whose peer has sent its Hello."""

    conn: Connection
    control: FrameReader
    hello: bytes
    accepted: bool  # the peer dialled


class Link:
    """One link, from its LinkUp to its LinkDown.

    Args:
        sink: takes the events.
        greeted: the connection, whose peer has sent its Hello.
        free: called in the step before the LinkDown is emitted: whoever reads that may `connect` at once.
    """

    def __init__(self, sink: EventSink, greeted: Greeted, free: Callable[[], None]) -> None:
        self.outboxes = {lane: Outbox(lane) for lane in Lane}
        self.accepted = greeted.accepted
        self.done = trio.Event()
        self._sink = sink
        self._free = free
        self._conn = greeted.conn
        self._hello = greeted.hello
        self._readers: dict[Lane, FrameReader] = {
            Lane.CONTROL: greeted.control,
            Lane.BULK: frame_reader(Lane.BULK, greeted.conn.stream(Lane.BULK)),
        }
        self._reason: str | None = None
        self._over = trio.Event()
        self._finishing = trio.Event()
        self._written = {lane: trio.Event() for lane in Lane}
        self._read = {lane: trio.Event() for lane in Lane}
        self._any_read = trio.Event()

    @property
    def conn(self) -> Connection:
        """What carries it."""
        return self._conn

    @property
    def ending(self) -> bool:
        """True once nothing more is sent."""
        return self._over.is_set() or self._finishing.is_set()

    def end(self, reason: str) -> None:
        """End now. The first reason given stays."""
        if self._reason is None:
            self._reason = reason
        self._over.set()

    def finish(self, reason: str) -> None:
        """End after the queues are sent."""
        if self._reason is None:
            self._reason = reason
        for outbox in self.outboxes.values():
            outbox.finish()
        self._finishing.set()

    async def run(self) -> None:
        """Serve the link; emits its LinkUp, its frames and its LinkDown."""
        sink, peer = self._sink, self._conn.peer
        try:
            await sink.emit(LinkUp(peer, self._hello))
        except trio.Cancelled:
            self.done.set()
            raise
        sink.count("links_up")
        try:
            async with trio.open_nursery() as nursery:
                for lane in Lane:
                    nursery.start_soon(self._guarded, partial(self._write_lane, lane))
                    nursery.start_soon(self._guarded, partial(self._read_lane, lane))
                nursery.start_soon(self._wind_up)
                nursery.start_soon(self._linger)
                await self._over.wait()
                nursery.cancel_scope.cancel()
            self._free()
            await sink.emit(LinkDown(peer, self._reason or "closed by the peer"))
        except trio.Cancelled:
            sink.emit_nowait(LinkDown(peer, self._reason or "transport stopped"))
            raise
        finally:
            sink.count("links_down")
            self.done.set()

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except PeerMisbehaved as exc:
            self._sink.count("misbehaved")
            self.end(f"misbehaved: {exc.message}")
        except PeerError as exc:
            self.end(exc.message)
        except Exception as exc:  # noqa: BLE001 - the guard (P1): one link must not end the node
            self._sink.count("handler_errors")
            self.end(f"internal error: {type(exc).__name__}")

    async def _write_lane(self, lane: Lane) -> None:
        outbox, stream = self.outboxes[lane], self._conn.stream(lane)
        while (data := await outbox.take()) is not None:
            await stream.write(data)
            self._sink.count("bytes_sent", len(data))
            if outbox.reopened():
                await self._sink.emit(LinkWritable(self._conn.peer))
        await stream.finish()
        self._written[lane].set()

    async def _read_lane(self, lane: Lane) -> None:
        reader = self._readers[lane]
        while (body := await reader.next()) is not None:
            self._sink.count("frames_received")
            self._sink.count("bytes_received", len(body))
            await self._sink.emit(LinkFrame(self._conn.peer, lane, body))
        self._read[lane].set()
        self._any_read.set()

    async def _wind_up(self) -> None:
        """After `finish`: what is queued, then the peer's end of the streams, each for a bounded time."""
        await self._finishing.wait()
        with trio.move_on_after(FLUSH_S):
            for written in self._written.values():
                await written.wait()
        with trio.move_on_after(LINGER_S):
            for read in self._read.values():
                await read.wait()
        self._over.set()

    async def _linger(self) -> None:
        """The peer ended one lane: leave it a moment to end the other, so that its last frames arrive."""
        await self._any_read.wait()
        with trio.move_on_after(LINGER_S):
            for read in self._read.values():
                await read.wait()
        if not self._finishing.is_set():
            self._over.set()


async def close_quietly(conn: Connection) -> None:
    """Close even while being cancelled, for a bounded time; a failing close has nothing to tell."""
    with trio.move_on_after(CLOSE_S) as scope:
        scope.shield = True
        try:
            await conn.close()
        except PeerError:
            return


async def until_one(*works: Callable[[], Awaitable[None]]) -> None:
    """Run all until one has finished. A peer's error in one is raised as it is, not as a group."""
    failure: PeerError | None = None
    async with trio.open_nursery() as nursery:

        async def run(work: Callable[[], Awaitable[None]]) -> None:
            nonlocal failure
            try:
                await work()
            except PeerError as exc:
                failure = exc
            nursery.cancel_scope.cancel()

        for work in works:
            nursery.start_soon(run, work)
    if failure is not None:
        raise failure
