"""The simulated network keeps the contract of the transport seam, like every other backend."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gossip.reach import Reached, ReachTest
from protocol.peer import PeerID, PeerInfo
from protocol.transport import HelloSource, Lane, TransportEvent
from simulations.heap import EventHeap
from simulations.link import NetConfig
from simulations.network import SimNetwork
from simulations.rng import stream
from tests.node.transport_contract import CHECKS, IDLE_S, SETTLE_S, Check, Node, check_grammar, run_plain


class SimNode:
    """A node of the contract: a transport whose events are kept."""

    def __init__(self, network: SimNetwork, number: int, key: bytes | None, hello: HelloSource | None) -> None:
        self.events: list[TransportEvent] = []
        self.hellos = 0
        self._number = number
        self._source = hello
        self._heap = network.heap
        self._transport = network.transport(PeerID(bytes([number]) * 32), self.events.append, key)
        self._transport.open(self._hello)

    @property
    def peer(self) -> PeerID:
        return self._transport.local_peer

    @property
    def addrs(self) -> tuple[str, ...]:
        return self._transport.listen_addrs()

    def send(self, peer: PeerID, lane: Lane, frame: bytes) -> bool:
        return self._transport.send(peer, lane, frame)

    def connect(self, info: PeerInfo) -> None:
        self._transport.connect(info)

    def disconnect(self, peer: PeerID, reason: str) -> None:
        self._transport.disconnect(peer, reason)

    def accepted(self, peer: PeerID) -> bool:
        return self._transport.accepted(peer)

    async def reach(self, peer: PeerID, addrs: tuple[str, ...]) -> Reached:
        found: list[object] = []
        self._transport.reach_out(ReachTest(peer, addrs), found.append)
        while not found:
            assert self._heap.step()
        assert isinstance(found[0], Reached)
        return found[0]

    def pause(self) -> None:
        self._transport.pause()

    def resume(self) -> None:
        self._transport.resume()

    async def stop(self) -> None:
        self._transport.close()
        while not self._transport.idle:
            assert self._heap.step()

    def _hello(self, peer: PeerID) -> bytes:
        if self._source is not None:
            return self._source(peer)
        self.hellos += 1
        return b"hello %d.%d" % (self._number, self.hellos)


class SimHarness:
    """Nodes on one simulated network, stepped by the check itself."""

    def __init__(self, config: NetConfig, seed: int) -> None:
        self._heap = EventHeap(stream(seed, "ties"))
        self._network = SimNetwork(self._heap, config, seed)
        self._nodes: list[SimNode] = []

    async def node(self, *, swarm_key: bytes | None = None, hello: HelloSource | None = None) -> Node:
        node = SimNode(self._network, len(self._nodes) + 1, swarm_key, hello)
        self._nodes.append(node)
        return node

    async def settle(self, until: Callable[[], bool]) -> None:
        deadline_us = self._heap.now_us + int(SETTLE_S * 1e6)
        while not until():
            assert self._heap.step(), "nothing more happens"
            assert self._heap.now_us <= deadline_us, f"not settled within {SETTLE_S:g} s"

    async def idle(self) -> None:
        self._run_to(self._heap.now_us + int(IDLE_S * 1e6))

    def finish(self) -> None:
        self._run_to(self._heap.now_us + 10_000_000)
        for node in self._nodes:
            check_grammar(node)

    def _run_to(self, end_us: int) -> None:
        while (next_us := self._heap.next_us) is not None and next_us <= end_us:
            self._heap.step()
        self._heap.now_us = end_us


NETWORKS = {"lan": NetConfig(latency_us=200, jitter_us=50), "lossy_wan": NetConfig(latency_us=40_000, loss=0.05)}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_simulated_network_keeps_the_contract(check: Check, network: str) -> None:
    for seed in range(3):
        harness = SimHarness(NETWORKS[network], seed)
        run_plain(check(harness))
        harness.finish()
