# pyright: basic, reportMissingImports=false
"""The library's host as this project builds it: TCP, Noise, Yamux, nothing that acts on its own, handlers guarded.

One of the three files that import libp2p (node/transport.py has the rules, and the P numbers of libp2p.md §2).
"""

from __future__ import annotations

import importlib.metadata
import logging
import warnings
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

with warnings.catch_warnings():
    # The library imports modules that its own dependencies have deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from libp2p import new_host
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.crypto.x25519 import create_new_key_pair as create_new_x25519_key_pair
    from libp2p.custom_types import TProtocol
    from libp2p.exceptions import ParseError
    from libp2p.identity.identify_push.identify_push import ID_PUSH
    from libp2p.network.config import ConnectionConfig, RetryConfig
    from libp2p.network.exceptions import SwarmException
    from libp2p.peer.id import ID
    from libp2p.protocol_muxer.exceptions import MultiselectCommunicatorError
    from libp2p.protocol_muxer.multiselect import MULTISELECT_PROTOCOL_ID
    from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
    from libp2p.rcmgr import ResourceManager
    from libp2p.rcmgr.connection_limits import ConnectionLimits
    from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID as PLAINTEXT_ID, InsecureTransport
    from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_ID, Transport as NoiseTransport
    from libp2p.security.secure_session import SecureSession
    from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_ID, Yamux, YamuxStream
    from multiaddr import Multiaddr as LibraryMultiaddr

from node.mux import MuxFrames, SessionBytes
from node.streams import LibraryObject, cause
from protocol.errors import ConfigError
from protocol.peer import PeerID, peer_text
from protocol.transport import DIAL_TIMEOUT_S

LIBP2P_VERSION: Final = "0.8.1"
CONNECTIONS_MAX: Final = 300
CONNECTIONS_PER_PEER_MAX: Final = 32  # a closed one counts for another 0.2 s, so a quick series needs some
WORD_BYTES_MAX: Final = 64 * 1024  # of one word of multistream-select, as in go-multistream; ours have below 50
NOT_UNDERSTOOD: Final = "the first bytes were not understood: another swarm key, or no masos node"

# Everything the library reports at ERROR or below is a peer's doing or is raised to us as well.
LIBRARY_LOG_LEVEL: Final = logging.CRITICAL


def check_library_version() -> None:
    """Row 1 of the self-test: this file relies on private attributes of one version.

    Raises:
        ConfigError: another version is installed.
    """
    found = importlib.metadata.version("libp2p")
    if found != LIBP2P_VERSION:
        raise ConfigError(f"libp2p {found} is installed, this node needs {LIBP2P_VERSION}")


class Session(SessionBytes, SecureSession):
    """The library's session after the handshake, with the reads and writes of node/mux.py."""


class Noise(NoiseTransport):
    """The library's Noise; what it hands on is a Session."""

    async def secure_inbound(self, conn: LibraryObject) -> LibraryObject:
        """As whom is dialled."""
        return _session(await super().secure_inbound(conn))

    async def secure_outbound(self, conn: LibraryObject, peer_id: LibraryObject) -> LibraryObject:
        """As who dials."""
        return _session(await super().secure_outbound(conn, peer_id))


def _session(made: LibraryObject) -> Session:
    """After the handshake, whose last read left nothing behind."""
    return Session(
        local_peer=made.local_peer,
        local_private_key=made.local_private_key,
        remote_peer=made.remote_peer,
        remote_permanent_pubkey=made.remote_permanent_pubkey,
        is_initiator=made.is_initiator,
        conn=made.conn,
    )


class Mux(MuxFrames, Yamux):
    """The library's Yamux with the inner loops of node/mux.py."""

    async def open_stream(self) -> LibraryObject:
        """As the library, with a window that stays (see `steady`)."""
        return self.steady(await super().open_stream())

    def new_stream(self, stream_id: int) -> YamuxStream:
        """See MuxFrames."""
        return YamuxStream(stream_id, self, False)  # noqa: FBT003 - positional in the library too: who opened it


class _Short:
    """A connection or stream for the time of a negotiation: no read of more than a word.

    The library hands the length that the other side claims to `socket.recv`, which reserves as much [measured: 16 GiB
    of address space for 6 bytes of a stranger].
    """

    def __init__(self, inner: LibraryObject) -> None:
        self._inner = inner
        self.write = inner.write

    async def read(self, n: int | None = None) -> bytes:
        """As the inner one, up to WORD_BYTES_MAX."""
        if n is not None and n > WORD_BYTES_MAX:
            raise ParseError(f"a word of {n} bytes, the limit is {WORD_BYTES_MAX}")
        return bytes(await self._inner.read(n))


class _Words(MultiselectCommunicator):
    """The words of one negotiation. What goes wrong with them is one class, which the library knows what to do with."""

    def __init__(self, stream: LibraryObject) -> None:
        super().__init__(_Short(stream))  # type: ignore[arg-type]  # all that is used of a ReadWriteCloser

    async def read(self) -> str:
        """As the library; words that are no text included."""
        try:
            return await super().read()
        except ValueError as exc:
            raise MultiselectCommunicatorError(f"no word: {exc}") from exc


class _FirstWords(_Words):
    """The first words on a socket. Under another swarm key each side reads noise, and fails at it in any of many ways.

    Or the other side has failed before and hung up. All of that is one reason, which says what to look at.
    """

    def __init__(self, stream: LibraryObject) -> None:
        super().__init__(stream)
        self._greeted = False

    async def read(self) -> str:
        """As the library; the first word is the greeting."""
        try:
            word = await super().read()
        except MultiselectCommunicatorError as exc:
            raise self._reason(exc) from None
        if not self._greeted and word != MULTISELECT_PROTOCOL_ID:
            raise MultiselectCommunicatorError(NOT_UNDERSTOOD)
        self._greeted = True
        return word

    async def write(self, msg_str: str) -> None:
        """As the library."""
        try:
            await super().write(msg_str)
        except MultiselectCommunicatorError as exc:
            raise self._reason(exc) from None

    def _reason(self, exc: MultiselectCommunicatorError) -> MultiselectCommunicatorError:
        return MultiselectCommunicatorError(cause(exc) if self._greeted else NOT_UNDERSTOOD)


def _bound(multiselect: LibraryObject, words: type[_Words]) -> None:
    """Let a listener of negotiations take its words from `words`."""
    negotiate = multiselect.negotiate

    async def bounded(communicator: LibraryObject, *options: LibraryObject) -> LibraryObject:
        return await negotiate(words(communicator.read_writer), *options)

    multiselect.negotiate = bounded


def _bound_client(client: LibraryObject, words: type[_Words]) -> None:
    """The same for whoever opens them."""
    select = client.select_one_of

    async def bounded(protocols: LibraryObject, communicator: LibraryObject, *options: LibraryObject) -> LibraryObject:
        return await select(protocols, words(communicator.read_writer), *options)

    client.select_one_of = bounded


def _bound_negotiations(host: LibraryObject) -> None:
    """All three: of security, of the multiplexer, and of each stream."""
    upgrader = host.get_network().upgrader
    for place, words in (
        (upgrader.security_multistream, _FirstWords),
        (upgrader.muxer_multistream, _Words),
        (host, _Words),
    ):
        _bound(place.multiselect, words)
        _bound_client(place.multiselect_client, words)


def _mux_with(muxers: LibraryObject) -> None:
    """Let the class that was given for Yamux be taken: the library names its own, whatever was negotiated."""

    async def new_conn(conn: LibraryObject, peer_id: LibraryObject) -> LibraryObject:
        return (await muxers.select_transport(conn))(conn, peer_id)

    muxers.new_conn = new_conn


def build_host(
    key_seed: bytes, psk: bytes | None, announced: Callable[[object], list[LibraryMultiaddr]]
) -> LibraryObject:
    """A host with TCP, Noise and Yamux that never dials on its own (P3, P14, P18, P19, P20)."""
    for name in tuple(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "libp2p":  # some of its loggers set their own level
            logging.getLogger(name).setLevel(LIBRARY_LOG_LEVEL)
    key_pair = create_new_key_pair(key_seed)
    noise = Noise(key_pair, noise_privkey=create_new_x25519_key_pair().private_key)
    host: LibraryObject = new_host(
        key_pair=key_pair,
        sec_opt={NOISE_ID: noise},
        muxer_opt={TProtocol(YAMUX_ID): Mux},
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
    _mux_with(network.upgrader.muxer_multistream)
    _bound_negotiations(host)
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
