# pyright: basic, reportMissingImports=false
"""Circuits: connections through a relay, in the messages of circuit relay v2 (libp2p specs, relay/circuit-v2).

One of the three files that import libp2p.
Of the library only the messages and the upgrade of a stream to a connection are used, because its own
`CircuitV2Protocol` of 0.8.1 cannot carry a link:

- RESERVE takes the peer from the message: anybody took a place in another's name [measured]; and anybody may send STOP;
- open circuits are kept by peer: when one of two circuits to a peer closed, the other was reset [measured];
- a limit that is reached is told by a message written into the carried bytes [source, relay/circuit_v2/protocol.py];
- a write waits 5 s for a window and then ends the circuit, so a slow reader loses its link [source];
- STOP goes over `host.new_stream`, which chooses a connection by itself and dials if there is none [source].

What is carried is a connection like any other: the swarm's key, Noise between the two ends, Yamux. The relay has no
part in it but to forward bytes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

import trio

with warnings.catch_warnings():
    # The library imports modules that its own dependencies have deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from libp2p.connection_types import ConnectionType
    from libp2p.custom_types import TProtocol
    from libp2p.io.abc import ReadWriteCloser
    from libp2p.io.exceptions import ConnectionClosedError
    from libp2p.network.connection.raw_connection import RawConnection
    from libp2p.network.exceptions import SwarmException
    from libp2p.peer.id import ID
    from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb
    from libp2p.security.pnet.protector import new_protected_conn
    from multiaddr import Multiaddr as LibraryMultiaddr

from node.lanes import ByteStream
from node.relay import CARRY_BYTES, Places, RelayConfig, carry
from node.streams import LibraryConnection, LibraryObject, LibraryStream, cause, remote_address
from protocol.codec import frame, read_varint
from protocol.errors import PeerError, PeerMisbehaved, PeerUnreachable, Refused
from protocol.peer import Multiaddr, PeerID, parse_peer, peer_text

HOP: Final = TProtocol("/libp2p/circuit/relay/0.2.0/hop")
STOP: Final = TProtocol("/libp2p/circuit/relay/0.2.0/stop")
MESSAGE_BYTES_MAX: Final = 4 * 1024  # ours have about 100; those of other implementations carry vouchers
EXCHANGE_S: Final = 4.0  # for one request and its answer; below the deadline of a dial
PLACE_S_MAX: Final = 24 * 3_600.0  # believed of a relay
DROP_S: Final = 2.0
CIRCUITS_IN_MAX: Final = 64  # that others open to this node through relays


Serve = Callable[[LibraryObject], Awaitable[None]]
Visit = Callable[[Serve, LibraryObject], Awaitable[None]]


class Ways(Protocol):
    """What circuits need of the transport."""

    def link_of(self, peer: PeerID) -> LibraryConnection | None:
        """The connection of the link to a peer, if one is up."""
        ...

    async def dial_direct(self, peer: PeerID, addr: Multiaddr) -> LibraryObject:
        """A library connection to a peer at an address of its own. Raises PeerError."""
        ...

    async def open_stream(self, connection: LibraryObject, protocol: str) -> LibraryObject:
        """A stream on a library connection. Raises PeerError."""
        ...

    async def serve_inbound(self, raw: LibraryObject, addr: LibraryObject) -> None:
        """Secure an accepted raw connection and serve it until it closes."""
        ...


class Circuits:
    """The three parts in a circuit: who dials through a relay, who is reached through one, and the relay.

    Args:
        me: this node.
        network: the library's swarm.
        ways: what the transport does for circuits.
        config: whether this node is a relay, and what it gives.

    Attributes:
        carried_bytes: as a relay, so far.
    """

    def __init__(self, me: PeerID, network: LibraryObject, ways: Ways, config: RelayConfig) -> None:
        self._me = me
        self._network = network
        self._ways = ways
        self._config = config
        self._limits = config.limits
        self._places = Places(config.limits)
        self._relays: dict[PeerID, float] = {}  # where this node has a place, and until when (trio time)
        self._inbound = 0
        self.carried_bytes = 0

    def register(self, host: LibraryObject, visit: Visit) -> None:
        """Serve STOP as a client, HOP as a relay, each stream within `visit`."""
        if self._config.use == "client":
            host.set_stream_handler(STOP, partial(visit, self.on_stop))
        if self._config.use == "serve":
            host.set_stream_handler(HOP, partial(visit, self.on_hop))

    # ---- who dials

    async def dial(self, peer: PeerID, addr: Multiaddr) -> tuple[LibraryObject, LibraryObject | None]:
        """A library connection to `peer` through the relay that `addr` names, and the one to the relay.

        The second is None where the link to the relay is used; else it is the caller's to close, after the first.

        Raises:
            PeerError: the relay or the peer cannot be reached, or refuses.
        """
        assert addr.relay is not None
        link = self._ways.link_of(addr.relay)
        own = await self._ways.dial_direct(addr.relay, addr.base) if link is None else None
        connection = own if link is None else link.swarm_conn
        try:
            stream = await self._ways.open_stream(connection, HOP)
            try:
                ask = pb.HopMessage(type=pb.HopMessage.CONNECT, peer=pb.PeerId(id=_id_of(peer)))
                _check(await _exchange(stream, ask, pb.HopMessage))
                return await self._upgrade(stream, peer, addr), own
            except BaseException:
                await _drop(stream)
                raise
        except BaseException:
            if own is not None:
                await _drop(own)
            raise

    async def _upgrade(self, stream: LibraryObject, peer: PeerID, addr: Multiaddr) -> LibraryObject:
        raw = _raw(stream, str(Multiaddr(addr.host, addr.port, peer, addr.relay)), initiator=True)
        if self._network.psk is not None:
            raw = new_protected_conn(raw, self._network.psk)
        try:
            return await self._network.upgrade_outbound_raw_conn(raw, ID(_id_of(peer)))
        except Exception as exc:
            raise PeerUnreachable(f"through the relay: {cause(exc)}") from exc

    # ---- who is reached

    async def reserve(self, relay: PeerID) -> tuple[str, float]:
        """Take or renew a place at a linked relay: the address to announce, and for how many seconds it holds.

        The address is the one at which this node reached the relay, not one that the relay claims.

        Raises:
            PeerError: no direct link that this node dialled, or the relay refuses.
        """
        link = self._ways.link_of(relay)
        remote = link.remote_address if link is not None else None
        if link is None or remote is None or not link.dialled:
            raise PeerUnreachable("a relay is a peer that this node has dialled and is linked to")
        stream = await self._ways.open_stream(link.swarm_conn, HOP)
        try:
            answer = await _exchange(stream, pb.HopMessage(type=pb.HopMessage.RESERVE), pb.HopMessage)
        finally:
            await _drop(stream)
        _check(answer)
        ttl_s = float(answer.reservation.expire - self._config.wall_s())
        if not 0 < ttl_s <= PLACE_S_MAX:  # the clocks of the two differ, or the relay gives a place for ever
            ttl_s = self._limits.place_s
        self._relays[relay] = trio.current_time() + ttl_s
        return str(Multiaddr(*remote, self._me, relay)), ttl_s

    async def on_stop(self, stream: LibraryObject) -> None:
        """A relay brings a circuit. Runs under the guard, to the end of the circuit."""
        relay = parse_peer(str(stream.muxed_conn.peer_id))
        message = await _read(stream, pb.StopMessage)
        if message.type != pb.StopMessage.CONNECT:
            raise PeerMisbehaved("the first message of a circuit is not CONNECT")
        if self._relays.get(relay, -math.inf) < trio.current_time() or self._inbound >= CIRCUITS_IN_MAX:
            await _tell(stream, pb.StopMessage(type=pb.StopMessage.STATUS, status=pb.PERMISSION_DENIED))
            await _settle(stream)
            return
        source = parse_peer(str(ID(message.peer.id)))
        self._inbound += 1
        try:
            await _tell(stream, pb.StopMessage(type=pb.StopMessage.STATUS, status=pb.OK))
            addr = f"/p2p/{peer_text(relay)}/p2p-circuit/p2p/{peer_text(source)}"
            await self._ways.serve_inbound(_raw(stream, addr, initiator=False), LibraryMultiaddr(addr))
        except SwarmException:
            return  # it closed, or whoever dialled could not prove an identity
        finally:
            self._inbound -= 1
            await _drop(stream)

    # ---- the relay

    async def on_hop(self, stream: LibraryObject) -> None:
        """Somebody wants a place or a circuit. Runs under the guard, to the end of the circuit."""
        peer = parse_peer(str(stream.muxed_conn.peer_id))
        try:
            message = await _read(stream, pb.HopMessage)
            if remote_address(stream.muxed_conn) is None:  # no circuits over circuits
                await _tell(stream, _status(pb.PERMISSION_DENIED))
            elif message.type == pb.HopMessage.RESERVE:
                await self._give_place(peer, stream)
            elif message.type == pb.HopMessage.CONNECT:
                await self._connect(peer, parse_peer(str(ID(message.peer.id))), stream)
            else:
                raise PeerMisbehaved("an answer to nothing")
            await _settle(stream)
        finally:
            await _drop(stream)

    def _admits(self, peer: PeerID) -> bool:
        """Whether circuits are for this peer. A key costs nothing, so to prove one says nothing."""
        admits = self._config.admits
        return self._ways.link_of(peer) is not None if admits is None else admits(peer)

    async def _give_place(self, peer: PeerID, stream: LibraryObject) -> None:
        link = self._ways.link_of(peer)
        if link is None or link.remote_address is None or not self._admits(peer):
            await _tell(stream, _status(pb.PERMISSION_DENIED))
            return
        try:
            ttl_s = self._places.take(peer, trio.current_time())
        except Refused:
            await _tell(stream, _status(pb.RESERVATION_REFUSED))
            return
        answer = _status(pb.OK)
        answer.reservation.expire = self._config.wall_s() + int(ttl_s)
        self._say_limit(answer)
        await _tell(stream, answer)

    async def _connect(self, source: PeerID, target: PeerID, stream: LibraryObject) -> None:
        if not self._admits(source):
            await _tell(stream, _status(pb.PERMISSION_DENIED))
            return
        link = self._ways.link_of(target)
        if link is None or link.remote_address is None or not self._places.holds(target, trio.current_time()):
            await _tell(stream, _status(pb.NO_RESERVATION))
            return
        try:
            with self._places.circuit(source, target):
                await self._carry(source, link, stream)
        except Refused:
            await _tell(stream, _status(pb.RESOURCE_LIMIT_EXCEEDED))

    async def _carry(self, source: PeerID, link: LibraryConnection, stream: LibraryObject) -> None:
        try:
            far = await self._ways.open_stream(link.swarm_conn, STOP)
        except PeerError:
            await _tell(stream, _status(pb.CONNECTION_FAILED))
            return
        try:
            ask = pb.StopMessage(type=pb.StopMessage.CONNECT, peer=pb.PeerId(id=_id_of(source)))
            self._say_limit(ask)
            try:
                _check(await _exchange(far, ask, pb.StopMessage))
            except PeerError:
                await _tell(stream, _status(pb.CONNECTION_FAILED))
                return
            answer = _status(pb.OK)
            self._say_limit(answer)
            await _tell(stream, answer)
            self.carried_bytes += await carry(LibraryStream(stream), LibraryStream(far), self._limits)
        finally:
            await _drop(far)

    def _say_limit(self, message: LibraryObject) -> None:
        message.limit.duration = int(self._limits.duration_s)
        message.limit.data = self._limits.bytes_max


class _CircuitEnd(ReadWriteCloser):
    """A stream in the shape that the library takes for a socket. Errors are what its layers above expect."""

    def __init__(self, stream: LibraryObject) -> None:
        self._stream = stream
        self._bytes = LibraryStream(stream)

    async def read(self, n: int | None = None) -> bytes:
        """Some bytes; empty at the end."""
        try:
            return await self._bytes.read(n if n is not None else CARRY_BYTES)
        except PeerUnreachable as exc:
            raise ConnectionClosedError(exc.message) from exc

    async def write(self, data: bytes) -> None:
        """All of it; waits for room."""
        try:
            await self._bytes.write(data)
        except PeerUnreachable as exc:
            raise ConnectionClosedError(exc.message) from exc

    async def close(self) -> None:
        """End writing; what was written still arrives."""
        with suppress(PeerUnreachable):
            await self._bytes.finish()

    def get_remote_address(self) -> None:
        """None: where the other end is, only the relay knows."""
        return


def _raw(stream: LibraryObject, addr: str, *, initiator: bool) -> LibraryObject:
    return RawConnection(
        stream=_CircuitEnd(stream),
        initiator=initiator,
        connection_type=ConnectionType.RELAYED,
        addresses=[LibraryMultiaddr(addr)],
    )


# ---- messages


async def _exchange(stream: LibraryObject, message: LibraryObject, kind: type[Any]) -> LibraryObject:
    """Ask and read the answer; the deadline makes a silent side a PeerUnreachable."""
    with trio.move_on_after(EXCHANGE_S):
        await _tell(stream, message)
        answer = await _read(stream, kind)
        if answer.type != kind.STATUS:
            raise PeerMisbehaved("the answer to a request is not a status")
        return answer
    raise PeerUnreachable(f"no answer within {EXCHANGE_S:g} s")


async def _tell(stream: LibraryObject, message: LibraryObject) -> None:
    await LibraryStream(stream).write(frame(message.SerializeToString()))


async def _read(stream: LibraryObject, kind: type[Any]) -> LibraryObject:
    """One message, to its exact end: carried bytes may follow.

    Raises:
        PeerMisbehaved: too long, or no message of that kind.
        PeerUnreachable: the stream ended, or nothing came in time.
    """
    with trio.move_on_after(EXCHANGE_S):
        source, head = LibraryStream(stream), b""
        while (parsed := read_varint(head)) is None:
            head += await _some(source, 1)
        length, _ = parsed
        if not 0 < length <= MESSAGE_BYTES_MAX:
            raise PeerMisbehaved(f"a message of {length} bytes")
        body = b""
        while len(body) < length:
            body += await _some(source, length - len(body))
        try:
            return kind.FromString(body)
        except Exception as exc:
            raise PeerMisbehaved(f"not a circuit message: {cause(exc)}") from exc
    raise PeerUnreachable(f"no message within {EXCHANGE_S:g} s")


async def _some(source: ByteStream, bytes_max: int) -> bytes:
    data = await source.read(bytes_max)
    if not data:
        raise PeerUnreachable("the stream ended before the message")
    return data


def _status(code: LibraryObject) -> LibraryObject:
    return pb.HopMessage(type=pb.HopMessage.STATUS, status=code)


def _check(answer: LibraryObject) -> None:
    if answer.status != pb.OK:
        known = answer.status in pb.Status.values()
        raise PeerUnreachable(f"refused: {pb.Status.Name(answer.status).lower() if known else answer.status}")


def _id_of(peer: PeerID) -> bytes:
    return bytes(ID.from_string(peer_text(peer)).to_bytes())


async def _settle(stream: LibraryObject) -> None:
    """Leave the other side the time to read: what it has not read when a stream is reset is lost to it."""
    with trio.move_on_after(DROP_S), suppress(PeerUnreachable):
        await LibraryStream(stream).finish()
        while await LibraryStream(stream).read(MESSAGE_BYTES_MAX):
            continue


async def _drop(thing: LibraryObject) -> None:
    """Reset a stream or close a connection, even while being cancelled; there is nothing left to tell."""
    with trio.move_on_after(DROP_S) as scope:
        scope.shield = True
        with suppress(Exception):
            await (thing.reset() if hasattr(thing, "reset") else thing.close())
