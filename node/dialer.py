"""Reaching a peer: each of its addresses, best first, until one gives a link.

Rules of the file (libp2p.md §5, P4, P5, P20; cases N2, N3):

- Relayed addresses come last: a direct link costs nobody else anything (libp2p.md §5, rule 5).
- One dial per peer at a time, DIALS_MAX in flight, each address under DIAL_TIMEOUT_S.
- Never dialled: an own address, an address that names another peer, one that cannot be dialled at all. What is
  wrong with an address, another identity answering included, counts against the address, not against the peer.
- The outcome is one event: the LinkUp of the link, or a LinkDialFailed that names each address with its cause.
  When the peer's own connection is preferred meanwhile, its LinkUp is the outcome.

No back-off here: who calls `connect` again, and when, is the peer manager's business.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio

from node.link import Connection
from node.links import Dial, LinkTable, Slot
from protocol.errors import DecodeError, PeerError, PeerMisbehaved
from protocol.peer import ADDRESSES_PER_PEER_MAX, Multiaddr, PeerID, PeerInfo
from protocol.transport import DIAL_TIMEOUT_S, LinkDialFailed

KNOCK_S: Final = 1.0  # to learn whether a silent address has an open port
DIALS_MAX: Final = 32  # in flight; the library's own cap (libp2p.md §5)

OpenConnection = Callable[[PeerID, Multiaddr], Awaitable[Connection]]


def usable_addresses(info: PeerInfo, is_own: Callable[[Multiaddr], bool]) -> tuple[list[Multiaddr], list[str]]:
    """The addresses worth a dial, in the order given but circuits last, and what is wrong with the others."""
    usable: list[Multiaddr] = []
    refused: list[str] = []
    for text in info.addrs[:ADDRESSES_PER_PEER_MAX]:
        try:
            addr = Multiaddr.parse(text)
        except DecodeError as exc:
            refused.append(exc.message)
            continue
        if addr.peer is not None and addr.peer != info.peer:
            refused.append(f"{text}: names another peer")
        elif not addr.dialable:
            refused.append(f"{text}: cannot be dialled")
        elif is_own(addr):
            refused.append(f"{text}: is our own")
        else:
            usable.append(addr.base if addr.relay is None else addr)
    return sorted(usable, key=lambda addr: addr.relay is not None), refused


class Dialer:
    """Dials peers and hands each connection to the link table.

    Args:
        table: turns a connection into a link.
        open_connection: dials one address and authenticates the peer there. Raises PeerError.
        is_own: tells own addresses.
    """

    def __init__(
        self,
        table: LinkTable,
        open_connection: OpenConnection,
        is_own: Callable[[Multiaddr], bool],
    ) -> None:
        self._table = table
        self._open_connection = open_connection
        self._is_own = is_own
        self._limit = trio.CapacityLimiter(DIALS_MAX)
        self._dialling: set[PeerID] = set()  # asked for, task not yet running

    def connect(self, info: PeerInfo, nursery: trio.Nursery) -> None:
        """Start dialling in `nursery`; nothing for ourselves, a linked peer or one being dialled."""
        if info.peer == self._table.local_peer or info.peer in self._dialling:
            return
        if self._table.busy(info.peer):
            return
        self._dialling.add(info.peer)
        nursery.start_soon(self._run, info)

    async def _run(self, info: PeerInfo) -> None:
        with self._table.slot(info.peer) as slot:
            dial = slot.dial = Dial()
            self._dialling.discard(info.peer)
            try:
                failure = await self._dial(slot, dial, info)
                while failure is not None and slot.taken and slot.link is None and not dial.superseded:
                    await slot.changed.wait()  # the peer's own connection is about to become the link
                if failure is None or dial.superseded or slot.link is not None:
                    return
            finally:
                if slot.dial is dial:
                    slot.dial = None
                slot.notify()
        self._table.sink.count("dials_failed")
        await self._table.sink.emit(LinkDialFailed(info.peer, failure))

    async def _dial(self, slot: Slot, dial: Dial, info: PeerInfo) -> str | None:
        """Try each address and serve the link; the reason when there was none."""
        usable, reasons = usable_addresses(info, self._is_own)
        self._table.sink.count("addresses_refused", len(reasons))
        with dial.scope:
            for addr in usable:
                reason = await self._try(slot, info.peer, addr)
                if reason is None:
                    return None
                reasons.append(f"{addr}: {reason}")
                if slot.taken:
                    break
        if dial.scope.cancelled_caught:
            return "given up"
        return "; ".join(reasons) or "no address known"

    async def _try(self, slot: Slot, peer: PeerID, addr: Multiaddr) -> str | None:
        self._table.sink.count("dials")
        try:
            async with self._limit:
                with trio.fail_after(DIAL_TIMEOUT_S):
                    conn = await self._open_connection(peer, addr)
            if not await self._table.run_dialled(slot, conn):
                return "the peer's own connection came first"
        except trio.TooSlowError:
            return await _why_silent(addr)
        except PeerError as exc:
            if isinstance(exc, PeerMisbehaved):
                self._table.sink.count("misbehaved")
            return exc.message
        except Exception as exc:  # noqa: BLE001 - the guard (P1): one dial must not end the node
            self._table.sink.count("handler_errors")
            return f"internal error: {type(exc).__name__}"
        return None


async def _why_silent(addr: Multiaddr) -> str:
    """Under another swarm key the port opens, and then both sides wait for ever (P20): not a host that is away."""
    text = f"no answer within {DIAL_TIMEOUT_S:g} s"
    if addr.relay is None:
        with trio.move_on_after(KNOCK_S), suppress(OSError):
            await trio.aclose_forcefully(await trio.open_tcp_stream(addr.host, addr.port))
            return f"{text}, though the port is open: another swarm key, or no masos node"
    return text
