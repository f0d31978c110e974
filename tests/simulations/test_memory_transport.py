"""What the memory transport adds to the contract (tests/node/test_transport_contract.py): its virtual time."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from protocol.errors import UsageError
from protocol.peer import PeerID, PeerInfo
from protocol.transport import Lane, LinkDown, LinkFrame
from simulations.memory_transport import EVENTS_MAX, MemoryNetwork
from tests.node.transport_contract import TrioHarness, check_simultaneous_dials, linked, seen


def harness() -> TrioHarness:
    network = MemoryNetwork()
    return TrioHarness(lambda spec: network.transport(PeerID(bytes([spec.number]) * 32), spec.swarm_key))


async def test_a_day_of_silence_costs_nothing_and_the_link_stands(autojump_clock: MockClock) -> None:
    async with harness() as network:
        a, b = await network.node(), await network.node()
        await linked(network, a, b)
        await trio.sleep(86_400)
        assert a.send(b.peer, Lane.CONTROL, b"good morning")
        await network.settle(lambda: bool(seen(b, LinkFrame)))
        assert not seen(a, LinkDown)


async def test_two_hundred_simultaneous_dials(autojump_clock: MockClock) -> None:
    async with harness() as network:
        await check_simultaneous_dials(network, rounds=200)


async def test_events_are_bounded_while_nobody_takes_them(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    a, b = network.transport(PeerID(bytes(32))), network.transport(PeerID(b"\x01" * 32))
    async with a.run(lambda _peer: b"a"), b.run(lambda _peer: b"b"):
        a.connect(PeerInfo(b.local_peer, b.listen_addrs()))
        await anext(a.events())
        assert all(a.send(b.local_peer, Lane.BULK, b"x") for _ in range(2 * EVENTS_MAX))
        await trio.sleep(60)
        events = b.events()
        assert isinstance(events, trio.MemoryReceiveChannel)
        assert events.statistics().current_buffer_used == EVENTS_MAX


async def test_a_transport_runs_once(autojump_clock: MockClock) -> None:
    transport = MemoryNetwork().transport(PeerID(bytes(32)))
    async with transport.run(lambda _peer: b"once"):
        pass
    assert [event async for event in transport.events()] == []
    with pytest.raises(UsageError):
        async with transport.run(lambda _peer: b"twice"):
            pass
