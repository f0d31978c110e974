"""The inner loops of the connection: any cutting of the bytes, windows that hold, every way for a stream to end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from hypothesis import given, settings, strategies as st
from libp2p.network.stream.net_stream import NetStream
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from node.mux import ACK, DATA, FIN, HEAD, NOISE_BYTES, PING, RST, SYN, WINDOW_BYTES, WINDOW_UPDATE, SessionBytes
from node.streams import CHUNK_BYTES, LibraryStream
from node.transport_host import Mux
from protocol.errors import PeerUnreachable

START_BYTES = 256 * 1024  # the window with which Yamux begins


# ---- the session


class Known:
    """What a session is mixed into here: it takes what the library's would."""

    def __init__(self, **known: object) -> None:
        self.__dict__.update(known)


class Session(SessionBytes, Known):
    """A session over `Raw`."""


class Reversed:
    """A cipher: the bytes backwards and a tag of 16."""

    def encrypt(self, data: bytes) -> bytes:
        assert len(data) + 16 <= 65_535
        return data[::-1] + bytes(16)

    def decrypt(self, data: bytes) -> bytes:
        assert data[-16:] == bytes(16)
        return data[:-16][::-1]


class Raw:
    """A connection that gives its bytes in the pieces that it is told, and keeps what is written."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self.written: list[bytes] = []

    async def read(self, n: int) -> bytes:
        if not self.pieces:
            return b""
        piece, rest = self.pieces[0][:n], self.pieces[0][n:]
        self.pieces[:1] = [rest] if rest else []
        return piece

    async def write(self, data: bytes) -> None:
        self.written.append(data)


def session(raw: Raw) -> Any:
    async def read_msg() -> bytes:
        raise EOFError("the connection ended")

    packets = SimpleNamespace(read_write_closer=raw)
    return Session(conn=SimpleNamespace(noise_state=Reversed(), read_writer=packets, read_msg=read_msg))


def in_pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [piece for piece in (*pieces, data) if piece]


@given(
    writes=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=8),
    sizes=st.lists(st.integers(1, 200), max_size=20),
    reads=st.lists(st.integers(1, 400), max_size=20),
)
def test_a_session_gives_what_was_written_however_it_is_cut(
    writes: list[bytes], sizes: list[int], reads: list[int]
) -> None:
    async def check() -> None:
        out = Raw([])
        for data in writes:
            await session(out).write(data)
        assert len(out.written) == len(writes), "one write, one system call"
        source, whole = session(Raw(in_pieces(b"".join(out.written), sizes))), b"".join(writes)
        taken = b""
        for size in reads:
            if len(taken) + size > len(whole):
                break
            part = await source.read(size)
            assert len(part) == size
            taken += part
        while len(taken) < len(whole):
            taken += await source.read()
        assert taken == whole
        with pytest.raises(EOFError):
            await source.read(1)

    trio.run(check)


async def test_a_large_write_is_many_messages_in_one_write() -> None:
    raw = Raw([])
    data = bytes(range(256)) * 1024
    await session(raw).write(data)
    (written,) = raw.written
    assert len(written) == len(data) + 18 * -(-len(data) // NOISE_BYTES)
    assert await session(Raw([written])).read(len(data)) == data


async def test_a_message_that_ends_early_is_the_end() -> None:
    raw = Raw([])
    await session(raw).write(b"x" * 100)
    with pytest.raises(EOFError):
        await session(Raw([raw.written[0][:-1]])).read(1)


# ---- the frames


class Secured:
    """An end of a pipe as the session of a Yamux."""

    def __init__(self, stream: Any, *, is_initiator: bool) -> None:
        self._stream = stream
        self._bytes = bytearray()
        self.is_initiator = is_initiator
        self.frames: list[tuple[int, int, int]] = []  # kind, flags, length of what was written

    @property
    def buffered(self) -> int:
        return len(self._bytes)

    async def read(self, n: int) -> bytes:
        while len(self._bytes) < n:
            data = await self._stream.receive_some(65_536)
            if not data:
                raise EOFError
            self._bytes += data
        taken = bytes(self._bytes[:n])
        del self._bytes[:n]
        return taken

    async def write(self, data: bytes) -> None:
        _, kind, flags, _, length = HEAD.unpack_from(data)
        self.frames.append((kind, flags, length))
        await self._stream.send_all(data)

    async def close(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def muxed() -> AsyncIterator[tuple[Any, Any]]:
    """Two ends of a connection."""
    left, right = memory_stream_pair()
    ends = [
        Mux(Secured(stream, is_initiator=first), peer_id="peer") for stream, first in ((left, True), (right, False))
    ]
    async with trio.open_nursery() as nursery:
        for end in ends:
            nursery.start_soon(end.start)
            await end.event_started.wait()
        yield ends[0], ends[1]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Any, Any]]:
    """Two ends of a stream, as the library has them."""
    async with muxed() as (left, right):
        dialled = await left.open_stream()
        accepted = await right.accept_stream()
        yield NetStream(dialled, None, None), NetStream(accepted, None, None)


async def read_all(stream: LibraryStream) -> bytes:
    whole = b""
    while data := await stream.read(10_000):
        whole += data
    return whole


@pytest.mark.parametrize("size", [1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * WINDOW_BYTES + 17])
async def test_bytes_arrive_whole_and_then_the_end(size: int, autojump_clock: MockClock) -> None:
    async with opened() as (near, far), trio.open_nursery() as nursery:
        data = (bytes(range(251)) * (size // 251 + 1))[:size]

        async def send() -> None:
            await LibraryStream(near).write(data)
            await LibraryStream(near).finish()

        nursery.start_soon(send)
        assert await read_all(LibraryStream(far)) == data
        await LibraryStream(far).write(b"the other half is open")
        assert await LibraryStream(near).read(100) == b"the other half is open"


async def test_a_reader_that_rests_stops_the_writer_and_costs_nothing(autojump_clock: MockClock) -> None:
    async with opened() as (near, far), trio.open_nursery() as nursery:
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(40):
                await LibraryStream(near).write(bytes(CHUNK_BYTES))
                sent += CHUNK_BYTES

        nursery.start_soon(send)
        await trio.sleep(20)
        assert START_BYTES - CHUNK_BYTES <= sent <= START_BYTES, "as much as Yamux begins with"
        await LibraryStream(far).read(1)
        await trio.sleep(20)
        assert WINDOW_BYTES - CHUNK_BYTES <= sent <= WINDOW_BYTES + 1, "and then as much as our window"
        assert len(far.muxed_conn.stream_buffers[far.muxed_stream.stream_id]) == sent - 1
        got = 1
        while got < 40 * CHUNK_BYTES:
            got += len(await LibraryStream(far).read(7_000))
    assert sent == got


async def test_credit_is_given_for_half_a_window_and_not_for_each_read(autojump_clock: MockClock) -> None:
    async with opened() as (near, far), trio.open_nursery() as nursery:
        nursery.start_soon(LibraryStream(near).write, bytes(4 * WINDOW_BYTES))
        got = 0
        while got < 4 * WINDOW_BYTES:
            got += len(await LibraryStream(far).read(1_000))
        given = [length for kind, _, length in far.muxed_conn.secured_conn.frames if kind == WINDOW_UPDATE and length]
        assert len(given) <= 9
        window = near.muxed_stream.send_window
        assert WINDOW_BYTES // 2 <= window <= WINDOW_BYTES
        assert window == far.muxed_stream.recv_window, "both ends count the same"


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(1, 200_000), min_size=1, max_size=12), reads=st.integers(1, 300_000))
def test_both_ends_count_the_same_window(sizes: list[int], reads: int) -> None:
    async def check() -> None:
        async with opened() as (near, far), trio.open_nursery() as nursery:

            async def send() -> None:
                for size in sizes:
                    await LibraryStream(near).write(bytes(size))

            nursery.start_soon(send)
            got = 0
            while got < sum(sizes):
                got += len(await LibraryStream(far).read(reads))
            await wait_all_tasks_blocked()
            assert near.muxed_stream.send_window == far.muxed_stream.recv_window >= WINDOW_BYTES // 2

    trio.run(check, clock=MockClock(autojump_threshold=0))


async def test_a_reset_ends_reader_and_writer(autojump_clock: MockClock) -> None:
    async with opened() as (near, far):
        await LibraryStream(near).write(b"x")
        assert await LibraryStream(far).read(10) == b"x"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(raises, lambda: LibraryStream(far).read(10))
            await wait_all_tasks_blocked()
            await near.reset()
        await raises(lambda: LibraryStream(far).write(b"y"))
        await raises(lambda: LibraryStream(near).write(b"y"))
        assert not far.muxed_conn.streams, "nothing of it is left"


async def raises(work: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(PeerUnreachable):
        await work()


async def test_a_writer_without_window_learns_that_the_stream_is_closed(autojump_clock: MockClock) -> None:
    async with opened() as (near, far):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(raises, lambda: LibraryStream(near).write(bytes(WINDOW_BYTES)))
            await wait_all_tasks_blocked()
            await far.reset()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(raises, lambda: LibraryStream(near).write(bytes(WINDOW_BYTES)))
            await near.muxed_conn.close()


async def test_a_cancelled_read_loses_nothing(autojump_clock: MockClock) -> None:
    async with opened() as (near, far):
        with trio.move_on_after(1) as waited:
            await LibraryStream(far).read(10)
        assert waited.cancelled_caught
        await LibraryStream(near).write(b"after")
        assert await LibraryStream(far).read(10) == b"after"


async def test_a_write_that_is_cancelled_before_it_began_writes_nothing(autojump_clock: MockClock) -> None:
    """What is sealed and then not sent would make the peer's cipher fail for all that follows."""
    async with opened() as (near, far):
        before = len(near.muxed_conn.secured_conn.frames)
        with trio.CancelScope() as scope:
            scope.cancel()
            await LibraryStream(near).write(b"never")
        assert scope.cancelled_caught
        assert len(near.muxed_conn.secured_conn.frames) == before
        await LibraryStream(near).write(b"later")
        assert await LibraryStream(far).read(10) == b"later"


# ---- a peer that keeps no rule


@asynccontextmanager
async def against(stranger: Callable[[Secured], Awaitable[None]]) -> AsyncIterator[Any]:
    """Our end of a connection to one who writes frames as he likes."""
    left, right = memory_stream_pair()
    mux = Mux(Secured(left, is_initiator=True), peer_id="peer")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mux.start)
        await mux.event_started.wait()
        await stranger(Secured(right, is_initiator=False))
        await wait_all_tasks_blocked()
        yield mux
        nursery.cancel_scope.cancel()


def frame(kind: int, flags: int, stream_id: int, body: bytes = b"", length: int | None = None) -> bytes:
    return HEAD.pack(0, kind, flags, stream_id, len(body) if length is None else length) + body


BROKEN = {
    "more than the window": frame(DATA, SYN, 2, bytes(START_BYTES)) + frame(DATA, 0, 2, b"x"),
    "more than any window, to nobody": frame(DATA, 0, 4, length=WINDOW_BYTES + 1),
    "another version": HEAD.pack(1, DATA, 0, 2, 0),
    "no kind of frame": HEAD.pack(0, 4, 0, 2, 0),
    "the end": frame(3, 0, 0),
}


@pytest.mark.parametrize("frames", [pytest.param(frames, id=name) for name, frames in BROKEN.items()])
async def test_what_breaks_the_protocol_ends_the_connection(frames: bytes, autojump_clock: MockClock) -> None:
    async with against(lambda peer: peer.write(frames)) as mux:
        assert mux.is_closed
        assert not mux.streams


HARMLESS = {
    "data for a stream that is gone": frame(DATA, 0, 8, b"late"),
    "credit for a stream that is gone": frame(WINDOW_UPDATE, 0, 8, length=10),
    "the end of a stream that is gone": frame(DATA, FIN, 8),
    "an acknowledgement of nothing": frame(WINDOW_UPDATE, ACK, 9),
    "a stream that is reset at once": frame(WINDOW_UPDATE, SYN | RST, 4),
    "a ping": frame(PING, SYN, 0, length=7),
}


@pytest.mark.parametrize("frames", [pytest.param(frames, id=name) for name, frames in HARMLESS.items()])
async def test_what_came_too_late_changes_nothing(frames: bytes, autojump_clock: MockClock) -> None:
    async with against(lambda peer: peer.write(frames + frame(DATA, SYN, 2, b"on"))) as mux:
        stream = await mux.accept_stream()
        assert await LibraryStream(NetStream(stream, None, None)).read(10) == b"on"
        assert list(mux.streams) == [2]


async def test_a_number_that_is_taken_opens_no_second_stream(autojump_clock: MockClock) -> None:
    twice = frame(DATA, SYN, 2, b"first") + frame(DATA, SYN, 2, b"second")
    async with against(lambda peer: peer.write(twice)) as mux:
        stream = await mux.accept_stream()
        assert mux.secured_conn.frames[-1] == (WINDOW_UPDATE, RST, 0)
        assert await mux.take(stream, 100) == b"first"


async def test_an_open_and_an_end_in_one_frame_are_both(autojump_clock: MockClock) -> None:
    async with against(lambda peer: peer.write(frame(DATA, SYN | FIN, 2, b"all"))) as mux:
        stream = LibraryStream(NetStream(await mux.accept_stream(), None, None))
        assert await read_all(stream) == b"all"


async def test_a_body_that_does_not_come_ends_the_connection(autojump_clock: MockClock) -> None:
    async with against(lambda peer: peer.write(frame(DATA, SYN, 2, b"part", length=100))) as mux:
        await trio.sleep(61)
        assert mux.is_closed


async def test_a_ping_is_answered_with_its_number(autojump_clock: MockClock) -> None:
    async with against(lambda peer: peer.write(frame(PING, SYN, 0, length=1234))) as mux:
        assert (PING, ACK, 1234) in mux.secured_conn.frames
