"""Cases N1 and N2 over real daemons: what one node publishes of itself, read from the database of another.

Whatever a node binds, its record names addresses that somebody can dial, with the port that was really bound, and
nothing else once an address to announce is configured. A record whose first address is the reader's own costs nothing:
it is never dialled, and does not count against the peer.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.demo.nodes import DemoNode, wait_for
from protocol.capability import PeerValue
from protocol.peer import Multiaddr
from tests.node.real_swarm import BACKOFF_S, RealSwarm, Wire, free_port, linked_of, real_swarm, records_in

pytestmark = [pytest.mark.slow, pytest.mark.libp2p]

LINK_S = 20.0
CALLS = 10  # of the case


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[RealSwarm]:
    with real_swarm(tmp_path) as made:
        yield made


def published(reader: DemoNode, publisher: DemoNode) -> list[Multiaddr]:
    """What the reader's database says of where the publisher is; empty while nothing is there."""
    values = [record.value for record in records_in(reader.profile, publisher)]
    return [Multiaddr.parse(text) for value in values if isinstance(value, PeerValue) for text in value.addrs]


def can_be_reached(addr: Multiaddr) -> bool:
    try:
        socket.create_connection((addr.host, addr.port), 5).close()
    except OSError:
        return False
    return True


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.mark.parametrize("fixed", [True, False], ids=["a port", "port 0"])
@pytest.mark.parametrize("host", ["/ip4/0.0.0.0", "/ip4/127.0.0.1", pytest.param("/ip6/::", marks=needs_ipv6)])
def test_a_published_record_names_what_can_be_dialled_and_nothing_else(
    swarm: RealSwarm, host: str, *, fixed: bool
) -> None:
    reader = swarm.add("reader", port=free_port())
    port = free_port() if fixed else 0
    node = swarm.add("node", "reader", host=host, port=port)
    swarm.start()
    swarm.until_exact(LINK_S)
    wait_for("record of the other", lambda: bool(published(reader, node)), LINK_S, swarm.living)
    addrs = published(reader, node)
    assert all(addr.dialable for addr in addrs), addrs
    assert len({addr.port for addr in addrs}) == 1
    assert not fixed or addrs[0].port == port
    assert all(can_be_reached(addr) for addr in addrs), addrs
    status = node.status()
    assert status is not None
    assert [str(addr) for addr in addrs] == status["listen"]


def test_an_address_to_announce_wins_over_what_is_bound(swarm: RealSwarm) -> None:
    reader = swarm.add("reader", port=free_port())
    port = free_port()
    told = f"/ip4/192.0.2.7/tcp/{port}"
    node = swarm.add("node", "reader", host="/ip4/0.0.0.0", port=port, announce=(told,))
    swarm.start()
    swarm.until_exact(LINK_S)
    wait_for("record of the other", lambda: bool(published(reader, node)), LINK_S, swarm.living)
    assert [str(addr) for addr in published(reader, node)] == [told]
    status = reader.status()
    assert status is not None
    (seen,) = status["linked"]
    assert seen["addrs"] == [told]


def test_a_record_that_names_the_readers_own_address_first_costs_no_call(swarm: RealSwarm) -> None:
    """B does not know A, so every link is a call by A, to the second address of B's record."""
    own_port = free_port()
    wire = Wire(free_port())
    try:
        own = f"/ip4/127.0.0.1/tcp/{own_port}"
        b = swarm.add("b", port=wire.target, announce=(own, wire.address))
        a = swarm.add("a", "b", port=own_port)
        swarm.start()
        swarm.until_exact(LINK_S)
        wait_for("record of the other", lambda: bool(published(a, b)), LINK_S, swarm.living)
        assert [str(addr) for addr in published(a, b)] == [own, wire.address]
        for _ in range(CALLS):
            wire.mode = "cut"
            wait_for("end of the link", lambda: links(a) == set(), LINK_S, swarm.living)
            wire.mode = "open"
            wait_for("another call", lambda: links(a) == {b.peer}, BACKOFF_S + LINK_S, swarm.living)
        with a.client() as client:
            rtt_us = client.ping(b.peer)["rtt_us"]
        assert isinstance(rtt_us, int)
        assert rtt_us > 0
        status = a.status()
        assert status is not None
        assert a.peer not in {each["peer"] for each in status["refusals"]} | set(status["known"])
        assert {each["code"] for each in status["refusals"]} <= {"unreachable"}
    finally:
        wire.close()


def links(node: DemoNode) -> set[str]:
    status = node.status()
    return linked_of(status) if status is not None else {"no answer"}
