"""The hands of gossip/reachability.py: dial a peer back, take a place at a relay.

A connection that is made to see whether it can be made carries nothing and is closed at once. It is no link: no
stream is opened on it, so the other side's link table never hears of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from gossip.reach import NOT_REACHED, REACH_S, Reached, ReachTest, Reserve, Reserved, same_host, testable
from protocol.errors import PeerError
from protocol.peer import Multiaddr, PeerID

Knock = Callable[[Multiaddr], Awaitable[None]]


class Outreach(Protocol):
    """What a transport can find out; every backend has it."""

    def accepted(self, peer: PeerID) -> bool:
        """Whether the peer dialled the link that is up, and no relay carries it."""
        ...

    async def reach(self, peer: PeerID, addrs: tuple[str, ...]) -> Reached:
        """Dial a linked peer anew at the addresses that are where it is; changes no link."""
        ...

    async def reserve(self, relay: PeerID) -> Reserved:
        """Take or renew a place at a linked relay.

        Raises:
            PeerError: it refuses, or the link to it is not of the kind that carries circuits.
        """
        ...


async def run_reach_job(network: Outreach, spec: ReachTest | Reserve) -> Reached | Reserved:
    """Carry out a job of the machine.

    Raises:
        PeerError: the relay refused.
    """
    match spec:
        case ReachTest(peer, addrs):
            return await network.reach(peer, addrs)
        case Reserve(relay):
            return await network.reserve(relay)


async def knock_all(peer: PeerID, addrs: tuple[str, ...], link_host: str | None, knock: Knock) -> Reached:
    """Knock at all addresses that may be tested, at once: a silent one takes the whole deadline.

    `knock` raises PeerError where the peer does not answer under its own identity. Its cause is told of the host that
    the link comes from, and of no other.
    """
    usable, reasons = testable(peer, addrs, link_host)
    found: dict[str, None] = {}

    async def try_one(text: str, addr: Multiaddr) -> None:
        try:
            await knock(addr)
        except PeerError as exc:
            told = link_host is not None and same_host(addr.host, link_host)
            reasons.append(f"{addr}: {exc.message if told else NOT_REACHED}")
        else:
            found[text] = None

    with trio.move_on_after(REACH_S) as deadline:
        async with trio.open_nursery() as nursery:
            for text, addr in usable:
                nursery.start_soon(try_one, text, addr)
    if deadline.cancelled_caught:
        reasons.append(f"no answer within {REACH_S:g} s")
    return Reached(tuple(text for text in addrs if text in found), "; ".join(reasons))
