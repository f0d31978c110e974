"""Peers of the same swarm on the local network, by multicast DNS (RFC 6762, RFC 6763). Off unless asked for.

A node announces a service whose type is made from the swarm id, `_masos-<8 hex>._tcp.local.`, so that swarms do not
see each other and the id itself is not told; its instance is named by the PeerID, its TXT record holds the addresses.

Everybody on the network can say anything here, so what is heard is a candidate to dial and nothing more: the transport
authenticates who answers, the link check whether it belongs to the swarm. Taken are only addresses that the local
network can have (private ranges, never a public host: nobody makes this node dial into the internet), of at most
CANDIDATES_MAX peers at a time, each given to the dialler every AGAIN_S while it is there: a dial may fail, and one to a
linked peer does nothing.

The `zeroconf` package, which libp2p brings along, does the DNS in threads of its own; its `enable_mDNS` in libp2p
announces `_p2p._udp` for everybody and feeds the peerstore, which we do not dial from (libp2p.md P18).
"""

from __future__ import annotations

import hashlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, TypeVar

import trio
from zeroconf import Error, InterfaceChoice, ServiceBrowser, ServiceInfo, ServiceStateChange, Zeroconf

from protocol.errors import ConfigError, DecodeError
from protocol.peer import ADDRESSES_PER_PEER_MAX, Multiaddr, PeerID, PeerInfo, parse_peer, peer_text, plain_ip

T = TypeVar("T")
log = logging.getLogger("masos.mdns")

CANDIDATES_MAX: Final = 64
AGAIN_S: Final = 60.0
HEARD_MAX: Final = 256  # answers on their way from the threads of the library; more are dropped
RESOLVE_MS: Final = 3_000
STOP_S: Final = 3.0
_KEY: Final = "a"  # of the TXT entries: a0=/ip4/…/tcp/…


def service_type(swarm_id: bytes) -> str:
    """The type under which the nodes of a swarm find each other; 14 characters of the 15 that there may be."""
    return f"_masos-{hashlib.sha256(b'masos/mdns/1' + bytes(1) + swarm_id).hexdigest()[:8]}._tcp.local."


def advertisement(swarm_id: bytes, me: PeerID, addrs: tuple[str, ...]) -> ServiceInfo | None:
    """What a node says; None when it has no address that others on the local network could dial."""
    usable = [addr for addr in map(Multiaddr.parse, addrs) if addr.relay is None and _is_local(addr)]
    if not usable:
        return None
    kind = service_type(swarm_id)
    return ServiceInfo(
        kind,
        f"{peer_text(me)}.{kind}",
        port=usable[0].port,
        properties={f"{_KEY}{n}": str(addr.base) for n, addr in enumerate(usable[:ADDRESSES_PER_PEER_MAX])},
        parsed_addresses=list(dict.fromkeys(addr.host for addr in usable)),
        server=f"{peer_text(me)}.local.",
    )


def candidate(name: str, properties: dict[bytes, bytes | None]) -> PeerInfo | None:
    """The peer behind an answer; None for what is no node, or has no address that may be dialled."""
    try:
        peer = parse_peer(name.partition(".")[0])
    except DecodeError:
        return None
    found: dict[str, None] = {}
    for n in range(ADDRESSES_PER_PEER_MAX):
        try:
            addr = Multiaddr.parse((properties.get(f"{_KEY}{n}".encode()) or b"").decode("ascii"))
        except (DecodeError, UnicodeDecodeError):
            continue
        if addr.relay is None and addr.peer is None and _is_local(addr):
            found[str(addr)] = None
    return PeerInfo(peer, tuple(found)) if found else None


def _is_local(addr: Multiaddr) -> bool:
    return addr.dialable and plain_ip(addr.host).is_private


class Candidates:
    """Which answers are worth a dial now."""

    def __init__(self, me: PeerID) -> None:
        self._me = me
        self._told: dict[PeerID, float] = {}  # within AGAIN_S

    def take(self, info: PeerInfo, now_s: float) -> bool:
        """Whether to hand a candidate on; not ourselves, not too often, not too many at a time."""
        self._told = {peer: at_s for peer, at_s in self._told.items() if now_s - at_s < AGAIN_S}
        if info.peer == self._me or info.peer in self._told or len(self._told) >= CANDIDATES_MAX:
            return False
        self._told[info.peer] = now_s
        return True


class LanDiscovery:
    """Announces this node on the local network and finds the others.

    Args:
        swarm_id: whose nodes to find.
        me: this node.
        interfaces: IP addresses of the interfaces to speak on; None for all.
    """

    def __init__(self, swarm_id: bytes, me: PeerID, interfaces: tuple[str, ...] | None = None) -> None:
        self._swarm_id = swarm_id
        self._me = me
        self._interfaces = list(interfaces) if interfaces is not None else InterfaceChoice.All
        self._candidates = Candidates(me)

    @asynccontextmanager
    async def run(self, addrs: tuple[str, ...], found: Callable[[PeerInfo], None]) -> AsyncIterator[None]:
        """Announce `addrs` and hand candidates to `found` (the transport's `connect`) while the context is open.

        Raises:
            ConfigError: this machine cannot speak multicast DNS.
        """
        try:
            self._check_interfaces()
            engine = await trio.to_thread.run_sync(partial(Zeroconf, interfaces=self._interfaces))
        except OSError as exc:
            raise ConfigError(f"no multicast DNS here: {exc}", hint="turn node.mdns off, or check the network") from exc
        heard_in, heard_out = trio.open_memory_channel[str](HEARD_MAX)
        present: dict[str, None] = {}
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._announce, engine, addrs)
                nursery.start_soon(self._resolve, engine, heard_out, found)
                nursery.start_soon(self._again, present, heard_in)
                await self._browse(engine, present, heard_in)
                yield
                nursery.cancel_scope.cancel()
        finally:
            with trio.move_on_after(STOP_S) as stop:
                stop.shield = True
                await _in_thread(engine.close)

    def _check_interfaces(self) -> None:
        """Refuse an interface that is not ours, before the library leaves a socket open over it. Raises OSError."""
        for host in self._interfaces if isinstance(self._interfaces, list) else []:
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.bind((host, 0))

    async def _announce(self, engine: Zeroconf, addrs: tuple[str, ...]) -> None:
        info = advertisement(self._swarm_id, self._me, addrs)
        if info is not None:
            # `cooperating_responders`: whether the name is taken need not be asked, it is our PeerID.
            await _in_thread(partial(engine.register_service, info, cooperating_responders=True))

    async def _again(self, present: dict[str, None], heard: trio.MemorySendChannel[str]) -> None:
        while True:
            await trio.sleep(AGAIN_S)
            for name in tuple(present):
                await heard.send(name)

    async def _browse(self, engine: Zeroconf, present: dict[str, None], heard: trio.MemorySendChannel[str]) -> None:
        token = trio.lowlevel.current_trio_token()

        def take(name: str, *, gone: bool) -> None:
            if gone:
                present.pop(name, None)
                return
            if len(present) < CANDIDATES_MAX:
                present[name] = None
            try:
                heard.send_nowait(name)
            except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
                return

        def on_change(
            zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
        ) -> None:  # called in a thread of the library, which names the arguments
            del zeroconf, service_type
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(partial(take, name, gone=state_change is ServiceStateChange.Removed))

        await _in_thread(partial(ServiceBrowser, engine, service_type(self._swarm_id), handlers=[on_change]))

    async def _resolve(
        self, engine: Zeroconf, heard: trio.MemoryReceiveChannel[str], found: Callable[[PeerInfo], None]
    ) -> None:
        kind = service_type(self._swarm_id)
        async for name in heard:
            info = await _in_thread(partial(engine.get_service_info, kind, name, RESOLVE_MS))
            peer = candidate(name, info.properties) if info is not None else None
            if peer is not None and self._candidates.take(peer, trio.current_time()):
                found(peer)


async def _in_thread(work: Callable[[], T]) -> T | None:
    """Run what blocks, and leave it behind when cancelled; nothing when the library or the network fails."""
    try:
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True)  # type: ignore[call-arg]  # the stubs are older
    except (Error, OSError, TimeoutError) as exc:
        log.warning("multicast DNS: %s", f"{type(exc).__name__} {exc}")
        return None
