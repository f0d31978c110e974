"""One lane of one link: frames out of a bounded queue, frames in from a byte stream.

Rules of the file:

- A queue is bounded by frames and by bytes. `offer` answers at once; what does not fit is the caller's.
- Queued frames leave in order, as many as fit WRITE_BYTES in one write: a write costs a system call and a task
  switch below us, whatever its size, and its reader as much.
- Two readers: CONTROL reads what is there and cuts it; BULK reads the exact rest of a frame into a buffer that is
  allocated once, after the length has passed the cap (case W1), because frames of 256 KiB come in several reads.
- A frame that has begun must be whole within FRAME_STALL_S. Between frames a stream may be silent for ever.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final, Protocol

import trio

from protocol.codec import FrameBuffer, frame, read_varint
from protocol.errors import DecodeError, PeerMisbehaved, PeerUnreachable
from protocol.transport import FRAME_BYTES_MAX, QUEUE_FRAMES_MAX, Lane

WRITE_BYTES: Final = 64 * 1024  # frames are joined up to this many bytes per write
QUEUE_BYTES_MAX: Final = {Lane.CONTROL: 4 * 1024 * 1024, Lane.BULK: 32 * 1024 * 1024}  # per peer
FRAME_STALL_S: Final = 15.0  # a begun frame of 256 KiB needs 17 KiB/s; slower is not worth a link
READ_BYTES: Final = 64 * 1024
HEAD_BYTES: Final = 4 * 1024  # a bulk read for a head also takes small frames whole


class ByteStream(Protocol):
    """An ordered stream of bytes in both directions, as an adapter gives it.

    All methods raise PeerUnreachable when the connection below is gone.
    """

    async def read(self, bytes_max: int) -> bytes:
        """Some bytes, at least one and at most `bytes_max`; empty at the peer's end of writing."""
        ...

    async def write(self, data: bytes) -> None:
        """All of `data`; waits while the peer takes none."""
        ...

    async def finish(self) -> None:
        """End writing; the peer still reads what was written before."""
        ...


class Outbox:
    """The bounded queue of one lane towards one peer."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._finished = False
        self._full = False
        self._wake = trio.Event()

    def __len__(self) -> int:
        return len(self._frames)

    def offer(self, body: bytes) -> bool:
        """Queue a frame of 1 to the cap's bytes; False when there is no room or the lane is finished."""
        if self._finished:
            return False
        room = QUEUE_BYTES_MAX[self._lane] - self._bytes
        if len(self._frames) >= QUEUE_FRAMES_MAX or len(body) > room:
            self._full = True
            return False
        self._frames.append(body)
        self._bytes += len(body)
        self._wake.set()
        return True

    def finish(self) -> None:
        """Take nothing more; `take` gives what is queued and then None."""
        self._finished = True
        self._wake.set()

    async def take(self) -> bytes | None:
        """The next write: one frame, or several that together stay within WRITE_BYTES; None at the end."""
        while not self._frames:
            if self._finished:
                return None
            self._wake = trio.Event()
            await self._wake.wait()
        parts = [self._pop()]
        size = len(parts[0])
        while self._frames and size + len(self._frames[0]) + 3 <= WRITE_BYTES:
            parts.append(self._pop())
            size += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _pop(self) -> bytes:
        body = self._frames.popleft()
        self._bytes -= len(body)
        return frame(body)

    def reopened(self) -> bool:
        """True once after the queue refused a frame and has since drained to half."""
        half = len(self._frames) * 2 <= QUEUE_FRAMES_MAX and self._bytes * 2 <= QUEUE_BYTES_MAX[self._lane]
        if self._full and half and not self._finished:
            self._full = False
            return True
        return False


class FrameReader(Protocol):
    """Whole frames of a stream, one at a time."""

    async def next(self) -> bytes | None:
        """The next frame; None when the peer ended writing between two frames.

        Raises:
            PeerMisbehaved: the framing is broken, or a begun frame stalled.
            PeerUnreachable: the stream broke, or ended inside a frame.
        """
        ...


def frame_reader(lane: Lane, stream: ByteStream) -> FrameReader:
    """The reader that suits the lane's frames."""
    if lane is Lane.CONTROL:
        return BufferedReader(stream, FRAME_BYTES_MAX[lane])
    return ExactReader(stream, FRAME_BYTES_MAX[lane])


class BufferedReader:
    """Many small frames per read."""

    def __init__(self, stream: ByteStream, bytes_max: int) -> None:
        self._stream = stream
        self._buffer = FrameBuffer(bytes_max)
        self._ready: deque[bytes] = deque()

    async def next(self) -> bytes | None:
        """See FrameReader."""
        deadline = math.inf
        while not self._ready:
            if self._buffer.partial and deadline == math.inf:
                deadline = trio.current_time() + FRAME_STALL_S
            data = await _read(self._stream, READ_BYTES, deadline)
            if not data:
                if self._buffer.partial:
                    raise PeerUnreachable("stream ended inside a frame")
                return None
            self._ready.extend(self._buffer.feed(data))
        return self._ready.popleft()


class ExactReader:
    """Large frames, each read to its exact end into one allocation."""

    def __init__(self, stream: ByteStream, bytes_max: int) -> None:
        self._stream = stream
        self._bytes_max = bytes_max
        self._head = bytearray()

    async def next(self) -> bytes | None:
        """See FrameReader."""
        deadline = trio.current_time() + FRAME_STALL_S if self._head else math.inf
        while (parsed := read_varint(self._head)) is None:
            data = await _read(self._stream, HEAD_BYTES, deadline)
            if not data:
                if self._head:
                    raise PeerUnreachable("stream ended inside a frame")
                return None
            self._head += data
            deadline = min(deadline, trio.current_time() + FRAME_STALL_S)
        length, start = parsed
        if not 0 < length <= self._bytes_max:
            raise DecodeError(f"frame length {length} is outside 1..{self._bytes_max}")
        body = bytearray(length)
        filled = min(length, len(self._head) - start)
        body[:filled] = self._head[start : start + filled]
        del self._head[: start + filled]
        while filled < length:
            data = await _read(self._stream, length - filled, deadline)
            if not data:
                raise PeerUnreachable("stream ended inside a frame")
            body[filled : filled + len(data)] = data
            filled += len(data)
        return bytes(body)


async def _read(stream: ByteStream, bytes_max: int, deadline: float) -> bytes:
    with trio.move_on_at(deadline):
        return await stream.read(bytes_max)
    raise PeerMisbehaved(f"a begun frame was not whole within {FRAME_STALL_S:g} s")
