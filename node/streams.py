# pyright: basic
"""Library streams and connections in the shape that the link table takes.

Part of the libp2p adapter without importing it: the objects come from `node.transport`, their types stay inside.
Every foreign exception ends here; the library raises from a dozen unrelated classes (yamux, noise, trio, its own),
so the translations catch Exception and name the cause.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import trio

from node.lanes import ByteStream
from protocol.errors import PeerUnreachable
from protocol.peer import PeerID
from protocol.transport import Lane

LibraryObject: TypeAlias = Any  # untyped on purpose: the adapter is checked by its self-test and its tests

WRITE_STALL_S: Final = 60.0  # a peer that takes nothing for so long has no use for the link
CHUNK_BYTES: Final = 96 * 1024  # of one Yamux frame: 64 KiB of payload leave whole, CONTROL waits for no more


def cause(exc: BaseException) -> str:
    """What lies at the bottom of a library exception, in one short line."""
    while (deeper := exc.exceptions[0] if isinstance(exc, BaseExceptionGroup) else exc.__cause__) is not None:
        exc = deeper
    if isinstance(exc, OSError) and exc.strerror:  # without its number, and the address that trio puts before it
        return exc.strerror.rpartition(": ")[2].lower()[:160]
    text = str(exc).splitlines()
    return (text[0] if text and text[0] else type(exc).__name__)[:160]


def remote_address(muxed: LibraryObject) -> tuple[str, int] | None:
    """IP address and port at the other end of the socket below a connection; None if a relay carries it.

    The library's own answer is None for IPv6 too: it takes socket names of two parts only. So the socket is asked,
    below whatever lies on it: Noise, the swarm key, the raw connection.
    """
    layer = muxed.secured_conn.conn
    for name in ("read_writer", "read_write_closer"):
        layer = getattr(layer, name)
    while (below := getattr(layer, "_conn", None) or getattr(layer, "stream", None)) is not None:
        layer = below
    if not hasattr(layer, "getpeername"):
        layer = getattr(layer, "socket", None)
    try:
        host, port, *_ = layer.getpeername() if layer is not None else ("", 0)
    except OSError:  # it is closed
        return None
    return (str(host), int(port)) if host else None


class LibraryStream:
    """A library stream as a ByteStream.

    While a stream is open, its bytes go past the layers of the library (node/mux.py). Once it ends, in whatever way,
    the library's own read and write say how, and do their bookkeeping.
    """

    def __init__(self, stream: LibraryObject) -> None:
        self._stream = stream
        self._muxed = stream.muxed_stream
        self._conn = stream.muxed_conn

    async def read(self, bytes_max: int) -> bytes:
        """See ByteStream."""
        try:
            data = await self._conn.take(self._muxed, bytes_max)
            return data if data is not None else bytes(await self._stream.read(bytes_max))
        except EOFError:  # the library's StreamEOF is one
            return b""
        except Exception as exc:
            raise PeerUnreachable(f"connection lost: {cause(exc)}") from exc

    async def write(self, data: bytes) -> None:
        """See ByteStream.

        Yamux gives up a write that gets no window for 5 s, which would make a slow consumer cost the link. So
        each chunk waits for its window here, for WRITE_STALL_S.
        """
        for start in range(0, len(data), CHUNK_BYTES):
            chunk = data[start : start + CHUNK_BYTES]
            if self._muxed.send_window < len(chunk):
                with trio.move_on_after(WRITE_STALL_S) as stall:
                    await self._conn.window(self._muxed, len(chunk))
                if stall.cancelled_caught:
                    raise PeerUnreachable(f"the peer took nothing for {WRITE_STALL_S:g} s")
            try:
                if not await self._conn.put(self._muxed, chunk):
                    await self._stream.write(chunk)
            except Exception as exc:
                raise PeerUnreachable(f"connection lost: {cause(exc)}") from exc

    async def finish(self) -> None:
        """See ByteStream."""
        try:
            await self._stream.close_write()
        except Exception as exc:
            raise PeerUnreachable(f"connection lost: {cause(exc)}") from exc


class LibraryConnection:
    """A library connection with its two lanes as a Connection; `below` is one that carries only this one."""

    def __init__(
        self, peer: PeerID, swarm_conn: LibraryObject, streams: dict[Lane, ByteStream], below: LibraryObject = None
    ) -> None:
        self._peer = peer
        self._swarm_conn = swarm_conn
        self._streams = streams
        self._below = below

    @property
    def peer(self) -> PeerID:
        """See Connection."""
        return self._peer

    @property
    def swarm_conn(self) -> LibraryObject:
        """What the library knows it by."""
        return self._swarm_conn

    @property
    def dialled(self) -> bool:
        """True at the side that opened it."""
        return bool(self._swarm_conn.muxed_conn.is_initiator)

    @property
    def remote_address(self) -> tuple[str, int] | None:
        """See Connection."""
        return remote_address(self._swarm_conn.muxed_conn)

    def stream(self, lane: Lane) -> ByteStream:
        """See Connection."""
        return self._streams[lane]

    async def close(self) -> None:
        """See Connection."""
        try:
            await self._swarm_conn.close()
            if self._below is not None:
                await self._below.close()
        except Exception as exc:
            raise PeerUnreachable(f"connection lost: {cause(exc)}") from exc
