"""Who gets the link, and when it ends: the link table over in-memory connections, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio
from hypothesis import given, strategies as st
from trio.testing import MemoryReceiveStream, MemorySendStream, MockClock, memory_stream_one_way_pair

from node.dialer import Dialer
from node.lanes import FRAME_STALL_S
from node.link import EventSink
from node.links import HOLD_S, LinkTable
from node.transport import COUNTERS
from protocol.codec import frame
from protocol.errors import PeerError, PeerUnreachable
from protocol.peer import Multiaddr, PeerID, PeerInfo
from protocol.transport import (
    HELLO_TIMEOUT_S,
    Lane,
    LinkDialFailed,
    LinkDown,
    LinkFrame,
    LinkUp,
    TransportEvent,
)

SMALL, LARGE = PeerID(b"\x01" * 32), PeerID(b"\x02" * 32)
ADDRESS = "/ip4/127.0.0.1/tcp/4001"
QUIET_S = 30.0  # long enough for every deadline of an opening to pass


class MemoryStream:
    """A ByteStream over trio's memory streams."""

    def __init__(self, send: MemorySendStream, receive: MemoryReceiveStream) -> None:
        self._send, self._receive = send, receive

    async def read(self, bytes_max: int) -> bytes:
        try:
            return bytes(await self._receive.receive_some(bytes_max))
        except (trio.ClosedResourceError, trio.BrokenResourceError) as exc:
            raise PeerUnreachable("connection lost") from exc

    async def write(self, data: bytes) -> None:
        try:
            await self._send.send_all(data)
        except (trio.ClosedResourceError, trio.BrokenResourceError) as exc:
            raise PeerUnreachable("connection lost") from exc

    async def finish(self) -> None:
        self._send.close()

    def break_off(self) -> None:
        self._send.close()
        self._receive.close()


@dataclass
class MemoryConnection:
    """One side of a connection."""

    peer: PeerID
    dialled_by: PeerID
    streams: dict[Lane, MemoryStream]
    closed: trio.Event = field(default_factory=trio.Event)
    remote_address: tuple[str, int] | None = ("127.0.0.1", 4001)

    def stream(self, lane: Lane) -> MemoryStream:
        return self.streams[lane]

    async def close(self) -> None:
        for stream in self.streams.values():
            stream.break_off()
        self.closed.set()


def connection(dialler: PeerID, listener: PeerID) -> tuple[MemoryConnection, MemoryConnection]:
    """The two sides: the dialler's and the listener's."""
    near: dict[Lane, MemoryStream] = {}
    far: dict[Lane, MemoryStream] = {}
    for lane in Lane:
        (to_far, at_far), (to_near, at_near) = memory_stream_one_way_pair(), memory_stream_one_way_pair()
        near[lane], far[lane] = MemoryStream(to_far, at_near), MemoryStream(to_near, at_far)
    return MemoryConnection(listener, dialler, near), MemoryConnection(dialler, dialler, far)


class Side:
    """A link table with its events."""

    def __init__(self, peer: PeerID, nursery: trio.Nursery) -> None:
        send, self.received = trio.open_memory_channel[TransportEvent](1000)
        self.peer = peer
        self.nursery = nursery
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.table = LinkTable(peer, lambda _peer: b"hello of %d" % peer[0], EventSink(send, self.counters))
        self.up: list[MemoryConnection] = []

    def events(self) -> list[TransportEvent]:
        events = []
        while self.received.statistics().current_buffer_used:
            events.append(self.received.receive_nowait())
        return events

    async def accept(self, conn: MemoryConnection) -> None:
        """What the adapter does with a connection: the guard is its own."""
        try:
            await self.table.run_accepted(conn)
        except PeerError:
            self.counters["misbehaved"] += 1

    def dial(self, other: Side, latency: float) -> None:
        """Dial with a Dialer whose connection takes `latency` to come about."""

        async def open_connection(_peer: PeerID, _addr: Multiaddr) -> MemoryConnection:
            await trio.sleep(latency)
            near, far = connection(self.peer, other.peer)
            other.nursery.start_soon(other.accept, far)
            self.up.append(near)
            return near

        dialer = Dialer(self.table, open_connection, lambda _addr: False)
        dialer.connect(PeerInfo(other.peer, (ADDRESS,)), self.nursery)


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Side, Side]]:
    async with trio.open_nursery() as nursery:
        yield Side(SMALL, nursery), Side(LARGE, nursery)
        nursery.cancel_scope.cancel()


def in_virtual_time(work: Callable[[], object]) -> None:
    trio.run(work, clock=MockClock(autojump_threshold=0))  # type: ignore[arg-type]


def kinds(events: list[TransportEvent]) -> list[type[object]]:
    return [type(event) for event in events]


@given(st.floats(0, 4), st.floats(0, 4), st.floats(0, 2))
def test_simultaneous_dials_give_one_link_on_both_sides(small_s: float, large_s: float, head_s: float) -> None:
    """Whatever the latencies: one LinkUp each, no failure; the smaller's connection when it comes in time."""

    async def run() -> None:
        async with pair() as (small, large):
            large.dial(small, large_s)
            await trio.sleep(head_s)
            small.dial(large, small_s)
            await trio.sleep(QUIET_S)
            assert kinds(small.events()) == [LinkUp]
            assert kinds(large.events()) == [LinkUp]
            alive = [conn for conn in (*small.up, *large.up) if not conn.closed.is_set()]
            assert len(alive) == 1
            if head_s < large_s and abs(head_s + small_s - large_s) < HOLD_S / 2:
                assert alive[0].dialled_by == SMALL
            assert small.table.send(LARGE, Lane.CONTROL, b"one way")
            assert large.table.send(SMALL, Lane.BULK, b"other way")
            await trio.sleep(1)
            assert large.events() == [LinkFrame(SMALL, Lane.CONTROL, b"one way")]
            assert small.events() == [LinkFrame(LARGE, Lane.BULK, b"other way")]

    in_virtual_time(run)


async def test_who_was_dialled_knows_it_unless_a_relay_carries_the_link(autojump_clock: MockClock) -> None:
    async with pair() as (small, large):
        assert not large.table.accepted(SMALL)
        assert large.table.connection(SMALL) is None
        small.dial(large, 0)
        await trio.sleep(1)
        assert (small.table.accepted(LARGE), large.table.accepted(SMALL)) == (False, True)
        conn = large.table.connection(SMALL)
        assert isinstance(conn, MemoryConnection)
        conn.remote_address = None
        assert not large.table.accepted(SMALL)


async def test_the_arbiter_lets_a_restarted_peer_replace_its_stale_link(autojump_clock: MockClock) -> None:
    """The larger side forgets its link without a word; its new connection is taken after HOLD_S."""
    async with pair() as (small, large):
        small.dial(large, 0)
        await trio.sleep(1)
        small.events()
        reborn = Side(LARGE, large.nursery)
        reborn.dial(small, 0)
        await trio.sleep(HOLD_S + 0.5)
        assert small.events() == [
            LinkDown(LARGE, "replaced by a newer connection"),
            LinkUp(LARGE, b"hello of 2"),
        ]
        assert kinds(reborn.events()) == [LinkUp]


async def test_a_restarted_arbiter_replaces_the_stale_link_at_once(autojump_clock: MockClock) -> None:
    async with pair() as (small, large):
        small.dial(large, 0)
        await trio.sleep(1)
        large.events()
        reborn = Side(SMALL, small.nursery)
        reborn.dial(large, 0)
        await trio.sleep(0.1)
        assert large.events() == [
            LinkDown(SMALL, "replaced by a newer connection"),
            LinkUp(SMALL, b"hello of 1"),
        ]
        assert kinds(reborn.events()) == [LinkUp]


async def test_a_listener_that_says_no_hello_fails_the_dial(autojump_clock: MockClock) -> None:
    async with pair() as (small, large):
        for side, other in ((small, large), (large, small)):
            other.accept = trio.sleep_forever  # type: ignore[method-assign, assignment]
            near, _far = connection(side.peer, other.peer)

            async def open_connection(
                _peer: PeerID, _addr: Multiaddr, near: MemoryConnection = near
            ) -> MemoryConnection:
                return near

            Dialer(side.table, open_connection, lambda _addr: False).connect(
                PeerInfo(other.peer, (ADDRESS,)), side.nursery
            )
            await trio.sleep(HELLO_TIMEOUT_S + 1)
            (failed,) = side.events()
            assert isinstance(failed, LinkDialFailed)
            assert "no Hello" in failed.reason
            assert near.closed.is_set()
            assert not side.table.busy(other.peer)


async def test_a_begun_frame_must_come_to_its_end(autojump_clock: MockClock) -> None:
    """A quiet stream is fine for an hour; half a frame is not for a minute."""
    async with pair() as (small, large):
        near, far = connection(LARGE, SMALL)
        small.nursery.start_soon(small.accept, far)
        await near.stream(Lane.CONTROL).write(frame(b"raw"))
        await trio.sleep(3600)
        assert kinds(small.events()) == [LinkUp]
        await near.stream(Lane.BULK).write(frame(bytes(1000))[:500])
        await trio.sleep(FRAME_STALL_S - 1)
        assert not small.events()
        await trio.sleep(2)
        (down,) = small.events()
        assert isinstance(down, LinkDown)
        assert down.reason.startswith("misbehaved")
        assert far.closed.is_set()
        assert large.events() == []


async def test_a_connect_in_answer_to_link_down_is_a_new_dial(autojump_clock: MockClock) -> None:
    """The slot is free before LinkDown can be read, however slow the closing is."""
    async with pair() as (small, large):
        for _ in range(5):
            small.dial(large, 0)
            assert isinstance(await small.received.receive(), LinkUp)
            await trio.sleep(0.01)
            large.table.disconnect(SMALL, "again")
            assert isinstance(await small.received.receive(), LinkDown)


async def test_disconnect_gives_up_a_dial_with_an_event(autojump_clock: MockClock) -> None:
    async with pair() as (small, large):
        small.dial(large, 3)
        await trio.sleep(1)
        small.table.disconnect(LARGE, "no longer wanted")
        await trio.sleep(10)
        assert small.events() == [LinkDialFailed(LARGE, "given up")]
        assert large.events() == []


async def test_a_peer_cannot_hold_many_openings(autojump_clock: MockClock) -> None:
    """Openings of one peer beyond HELD_MAX are closed at once while a link is up."""
    async with pair() as (small, large):
        small.dial(large, 0)
        await trio.sleep(1)
        extra = [connection(LARGE, SMALL) for _ in range(6)]
        for near, far in extra:
            small.nursery.start_soon(small.accept, far)
            await near.stream(Lane.CONTROL).write(frame(b"again"))
        await trio.sleep(HOLD_S / 2)
        assert sum(far.closed.is_set() for _near, far in extra) == 4
