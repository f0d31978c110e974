# pyright: basic
"""Does the installed library still do what `node.transport` relies on? Rows 1 to 4 of libp2p.md §11.

The daemon runs this at start and exits when it fails; `doctor` and CI run it too. Two hosts on loopback, well under
a second. A new library version starts here: a row that fails names the private attribute to look at.
"""

from __future__ import annotations

import socket
from typing import Final

import trio

from node.streams import LibraryObject
from node.transport import (
    Libp2pTransport,
    build_host,
    build_plaintext_host,
    check_library_version,
    dial,
    guard,
    open_stream,
    run_host,
)
from protocol.errors import ConfigError
from protocol.peer import PeerID, PeerInfo, parse_peer
from protocol.transport import LinkDialFailed, LinkUp

SELF_TEST_S: Final = 20.0
_LOOPBACK: Final = "/ip4/127.0.0.1/tcp/0"
_PROTOCOL: Final = "/masos/selftest/1"


async def self_test() -> None:
    """Check rows 1 to 4.

    Raises:
        ConfigError: the first row that fails, with what it relies on.
    """
    check_library_version()
    with trio.move_on_after(SELF_TEST_S) as deadline:
        await _raising_handlers()
        await _plaintext_refused()
        await _bad_addresses_skipped()
    if deadline.cancelled_caught:
        raise _failed("2-4", f"not done within {SELF_TEST_S:g} s")


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
    async with run_host(server, _LOOPBACK), run_host(client):
        peer, addr = _where(server)
        connection = await dial(client, peer, addr)
        answers = [await _ask(client, connection) for _ in range(3)]
        await connection.close()
    if answers != [b"", b"", b"served"] or len(errors) != 2:
        raise _failed("2", f"answers {answers}, {len(errors)} errors guarded")


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
    async with run_host(server, _LOOPBACK), run_host(client):
        peer, addr = _where(server)
        try:
            await dial(client, peer, addr)
        except Exception:  # noqa: BLE001 - any class of the library means: refused
            return
    raise _failed("3", "a plaintext dialler was accepted")


async def _bad_addresses_skipped() -> None:
    """Row 4, `dial_addr` and `retry_config`: two dead addresses before the good one do not matter."""
    server, client = Libp2pTransport(bytes([1] * 32), (_LOOPBACK,)), Libp2pTransport(bytes([2] * 32), ())
    async with server.run(_hello), client.run(_hello):
        dead = (f"/ip4/127.0.0.1/tcp/{_closed_port()}", f"/ip4/127.0.0.1/tcp/{_closed_port()}")
        client.connect(PeerInfo(server.local_peer, (*dead, *server.listen_addrs())))
        event = await anext(client.events())
    if not isinstance(event, LinkUp):
        reason = event.reason if isinstance(event, LinkDialFailed) else type(event).__name__
        raise _failed("4", reason)


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
