# pyright: basic, reportMissingImports=false
"""Libp2pTransport: the seam of `protocol.transport` over py-libp2p 0.8.1, TCP with Noise and Yamux only.

The only file that imports libp2p. It gives the link table (node/links.py) authenticated connections with two
byte streams and nothing else of the library: no DHT, no pub/sub, no peerstore, no auto-connector. What the
library gets wrong is put right here, each point in one place (P numbers: libp2p.md §2):

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

import importlib.metadata
import logging
import warnings
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final

import trio

with warnings.catch_warnings():
    # The library imports modules that its own dependencies have deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from libp2p import new_host
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.crypto.x25519 import create_new_key_pair as create_new_x25519_key_pair
    from libp2p.custom_types import TProtocol
    from libp2p.identity.identify_push.identify_push import ID_PUSH
    from libp2p.network.config import ConnectionConfig, RetryConfig
    from libp2p.network.exceptions import SwarmException
    from libp2p.peer.id import ID
    from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
    from libp2p.rcmgr import ResourceManager
    from libp2p.rcmgr.connection_limits import ConnectionLimits
    from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID as PLAINTEXT_ID, InsecureTransport
    from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
    from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_ID, Transport as NoiseTransport
    from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_ID, Yamux
    from multiaddr import Multiaddr as LibraryMultiaddr

from node.addresses import ListenAddresses
from node.dialer import Dialer
from node.lanes import ByteStream
from node.link import EventSink, close_quietly, until_one
from node.links import LinkTable
from node.streams import LibraryConnection, LibraryObject, LibraryStream, cause
from protocol.errors import ConfigError, DecodeError, PeerMisbehaved, PeerUnreachable, UsageError
from protocol.peer import Multiaddr, PeerID, PeerInfo, parse_peer, peer_text
from protocol.transport import DIAL_TIMEOUT_S, HELLO_TIMEOUT_S, HelloSource, Lane, TransportEvent

LIBP2P_VERSION: Final = "0.8.1"
PROTOCOLS: Final = {
    Lane.CONTROL: TProtocol("/masos/wire/1/control"),
    Lane.BULK: TProtocol("/masos/wire/1/bulk"),
}
CONNECTIONS_MAX: Final = 300
CONNECTIONS_PER_PEER_MAX: Final = 32  # a closed one counts for another 0.2 s, so a quick series needs some
EVENTS_MAX: Final = 256  # then reading from peers stops; 64 MiB at most, of the largest frames
STOP_S: Final = 5.0  # for all links to end when the context is left
COUNTERS: Final = (
    "links_up", "links_down", "redundant", "misbehaved", "handler_errors",
    "dials", "dials_failed", "addresses_refused", "wrong_identity",
    "send_no_link", "send_full", "send_oversize", "bytes_sent", "frames_received", "bytes_received",
)  # fmt: skip

# Everything the library reports at ERROR or below is a peer's doing or is raised to us as well.
LIBRARY_LOG_LEVEL: Final = logging.CRITICAL


class Libp2pTransport:
    """The production transport. One object serves one `run`; a new swarm key needs a new object.

    Args:
        key_seed: Ed25519 seed of the node key, 32 bytes; the PeerID follows from it.
        listen: multiaddrs to bind; port 0 takes a free one. Empty: dial only.
        psk: the swarm key, 32 bytes, or None for none. A peer without it gets no link.
        announce: multiaddrs to announce instead of the bound ones; port 0 stands for the bound port.

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
        return self._events

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

    # -- outbound -----------------------------------------------------------------------------------

    async def _open_connection(self, peer: PeerID, addr: Multiaddr) -> LibraryConnection:
        """Dial one address and open both lanes."""
        try:
            swarm_conn = await dial(self._host, peer, str(addr))
        except Exception as exc:  # the library raises from a dozen unrelated classes
            raise self._dial_error(exc) from exc
        streams: dict[Lane, ByteStream] = {}
        try:
            for lane, protocol in PROTOCOLS.items():
                streams[lane] = LibraryStream(await open_stream(self._host, swarm_conn, protocol))
        except BaseException as exc:
            await close_quietly(LibraryConnection(peer, swarm_conn, {}))
            if isinstance(exc, Exception):
                raise PeerUnreachable(f"refused our streams: {cause(exc)}") from exc
            raise
        return LibraryConnection(peer, swarm_conn, streams)

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


class _Inbound:
    """The streams that a peer has opened on one accepted connection."""

    def __init__(self) -> None:
        self.streams: dict[Lane, ByteStream] = {}
        self.arrived = trio.Event()
        self.complete = trio.Event()
        self.done = trio.Event()

    def end(self) -> None:
        """Let the handlers return, and let go of the streams: they hold the key of the weak table."""
        self.done.set()
        self.streams.clear()


def check_library_version() -> None:
    """Row 1 of the self-test: this file relies on private attributes of one version.

    Raises:
        ConfigError: another version is installed.
    """
    found = importlib.metadata.version("libp2p")
    if found != LIBP2P_VERSION:
        raise ConfigError(f"libp2p {found} is installed, this node needs {LIBP2P_VERSION}")


def build_host(
    key_seed: bytes, psk: bytes | None, announced: Callable[[object], list[LibraryMultiaddr]]
) -> LibraryObject:
    """A host with TCP, Noise and Yamux that never dials on its own (P3, P14, P18, P19, P20)."""
    for name in tuple(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "libp2p":  # some of its loggers set their own level
            logging.getLogger(name).setLevel(LIBRARY_LOG_LEVEL)
    key_pair = create_new_key_pair(key_seed)
    noise = NoiseTransport(key_pair, noise_privkey=create_new_x25519_key_pair().private_key)
    host: LibraryObject = new_host(
        key_pair=key_pair,
        sec_opt={NOISE_ID: noise},
        muxer_opt={TProtocol(YAMUX_ID): Yamux},
        psk=psk.hex() if psk is not None else None,
        addrs_factory=announced,
        disable_identify_address_discovery=True,
        # Its rate limit (10 connections per second and peer) is checked after the costly handshake and hits
        # both directions; back-off is our peer manager's, and the link table bounds what one peer may hold.
        resource_manager=ResourceManager(
            enable_rate_limiting=False,
            connection_limits=ConnectionLimits(
                max_established_per_peer=CONNECTIONS_PER_PEER_MAX, max_established_total=CONNECTIONS_MAX
            ),
        ),
        connection_config=ConnectionConfig(
            max_connections=CONNECTIONS_MAX,
            min_connections=0,
            low_watermark=0,
            high_watermark=CONNECTIONS_MAX,
            inbound_upgrade_timeout=DIAL_TIMEOUT_S,
            outbound_upgrade_timeout=DIAL_TIMEOUT_S,
        ),
    )
    network: LibraryObject = host.get_network()
    network.retry_config = RetryConfig(max_retries=0)  # a refused address fails in ms, not after 0.7 s
    network.dial_peer = _no_own_dial
    # Private: identify would be asked by a system task, out of reach of every guard, for addresses we do not use.
    host._schedule_identify = _no_identify  # noqa: SLF001 - see above
    host.remove_stream_handler(ID_PUSH)
    return host


def build_plaintext_host(key_seed: bytes) -> LibraryObject:
    """A host that offers no security at all, for row 3 of the self-test only."""
    key_pair = create_new_key_pair(key_seed)
    return new_host(key_pair=key_pair, sec_opt={PLAINTEXT_ID: InsecureTransport(key_pair)})


def run_host(host: LibraryObject, *listen: str) -> AbstractAsyncContextManager[None]:
    """Run a host while in the context."""
    context: AbstractAsyncContextManager[None] = host.run(listen_addrs=[LibraryMultiaddr(text) for text in listen])
    return context


async def dial(host: LibraryObject, peer: PeerID, addr: str) -> LibraryObject:
    """An authenticated connection to `peer` at one address. Raises whatever the library raises."""
    return await host.get_network().dial_addr(LibraryMultiaddr(addr), ID.from_string(peer_text(peer)))


async def open_stream(host: LibraryObject, swarm_conn: LibraryObject, protocol: str) -> LibraryObject:
    """A stream on this very connection; `host.new_stream` would choose one of several by itself."""
    stream = await swarm_conn.new_stream()
    communicator = MultiselectCommunicator(stream)
    await host.multiselect_client.select_one_of([TProtocol(protocol)], communicator, int(DIAL_TIMEOUT_S))
    stream.set_protocol(TProtocol(protocol))
    return stream


async def _no_own_dial(peer_id: object) -> list[object]:
    raise SwarmException(f"no dial to {peer_id} from the peerstore (P18)")


def _no_identify(_peer_id: object, *, reason: str) -> None:
    del reason


def guard(host: LibraryObject, on_error: Callable[[Exception], None]) -> None:
    """P1: no exception leaves a stream handler, whichever protocol it serves."""
    network = host.get_network()
    inner = network.common_stream_handler

    async def guarded(stream: LibraryObject) -> None:
        try:
            await inner(stream)
        except Exception as exc:  # noqa: BLE001 - the guard (P1); Cancelled is a BaseException and passes
            on_error(exc)
            await stream.reset()

    network.set_stream_handler(guarded)
