"""One contract, every backend on trio. The simulator's backend runs it in tests/simulations."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from node.transport import Libp2pTransport
from protocol.peer import PeerID
from protocol.transport import Transport
from simulations.memory_transport import MemoryNetwork
from tests.node.transport_contract import CHECKS, Check, Spec, TrioHarness, check_simultaneous_dials

names = [check.__name__ for check in CHECKS]
# A wrong key shows only at the dial deadline of 5 s, and a real socket takes long to fill.
slow = ("check_swarm_key", "check_full_queue_and_writable")
on_sockets = [pytest.param(c, id=c.__name__, marks=[pytest.mark.slow] * (c.__name__ in slow)) for c in CHECKS]


def seed(number: int) -> bytes:
    return bytes([number]) * 32


def libp2p(spec: Spec) -> Transport:
    return Libp2pTransport(seed(spec.number), ("/ip4/127.0.0.1/tcp/0",), psk=spec.swarm_key)


@pytest.mark.parametrize("check", CHECKS, ids=names)
async def test_memory_transport_keeps_the_contract(check: Check, autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with TrioHarness(lambda spec: network.transport(PeerID(seed(spec.number)), spec.swarm_key)) as harness:
        await check(harness)


@pytest.mark.libp2p
@pytest.mark.parametrize("check", on_sockets)
async def test_libp2p_transport_keeps_the_contract(check: Check) -> None:
    async with TrioHarness(libp2p) as harness:
        await check(harness)


@pytest.mark.libp2p
@pytest.mark.slow
async def test_two_hundred_simultaneous_dials_over_libp2p() -> None:
    async with TrioHarness(libp2p) as harness:
        await check_simultaneous_dials(harness, rounds=200)
