# pyright: basic
"""The two inner loops of the library's connection, rewritten: bytes of a Noise session, frames of Yamux.

Part of the libp2p adapter without importing it, like node/streams.py: node/transport_host.py mixes these classes into
the library's own, which keep all the rest (handshakes, opening, closing and resetting streams, the clean-up). The wire
is unchanged. What is saved [measured: CPU of both ends, a request and its answer, with a swarm key]: 128 B 0.8 ms
before and 0.3 after, 64 KiB 2.3 and 1.2.

- A task switch costs 10 us and more, and every `trio.Lock` that is taken is one, free or not. One frame took 18: a lock
  each for the socket, the streams, the window, the stream's state. Nothing here waits between reading a state
  and changing it, so no lock is needed, but for the one that keeps frames whole on the socket.
- Noise read two bytes of length and then the message, each with a system call and the swarm key's cipher. Here a read
  takes what is there, up to READ_BYTES.
- Every read of a stream was a frame of credit to the peer. Here credit is given once it is half a window.
- Messages of one write leave in one system call; a writer without window is woken by the credit and not by polling.

Bounds: a peer that sends more than its window breaks the protocol and loses the connection, so what lies unread of a
stream is at most WINDOW_BYTES (the library took any amount, and grew the window to 16 MiB). A body that has
begun is whole within BODY_S.

Private, of Yamux: `streams`, `stream_buffers`, `stream_events`, `_write_lock`, `_rtt`, `_ping_event`,
`_ping_sent_time`, `_cleanup_on_error`, `_finalize_stream_locked`; of YamuxStream its fields and
`_auto_tune_and_send_window_update`; of the Noise session `conn.noise_state` and
`conn.read_writer.read_write_closer`; of the socket's stream `read_lock` and `write_lock`. Row 9 of the self-test goes
through them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import nullcontext
from typing import Final

import trio

from node.streams import LibraryObject
from protocol.errors import PeerMisbehaved

READ_BYTES: Final = 64 * 1024
NOISE_BYTES: Final = 65_535 - 16  # of plaintext in one message, beside its tag (Noise, section 3)
UNSENT_BYTES: Final = 128 * 1024  # trio lets 16 KiB wait in the kernel, so that a bulk frame would be five writes
WINDOW_BYTES: Final = 1024 * 1024  # in flight on one stream: 10 MB/s over 100 ms; Yamux begins with 256 KiB
WINDOW_POLL_S: Final = 0.1  # a stream that is closed on this side wakes no writer
BODY_S: Final = 60.0  # as the library

HEAD: Final = struct.Struct("!BBHII")  # version, kind, flags, stream, length
DATA, WINDOW_UPDATE, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8


class SessionBytes:
    """Mixin for the library's SecureSession: whole reads, one system call for a write.

    One task reads and one writes at a time, which Yamux sees to.
    """

    conn: LibraryObject

    def __init__(self, **known: LibraryObject) -> None:
        super().__init__(**known)
        self._noise = self.conn.noise_state
        self._raw = self.conn.read_writer.read_write_closer
        self._sealed = bytearray()
        self._plain = bytearray()
        _tune_socket(self._raw)

    @property
    def buffered(self) -> int:
        """Bytes that a read gives at once."""
        return len(self._plain)

    async def read(self, n: int | None = None) -> bytes:
        """Exactly `n` bytes, or some without `n`. The library's errors, also at the end of the connection."""
        while len(self._plain) < (1 if n is None else n):
            if not self._open_one():
                data = await self._raw.read(READ_BYTES)
                if not data:
                    return bytes(await self.conn.read_msg())  # meets the end as well, and raises what the library does
                self._sealed += data
        if n is None or n == len(self._plain):
            taken, self._plain = bytes(self._plain), bytearray()
            return taken
        taken = bytes(self._plain[:n])
        del self._plain[:n]
        return taken

    def _open_one(self) -> bool:
        """Decrypt the next message, if it is here."""
        if len(self._sealed) < 2:
            return False
        end = 2 + int.from_bytes(self._sealed[:2], "big")
        if len(self._sealed) < end:
            return False
        self._plain += self._noise.decrypt(bytes(self._sealed[2:end]))
        del self._sealed[:end]
        return True

    async def write(self, data: bytes) -> None:
        """All of `data`, in as many messages as it needs."""
        parts: list[bytes] = []
        for start in range(0, len(data), NOISE_BYTES):
            sealed = self._noise.encrypt(data[start : start + NOISE_BYTES])
            parts += (len(sealed).to_bytes(2, "big"), sealed)
        await self._raw.write(b"".join(parts))


def _tune_socket(layer: LibraryObject) -> None:
    """Take the locks off the socket's stream, if a socket is below: a session has one reader and one writer."""
    while layer is not None and not hasattr(layer, "write_lock"):
        layer = getattr(layer, "_conn", None) or getattr(layer, "stream", None)
    if layer is None:
        return
    layer.read_lock = layer.write_lock = nullcontext()
    if hasattr(trio.socket, "TCP_NOTSENT_LOWAT"):
        layer.stream.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


class MuxFrames:
    """Mixin for the library's Yamux: the loop that reads frames, and reads and writes of a stream without locks."""

    secured_conn: LibraryObject
    streams: dict[int, LibraryObject]
    stream_buffers: dict[int, bytearray]
    stream_events: dict[int, trio.Event]
    event_shutting_down: trio.Event
    new_stream_send_channel: LibraryObject
    _write_lock: trio.Lock
    _ping_event: trio.Event
    _ping_sent_time: float
    _rtt: float
    _cleanup_on_error: LibraryObject
    _finalize_stream_locked: LibraryObject
    new_stream: Callable[[int], LibraryObject]  # a stream that the peer opens; from whoever mixes this in

    def __init__(self, *args: LibraryObject, **options: LibraryObject) -> None:
        super().__init__(*args, **options)
        self._credited: dict[int, trio.Event] = {}  # of streams whose writer waits

    def steady(self, stream: LibraryObject) -> LibraryObject:
        """The stream, where the library's own reads give credit by our rule too.

        By theirs, the few bytes that choose a protocol made windows of 4 MiB [measured].
        """

        async def credit(*, bytes_read: int = 0) -> None:
            del bytes_read
            await self._credit(stream, len(self.stream_buffers.get(stream.stream_id, b"")))

        stream._auto_tune_and_send_window_update = credit  # noqa: SLF001 - see the head of the file
        return stream

    # ---- what a stream does

    async def take(self, stream: LibraryObject, bytes_max: int) -> bytes | None:
        """Some bytes of a stream; None once it is ending in whatever way: the library's own read tells how.

        Credit goes first: a caller that is cancelled in it finds the bytes at its next read.
        """
        while not (stream.recv_closed or stream.closed or self.event_shutting_down.is_set()):
            buffer = self.stream_buffers.get(stream.stream_id)
            if buffer is None:
                break
            if buffer:
                size = min(len(buffer), bytes_max)
                await self._credit(stream, len(buffer) - size)
                taken = bytes(buffer[:size])
                del buffer[:size]
                return taken
            if (event := self.stream_events[stream.stream_id]).is_set():
                event = self.stream_events[stream.stream_id] = trio.Event()
            await event.wait()
        return None

    async def _credit(self, stream: LibraryObject, unread: int) -> None:
        """Tell the peer of room. Half a window at a time: what it may send never falls below the other half."""
        room = WINDOW_BYTES - stream.recv_window - unread
        if room * 2 >= WINDOW_BYTES:
            stream.recv_window += room
            await stream.send_window_update(room)

    async def put(self, stream: LibraryObject, data: bytes) -> bool:
        """Send `data` in one frame, for which there must be window; False if the stream takes nothing more."""
        if stream.send_closed or stream.closed or self.event_shutting_down.is_set():
            return False
        stream.send_window -= len(data)
        await self._write_frame(HEAD.pack(0, DATA, 0, stream.stream_id, len(data)) + data)
        return True

    async def window(self, stream: LibraryObject, size: int) -> None:
        """Wait until `size` bytes may be sent, or the stream has closed."""
        try:
            while stream.send_window < size and not stream.closed:
                event = self._credited.setdefault(stream.stream_id, trio.Event())
                with trio.move_on_after(WINDOW_POLL_S):
                    await event.wait()
        finally:
            self._credited.pop(stream.stream_id, None)

    async def _write_frame(self, data: bytes) -> None:
        # Later, a message would be sealed and not sent, and the peer could open none of those that follow.
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self._write_lock.acquire_nowait()  # `async with` would switch tasks
        except trio.WouldBlock:
            await self._write_lock.acquire()
        try:
            await self.secured_conn.write(data)
        finally:
            self._write_lock.release()

    # ---- what comes in

    async def handle_incoming(self) -> None:
        """Read frames until the connection ends; whatever ends it, its streams learn of it."""
        try:
            while not self.event_shutting_down.is_set():
                await self._frame()
        except Exception:  # noqa: BLE001 - the guard of a connection: any class of the library, or a broken frame
            self.event_shutting_down.set()
            await self._cleanup_on_error()

    async def _frame(self) -> None:
        version, kind, flags, stream_id, length = HEAD.unpack(await self.secured_conn.read(HEAD.size))
        if version or kind > GO_AWAY:
            raise PeerMisbehaved(f"no frame of Yamux: version {version}, type {kind}")
        if kind == PING:
            await self._on_ping(flags, length)
        elif kind == GO_AWAY:
            self.event_shutting_down.set()
            await self._cleanup_on_error()
        elif flags & SYN:
            await self._on_opened(kind, flags, stream_id, length)
        elif (stream := self.streams.get(stream_id)) is None:  # closed here, and the peer did not know yet
            await self._discard(kind, length)
        else:
            await self._on_stream(stream, kind, flags, length)

    async def _on_stream(self, stream: LibraryObject, kind: int, flags: int, length: int) -> None:
        """Data or credit for a stream, and its end in that direction or in both."""
        if kind == WINDOW_UPDATE:
            stream.send_window += length
            if (waiting := self._credited.pop(stream.stream_id, None)) is not None:
                waiting.set()
        elif length > stream.recv_window:
            raise PeerMisbehaved(f"{length} bytes, of {stream.recv_window} that it may send")
        elif length:
            stream.recv_window -= length
            body = await self._body(length)
            if (buffer := self.stream_buffers.get(stream.stream_id)) is not None:
                buffer += body
        if kind == DATA or flags & (FIN | RST):
            self._wake(stream, flags)

    def _wake(self, stream: LibraryObject, flags: int) -> None:
        if flags & FIN:
            stream.recv_closed = True
            stream.closed = stream.closed or stream.send_closed
        if flags & RST:
            stream.closed = stream.recv_closed = stream.reset_received = True  # the second: else a read says "ended"
        if (event := self.stream_events.get(stream.stream_id)) is not None:
            event.set()
        if stream.closed:
            self._finalize_stream_locked(stream, fully_closed=True)

    async def _on_opened(self, kind: int, flags: int, stream_id: int, length: int) -> None:
        """The peer opens a stream. One whose number is taken, or that is reset at once, does not come to be."""
        if stream_id in self.streams or flags & RST:
            await self._discard(kind, length)
            if not flags & RST:
                await self._write_frame(HEAD.pack(0, WINDOW_UPDATE, RST, stream_id, 0))
            return
        stream = self.streams[stream_id] = self.steady(self.new_stream(stream_id))
        self.stream_buffers[stream_id] = bytearray()
        self.stream_events[stream_id] = trio.Event()
        await self._on_stream(stream, kind, flags, length)
        await self._write_frame(HEAD.pack(0, WINDOW_UPDATE, ACK, stream_id, 0))
        await self.new_stream_send_channel.send(stream)

    async def _on_ping(self, flags: int, token: int) -> None:
        if flags & SYN:
            await self._write_frame(HEAD.pack(0, PING, ACK, 0, token))
        elif flags & ACK:
            took = trio.current_time() - self._ping_sent_time
            self._rtt = (self._rtt + took) / 2 if self._rtt else took
            self._ping_event.set()

    async def _discard(self, kind: int, length: int) -> None:
        if kind == DATA and length > WINDOW_BYTES:
            raise PeerMisbehaved(f"{length} bytes, more than any stream may send")
        if kind == DATA and length:
            await self._body(length)

    async def _body(self, length: int) -> bytes:
        if self.secured_conn.buffered >= length:
            return bytes(await self.secured_conn.read(length))
        with trio.fail_after(BODY_S):
            return bytes(await self.secured_conn.read(length))
