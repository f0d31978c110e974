"""Knocking at a peer's addresses: what is told of them is what the asker may know."""

from __future__ import annotations

import trio

from node.reach import knock_all
from protocol.errors import PeerUnreachable
from protocol.peer import Multiaddr, PeerID

PEER = PeerID(bytes(32))


async def nobody(addr: Multiaddr) -> None:
    await trio.lowlevel.checkpoint()
    raise PeerUnreachable(f"a cause about port {addr.port}")


async def test_the_cause_is_told_of_the_host_of_the_link_alone() -> None:
    found = await knock_all(
        PEER, ("/ip6/fd00::9/tcp/1", "/ip6/fd00::1/tcp/22", "/ip4/10.0.0.1/tcp/23"), "fd00::9", nobody
    )
    assert found.addrs == ()
    assert "/ip6/fd00::9/tcp/1: a cause about port 1" in found.reason
    assert "/ip6/fd00::1/tcp/22: not reached" in found.reason
    assert "port 22" not in found.reason
    assert "port 23" not in found.reason


async def test_where_the_peer_answers_is_told_in_the_order_asked() -> None:
    async def everybody(addr: Multiaddr) -> None:
        await trio.sleep(0 if addr.port == 2 else 0.001)

    addrs = ("/ip4/10.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/2")
    assert (await knock_all(PEER, addrs, "10.0.0.1", everybody)).addrs == addrs
