# pyright: basic
"""Does the installed library still do what `node.transport` relies on? Rows 1 to 4 of libp2p.md §11, and row 9.

The daemon runs this before each start, unless `[node] self_test` is off, and exits with the first row that fails; the
suite runs it too. Two hosts on loopback a row, 1.3 s in all [measured, 2 cores]. A new version of the library starts
here: a row that fails says what to look at.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from node.lanes import ByteStream
from node.mux import HEAD, PING, SYN, WINDOW_BYTES, MuxFrames, SessionBytes
from node.streams import LibraryObject, LibraryStream
from node.transport import Libp2pTransport
from node.transport_host import (
    build_host,
    build_plaintext_host,
    check_library_version,
    dial,
    guard,
    open_stream,
    run_host,
)
from protocol.errors import ConfigError
from protocol.peer import Multiaddr, PeerID, PeerInfo, parse_peer
from protocol.transport import LinkDialFailed, LinkUp

ROW_S: Final = 30.0  # a busy machine is no broken library
_LOOPBACK: Final = "/ip4/127.0.0.1/tcp/0"
_PROTOCOL: Final = "/masos/selftest/1"
_KEY: Final = bytes(range(32))


async def self_test() -> None:
    """Check rows 1 to 4 and 9.

    Raises:
        ConfigError: the first row that fails, with what it relies on.
    """
    check_library_version()
    for row, check in (
        ("2", _raising_handlers), ("3", _plaintext_refused), ("4", _bad_addresses_skipped), ("9", _inner_loops),
    ):  # fmt: skip
        with trio.move_on_after(ROW_S) as deadline:
            try:
                await check()
            except ConfigError:
                raise
            except Exception as exc:
                # The guard of the self-test: whatever class an attribute that is gone raises, the row has failed.
                raise _failed(row, f"{type(exc).__name__}: {exc}") from exc
        if deadline.cancelled_caught:
            raise _failed(row, f"not done within {ROW_S:g} s")


def _failed(row: str, what: str) -> ConfigError:
    return ConfigError(f"libp2p self-test, row {row}: {what}", hint="install the pinned versions (constraints.txt)")


async def _raising_handlers() -> None:
    """Row 2, `common_stream_handler` and `set_stream_handler`: the guard holds, the next stream is served."""
    errors: list[Exception] = []
    server, client = build_host(bytes([1] * 32), None, _no_addresses), build_host(bytes([2] * 32), None, _no_addresses)
    guard(server, errors.append)
    calls = 0

    async def handler(stream: LibraryObject) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("planted")
        if calls == 2:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_raise)
        await stream.write(b"served")
        await stream.close_write()

    server.set_stream_handler(_PROTOCOL, handler)
    async with _running(server, _LOOPBACK), _running(client):
        peer, addr = _where(server)
        connection = await dial(client, peer, addr)
        answers = [await _ask(client, connection) for _ in range(3)]
        await connection.close()
    if answers != [b"", b"", b"served"] or len(errors) != 2:
        raise _failed("2", f"answers {answers}, {len(errors)} errors guarded")


@asynccontextmanager
async def _running(host: LibraryObject, *listen: str) -> AsyncIterator[None]:
    """A host that runs within; the end of its run leaves its listeners open, so it is closed first."""
    async with run_host(host, *listen):
        yield
        await host.close()


async def _ask(client: LibraryObject, connection: LibraryObject) -> bytes:
    """What a handler answers; nothing when it reset the stream."""
    try:
        stream = await open_stream(client, connection, _PROTOCOL)
        return bytes(await stream.read(64))
    except Exception:  # noqa: BLE001 - any class of the library means: no answer
        return b""


async def _plaintext_refused() -> None:
    """Row 3, `sec_opt`: who offers no encryption gets no connection."""
    server, client = build_host(bytes([1] * 32), None, _no_addresses), build_plaintext_host(bytes([2] * 32))
    async with _running(server, _LOOPBACK), _running(client):
        peer, addr = _where(server)
        try:
            await dial(client, peer, addr)
        except Exception:  # noqa: BLE001 - any class of the library means: refused
            return
    raise _failed("3", "a plaintext dialler was accepted")


async def _bad_addresses_skipped() -> None:
    """Row 4, `dial_addr` and `retry_config`: two dead addresses before the good one do not matter.

    And the socket below a connection is found: whom a node dials back depends on it (`remote_address`).
    """
    server, client = Libp2pTransport(bytes([1] * 32), (_LOOPBACK,)), Libp2pTransport(bytes([2] * 32), ())
    async with server.run(_hello), client.run(_hello):
        dead = (f"/ip4/127.0.0.1/tcp/{_closed_port()}", f"/ip4/127.0.0.1/tcp/{_closed_port()}")
        client.connect(PeerInfo(server.local_peer, (*dead, *server.listen_addrs())))
        event = await anext(client.events())
        link = client.link_of(server.local_peer)
        remote = link.remote_address if link is not None else None
        listening = Multiaddr.parse(server.listen_addrs()[0])
    if isinstance(event, LinkUp) and remote != (listening.host, listening.port):
        raise _failed("4", f"the other end of the socket is {remote}, not {listening}")
    if not isinstance(event, LinkUp):
        reason = event.reason if isinstance(event, LinkDialFailed) else type(event).__name__
        raise _failed("4", reason)


async def _inner_loops() -> None:
    """Row 9, the attributes that node/mux.py names: more than a window goes there and back, a ping, both ends.

    Through the swarm key, whose connection lies between the Noise session and the socket.
    """
    server, client = build_host(bytes([1] * 32), _KEY, _no_addresses), build_host(bytes([2] * 32), _KEY, _no_addresses)

    async def echo(stream: LibraryObject) -> None:
        lane = LibraryStream(stream)
        while data := await lane.read(WINDOW_BYTES):
            await lane.write(data)
        await lane.finish()

    server.set_stream_handler(_PROTOCOL, echo)
    async with _running(server, _LOOPBACK), _running(client):
        peer, addr = _where(server)
        connection = await dial(client, peer, addr)
        muxed = connection.muxed_conn
        if not isinstance(muxed, MuxFrames) or not isinstance(muxed.secured_conn, SessionBytes):
            raise _failed("9", f"the connection is a {type(muxed).__name__} over a {type(muxed.secured_conn).__name__}")
        stream = await open_stream(client, connection, _PROTOCOL)
        if stream.muxed_stream.recv_window > WINDOW_BYTES:
            raise _failed("9", f"the library has grown the window to {stream.muxed_stream.recv_window} bytes")
        echoed = await _echoed(LibraryStream(stream), bytes(range(256)) * (WINDOW_BYTES // 128))
        await muxed._write_frame(HEAD.pack(0, PING, SYN, 0, 7))  # noqa: SLF001 - what is checked here
        await muxed._ping_event.wait()  # noqa: SLF001
        await connection.close()
    if not echoed:
        raise _failed("9", "what came back is not what went out")


async def _echoed(stream: ByteStream, data: bytes) -> bool:
    async def send() -> None:
        await stream.write(data)
        await stream.finish()

    back = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        while some := await stream.read(WINDOW_BYTES):
            back += some
    return back == data


def _where(host: LibraryObject) -> tuple[PeerID, str]:
    return parse_peer(str(host.get_id())), str(host.get_transport_addrs()[0])


def _closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _no_addresses(_candidates: object) -> list[LibraryObject]:
    return []


def _hello(_peer: PeerID) -> bytes:
    return b"self-test"


async def _raise() -> None:
    raise RuntimeError("planted")
