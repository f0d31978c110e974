# pyright: basic, reportMissingImports=false
"""Libp2pTransport: the seam of `protocol.transport` over py-libp2p 0.8.1, TCP with Noise and Yamux only.

With node/transport_host.py and node/transport_relay.py the only file that imports libp2p. They give the link table
(node/links.py) authenticated connections with two byte streams and nothing else of the library: no DHT, no
pub/sub, no peerstore, no auto-connector. What the library gets wrong is put right here or in the host, each point in
one place (P numbers: libp2p.md §2):

- P1: every inbound stream runs under a guard; `host.run` survives a raising handler.
- P3: security is Noise alone.
- P4, P5, P14: addresses are dialled one by one with `Swarm.dial_addr`, which knows neither the negative cache
  nor the choice of one address per peer nor the fixed 250 ms delay of `host.connect`.
- P18: identify is answered but never asked, its push is not served, and the two ways by which the library dials
  on its own (auto-connector, a stream to an unconnected peer) are closed.
- P19: announced addresses are an explicit list (node/addresses.py).
- P20: a swarm key is 64 hex characters; dial and accept deadlines are ours.
- Found while building this file: the library holds an accept slot for the life of the listener, not of the
  connection, so that a listener is deaf after 250 accepted connections. See `_free_slot_when_closed`.
- Found as well: Yamux fails a write that gets no window for 5 s, so a slow reader would cost the link. Writes
  wait for the window first. See `LibraryStream.write`.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

import trio

with warnings.catch_warnings():
    # The library imports modules that its own dependencies have deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from libp2p.custom_types import TProtocol
    from libp2p.network.exceptions import SwarmException
    from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
    from multiaddr import Multiaddr as LibraryMultiaddr

from gossip.reach import Reached, Reserved
from node.addresses import ListenAddresses
from node.dialer import Dialer
from node.lanes import ByteStream
from node.link import EventSink, close_quietly, until_one
from node.links import LinkTable
from node.reach import knock_all
from node.relay import RelayConfig
from node.streams import LibraryConnection, LibraryObject, LibraryStream, cause
from node.transport_host import build_host, check_library_version, dial, guard, open_stream, run_host
from node.transport_relay import Circuits
from protocol.errors import ConfigError, DecodeError, PeerMisbehaved, PeerUnreachable, UsageError
from protocol.peer import Multiaddr, PeerID, PeerInfo, parse_peer
from protocol.transport import HELLO_TIMEOUT_S, HelloSource, Lane, TransportEvent

PROTOCOLS: Final = {
    Lane.CONTROL: TProtocol("/masos/wire/1/control"),
    Lane.BULK: TProtocol("/masos/wire/1/bulk"),
}
EVENTS_MAX: Final = 256  # then reading from peers stops; 64 MiB at most, of the largest frames
BURST_EVENTS: Final = 15  # then other tasks have their turn
STOP_S: Final = 5.0  # for all links to end when the context is left
COUNTERS: Final = (
    "links_up", "links_down", "redundant", "misbehaved", "handler_errors",
    "dials", "dials_failed", "addresses_refused", "wrong_identity",
    "send_no_link", "send_full", "send_oversize", "bytes_sent", "frames_received", "bytes_received",
    "reach_tests", "bytes_relayed",
)  # fmt: skip


class Libp2pTransport:
    """The production transport. One object serves one `run`; a new swarm key needs a new object.

    Args:
        key_seed: Ed25519 seed of the node key, 32 bytes; the PeerID follows from it.
        listen: multiaddrs to bind; port 0 takes a free one. Empty: dial only.
        psk: the swarm key, 32 bytes, or None for none. A peer without it gets no link.
        announce: multiaddrs to announce instead of the bound ones; port 0 stands for the bound port.
        relay: whether this node is a relay, or is reached through one.

    An exception of the body of `run` leaves it in exception groups, as from any nursery.

    Attributes:
        counters: what happened so far, by the names in COUNTERS.

    Raises:
        ConfigError: unusable key, address, or library version.
    """

    def __init__(
        self,
        key_seed: bytes,
        listen: tuple[str, ...],
        *,
        psk: bytes | None = None,
        announce: tuple[str, ...] = (),
        relay: RelayConfig | None = None,
    ) -> None:
        check_library_version()
        if len(key_seed) != 32:
            raise ConfigError(f"a node key seed is 32 bytes, got {len(key_seed)}")
        if psk is not None and len(psk) != 32:
            raise ConfigError(f"a swarm key is 32 bytes, got {len(psk)}")
        self.counters = dict.fromkeys(COUNTERS, 0)
        self._addresses = ListenAddresses(listen, announce)
        self._host: LibraryObject = build_host(key_seed, psk, self._announced)
        guard(self._host, self._on_handler_error)
        self._local_peer = parse_peer(str(self._host.get_id()))
        self._network: LibraryObject = self._host.get_network()
        self._circuits = Circuits(self._local_peer, self._network, self, relay or RelayConfig())
        self._events_send, self._events = trio.open_memory_channel[TransportEvent](EVENTS_MAX)
        self._inbound = weakref.WeakKeyDictionary[LibraryObject, _Inbound]()
        self._links: LinkTable | None = None
        self._dialer: Dialer | None = None
        self._nursery: trio.Nursery | None = None

    @property
    def local_peer(self) -> PeerID:
        """See Transport."""
        return self._local_peer

    def listen_addrs(self) -> tuple[str, ...]:
        """See Transport. Empty before `run`."""
        return tuple(map(str, self._addresses.announced))

    def _announced(self, _candidates: object) -> list[LibraryMultiaddr]:
        return [LibraryMultiaddr(text) for text in self.listen_addrs()]

    def events(self) -> AsyncIterator[TransportEvent]:
        """See Transport."""
        return _Burst(self._events)

    def send(self, peer: PeerID, lane: Lane, frame: bytes) -> bool:
        """See Transport."""
        return self._links is not None and self._links.send(peer, lane, frame)

    def connect(self, info: PeerInfo) -> None:
        """See Transport. Nothing for our own PeerID, and nothing outside `run`."""
        if self._dialer is not None and self._nursery is not None:
            self._dialer.connect(info, self._nursery)

    def disconnect(self, peer: PeerID, reason: str) -> None:
        """See Transport."""
        if self._links is not None:
            self._links.disconnect(peer, reason)

    @asynccontextmanager
    async def run(self, hello: HelloSource) -> AsyncIterator[None]:
        """See Transport.

        Raises:
            ConfigError: an address cannot be bound.
            UsageError: this object has run before.
        """
        if self._links is not None:
            raise UsageError("a transport runs once; build a new one")
        self._links = LinkTable(self._local_peer, hello, EventSink(self._events_send, self.counters))
        self._dialer = Dialer(self._links, self._open_connection, self._addresses.is_own)
        for lane, protocol in PROTOCOLS.items():
            self._host.set_stream_handler(protocol, partial(self._on_stream, lane))
        self._circuits.register(self._host, self._visit)
        self._free_slot_when_closed()
        try:
            self._addresses.check_free()
            async with run_host(self._host, *self._addresses.listen):
                await self._network.auto_connector.stop()
                self._addresses.bound(tuple(map(str, self._host.get_transport_addrs())))
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    try:
                        yield
                    finally:  # P15: no new work, then links, then the host
                        self._nursery = None
                        with trio.move_on_after(STOP_S) as stop:
                            stop.shield = True
                            await self._links.stop("node stops")
                            await self._close_connections()
                            await self._host.close()
                        nursery.cancel_scope.cancel()
        finally:
            self._events_send.close()

    async def _close_connections(self) -> None:
        """Close what is still open without a link, all at once: `host.close` takes 0.2 s for each."""
        async with trio.open_nursery() as nursery:
            for swarm_conn in self._network.get_connections():
                nursery.start_soon(close_quietly, LibraryConnection(self._local_peer, swarm_conn, {}))

    # -- reachability -------------------------------------------------------------------------------

    def accepted(self, peer: PeerID) -> bool:
        """See Outreach."""
        return self._links is not None and self._links.accepted(peer)

    async def reach(self, peer: PeerID, addrs: tuple[str, ...]) -> Reached:
        """See Outreach."""
        link = self.link_of(peer)
        if link is None:
            return Reached((), "not linked", tried=False)
        self.counters["reach_tests"] += 1
        remote = link.remote_address
        return await knock_all(peer, addrs, remote[0] if remote is not None else None, partial(self._knock, peer))

    async def _knock(self, peer: PeerID, addr: Multiaddr) -> None:
        if self._addresses.is_own(addr):
            raise PeerUnreachable("is our own")
        await close_quietly(LibraryConnection(peer, await self.dial_direct(peer, addr), {}))

    async def reserve(self, relay: PeerID) -> Reserved:
        """See Outreach."""
        addr, ttl_s = await self._circuits.reserve(relay)
        return Reserved((addr,), int(ttl_s * 1e6))

    def link_of(self, peer: PeerID) -> LibraryConnection | None:
        """See Ways of node/transport_relay.py."""
        conn = self._links.connection(peer) if self._links is not None else None
        return conn if isinstance(conn, LibraryConnection) else None

    # -- outbound -----------------------------------------------------------------------------------

    async def _open_connection(self, peer: PeerID, addr: Multiaddr) -> LibraryConnection:
        """Dial one address, through its relay if it has one, and open both lanes."""
        if addr.relay is None:
            swarm_conn, below = await self.dial_direct(peer, addr), None
        else:
            swarm_conn, below = await self._circuits.dial(peer, addr)
        streams: dict[Lane, ByteStream] = {}
        conn = LibraryConnection(peer, swarm_conn, streams, below)
        try:
            for lane, protocol in PROTOCOLS.items():
                streams[lane] = LibraryStream(await self.open_stream(swarm_conn, protocol))
        except BaseException:
            await close_quietly(conn)
            raise
        return conn

    async def dial_direct(self, peer: PeerID, addr: Multiaddr) -> LibraryObject:
        """See Ways of node/transport_relay.py."""
        try:
            return await dial(self._host, peer, str(addr))
        except Exception as exc:  # the library raises from a dozen unrelated classes
            raise self._dial_error(exc) from exc

    async def open_stream(self, connection: LibraryObject, protocol: str) -> LibraryObject:
        """See Ways of node/transport_relay.py."""
        try:
            return await open_stream(self._host, connection, protocol)
        except Exception as exc:
            raise PeerUnreachable(f"refused our streams: {cause(exc)}") from exc

    def _dial_error(self, exc: BaseException) -> PeerUnreachable:
        link: BaseException | None = exc
        while link is not None:
            if isinstance(link, PeerIDMismatchesPubkey) or "Peer ID mismatch" in str(link):
                self.counters["wrong_identity"] += 1
                return PeerUnreachable("another identity answers there")
            link = link.__cause__
        return PeerUnreachable(cause(exc))

    # -- inbound ------------------------------------------------------------------------------------

    async def _on_stream(self, lane: Lane, stream: LibraryObject) -> None:
        """One inbound stream; the CONTROL stream's task serves the link. Runs under the guard."""
        muxed = stream.muxed_conn
        peer = parse_peer(str(muxed.peer_id))
        if muxed.is_initiator:
            raise PeerMisbehaved("the listener opened a stream")
        if muxed.is_closed:
            raise PeerUnreachable("connection lost")
        inbound = self._inbound_of(muxed)
        if lane in inbound.streams or inbound.done.is_set():
            raise PeerMisbehaved("a second stream for one lane")
        inbound.streams[lane] = LibraryStream(stream)
        inbound.arrived.set()
        if len(inbound.streams) == len(Lane):
            inbound.complete.set()
        if lane is not Lane.CONTROL:
            await inbound.done.wait()
            return
        try:
            with trio.move_on_after(HELLO_TIMEOUT_S):
                await inbound.complete.wait()
            if not inbound.complete.is_set():
                raise PeerMisbehaved("no bulk stream")
            assert self._links is not None
            conn = LibraryConnection(peer, stream.swarm_conn, dict(inbound.streams))
            await self._links.run_accepted(conn)
        finally:
            inbound.end()
            await close_quietly(LibraryConnection(peer, stream.swarm_conn, {}))

    async def serve_inbound(self, raw: LibraryObject, addr: LibraryObject) -> None:
        """See Ways of node/transport_relay.py. Like a connection of a listener; always ends with SwarmException."""
        await self._network.upgrade_inbound_raw_conn(raw, addr)

    async def _visit(self, serve: Callable[[LibraryObject], Awaitable[None]], stream: LibraryObject) -> None:
        """One stream about circuits. An accepted connection may have no other kind, and ends with the last of them."""
        muxed = stream.muxed_conn
        inbound = self._inbound_of(muxed)
        inbound.arrived.set()
        inbound.visits += 1
        try:
            await serve(stream)
        finally:
            self.counters["bytes_relayed"] = self._circuits.carried_bytes
            inbound.visits -= 1
            if not (inbound.visits or inbound.streams or muxed.is_initiator):
                await close_quietly(LibraryConnection(self._local_peer, stream.swarm_conn, {}))

    def _inbound_of(self, muxed: LibraryObject) -> _Inbound:
        return self._inbound.setdefault(muxed, _Inbound())

    def _on_handler_error(self, exc: Exception) -> None:
        misbehaved = isinstance(exc, (PeerMisbehaved, DecodeError))
        if misbehaved:
            self.counters["misbehaved"] += 1
        elif not isinstance(exc, PeerUnreachable):
            self.counters["handler_errors"] += 1

    def _free_slot_when_closed(self) -> None:
        """End the library's accept task with its connection, and a connection that opens no stream.

        `Swarm._handle_inbound_connection` takes a token of `_inbound_limiter` and waits for the end of the
        swarm; the limit of 250 therefore counts all connections ever accepted (measured: 8 connections opened
        and closed leave 8 tokens taken). Its error path gives the token back, so the wrapped method raises
        when the connection has closed.
        """
        upgrade = self._network.upgrade_inbound_raw_conn

        async def upgrade_and_wait(raw_conn: LibraryObject, listen_addr: LibraryObject) -> LibraryObject:
            muxed = await upgrade(raw_conn, listen_addr)
            inbound = self._inbound_of(muxed)
            try:
                with trio.move_on_after(HELLO_TIMEOUT_S):
                    await until_one(inbound.arrived.wait, muxed.event_closed.wait)
                if not inbound.arrived.is_set() and not muxed.is_closed:
                    self.counters["misbehaved"] += 1
                    await muxed.close()
                await muxed.event_closed.wait()
            finally:
                inbound.end()
            raise SwarmException("connection closed")

        self._network.upgrade_inbound_raw_conn = upgrade_and_wait


class _Burst:
    """The events of a channel, up to BURST_EVENTS in a row without a task switch, where so many wait.

    Each switch lets every queue be written out, so that the answers to frames that came together would leave singly.
    """

    def __init__(self, channel: trio.MemoryReceiveChannel[TransportEvent]) -> None:
        self._channel = channel
        self._left = 0

    def __aiter__(self) -> _Burst:
        return self

    async def __anext__(self) -> TransportEvent:
        if self._left:
            self._left -= 1
            with suppress(trio.WouldBlock, trio.EndOfChannel):
                return self._channel.receive_nowait()
        self._left = BURST_EVENTS
        return await anext(self._channel)


class _Inbound:
    """The streams that a peer has opened on one accepted connection."""

    def __init__(self) -> None:
        self.streams: dict[Lane, ByteStream] = {}
        self.visits = 0  # streams about circuits that are open
        self.arrived = trio.Event()
        self.complete = trio.Event()
        self.done = trio.Event()

    def end(self) -> None:
        """Let the handlers return, and let go of the streams: they hold the key of the weak table."""
        self.done.set()
        self.streams.clear()
