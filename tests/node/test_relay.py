"""What a relay gives, and that it carries bytes whole, both ways, within its limits: in virtual time, no sockets."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack

import pytest
import trio
from hypothesis import given, strategies as st
from trio.testing import MockClock, memory_stream_one_way_pair

from node.relay import LINGER_S, CircuitLimits, Places, RelayConfig, carry
from protocol.errors import Refused
from protocol.peer import PeerID
from tests.node.test_links import MemoryStream

PEERS = [PeerID(bytes([n]) * 32) for n in range(1, 8)]
LIMITS = CircuitLimits(
    places_max=3, place_s=100.0, circuits_max=4, circuits_per_source_max=2, circuits_per_target_max=2
)


def pipe() -> tuple[MemoryStream, MemoryStream]:
    """Both ends of a stream."""
    (to_b, at_b), (to_a, at_a) = memory_stream_one_way_pair(), memory_stream_one_way_pair()
    return MemoryStream(to_b, at_a), MemoryStream(to_a, at_b)


class Circuit:
    """Two ends and the relay between them."""

    def __init__(self, limits: CircuitLimits = LIMITS) -> None:
        self.source, self._near = pipe()
        self.target, self._far = pipe()
        self._limits = limits
        self.carried: int | None = None
        self.done = trio.Event()

    async def run(self) -> None:
        self.carried = await carry(self._near, self._far, self._limits)
        self._near.break_off()
        self._far.break_off()
        self.done.set()


async def read_all(stream: MemoryStream) -> bytes:
    found = b""
    while data := await stream.read(1_000):
        found += data
    return found


async def test_bytes_go_both_ways_and_the_end_of_one_side_ends_it(autojump_clock: MockClock) -> None:
    circuit = Circuit()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(circuit.run)
        await circuit.source.write(b"there" * 1_000)
        await circuit.target.write(b"back")
        assert await circuit.source.read(100) == b"back"
        await circuit.source.finish()
        assert await read_all(circuit.target) == b"there" * 1_000
        await circuit.target.finish()
        await circuit.done.wait()
    assert circuit.carried == 5_004


async def test_a_side_that_never_ends_is_left_after_a_while(autojump_clock: MockClock) -> None:
    circuit = Circuit()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(circuit.run)
        start = trio.current_time()
        await circuit.source.finish()
        await circuit.done.wait()
        assert trio.current_time() - start == pytest.approx(LINGER_S, abs=0.1)


async def test_no_more_bytes_than_agreed_in_both_directions_together(autojump_clock: MockClock) -> None:
    circuit = Circuit(dataclasses.replace(LIMITS, bytes_max=1_000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(circuit.run)
        await circuit.source.write(bytes(600))
        assert await circuit.target.read(1_000) == bytes(600)
        await circuit.target.write(bytes(400))
        assert await circuit.source.read(1_000) == bytes(400)
        await circuit.source.write(b"x")
        await circuit.done.wait()
    assert circuit.carried == 1_000


async def test_a_circuit_ends_with_its_time(autojump_clock: MockClock) -> None:
    circuit = Circuit(dataclasses.replace(LIMITS, duration_s=50.0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(circuit.run)
        await circuit.done.wait()
        assert trio.current_time() == pytest.approx(50.0, abs=LINGER_S)


async def test_a_broken_side_ends_it_too(autojump_clock: MockClock) -> None:
    circuit = Circuit()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(circuit.run)
        circuit.source.break_off()
        await circuit.done.wait()


def test_places_are_few_and_run_out() -> None:
    places = Places(LIMITS)
    for peer in PEERS[:3]:
        assert places.take(peer, 0.0) == LIMITS.place_s
    with pytest.raises(Refused):
        places.take(PEERS[3], 50.0)
    assert places.take(PEERS[0], 60.0) == LIMITS.place_s  # renewed
    assert places.holds(PEERS[1], 99.0)
    assert not places.holds(PEERS[1], 101.0)
    assert not places.holds(PEERS[5], 0.0)
    places.take(PEERS[3], 101.0)
    assert places.holds(PEERS[0], 101.0)
    assert len(places) == 2


def opened(places: Places, *pairs: tuple[int, int]) -> ExitStack:
    """Circuits that stay open until the stack is closed."""
    stack = ExitStack()
    for source, target in pairs:
        stack.enter_context(places.circuit(PEERS[source], PEERS[target]))
    return stack


def refused(places: Places, source: int, target: int) -> bool:
    try:
        with places.circuit(PEERS[source], PEERS[target]):
            return False
    except Refused:
        return True


def test_circuits_of_one_peer_and_in_all_are_bounded_and_given_back() -> None:
    places = Places(LIMITS)
    with opened(places, (0, 1), (2, 1)):
        assert refused(places, 3, 1)  # as many as lead to one
        with opened(places, (3, 4), (5, 6)):
            assert refused(places, 4, 2)  # as many as there may be
    assert not refused(places, 3, 1)
    with opened(places, (0, 1), (0, 2)):
        assert refused(places, 0, 3)  # as many as one may dial
        assert not refused(places, 3, 0)  # which does not count against who is dialled


def test_no_peer_takes_all_circuits_of_another() -> None:
    places = Places(CircuitLimits())
    stack, taken = ExitStack(), 0
    with stack:
        while not refused(places, 0, 1):
            stack.enter_context(places.circuit(PEERS[0], PEERS[1]))
            taken += 1
        assert taken == CircuitLimits().circuits_per_pair_max
        assert not refused(places, 2, 1)
        assert not refused(places, 0, 2)


@given(st.lists(st.tuples(st.sampled_from(PEERS), st.floats(0, 40)), max_size=60))
def test_never_more_places_than_allowed(takes: list[tuple[PeerID, float]]) -> None:
    places, now_s = Places(LIMITS), 0.0
    for peer, wait_s in takes:
        now_s += wait_s
        try:
            places.take(peer, now_s)
        except Refused:
            assert not places.holds(peer, now_s)
        assert sum(places.holds(each, now_s) for each in PEERS) <= LIMITS.places_max


def test_wall_time_comes_from_the_clock_that_is_handed_in() -> None:
    class Clock:
        def now_us(self) -> int:
            return 5_000_000

        def awake_us(self) -> int:
            return 0

        def wall_offset_us(self) -> int:
            return 1_000_000_000

    assert RelayConfig("serve", clock=Clock()).wall_s() == 1_005


def test_the_limits_are_of_a_size_that_a_link_can_live_with() -> None:
    limits = CircuitLimits()
    assert limits.circuits_per_pair_max <= limits.circuits_per_source_max <= limits.circuits_max
    assert limits.circuits_per_pair_max * 2 <= limits.circuits_per_target_max <= limits.circuits_max
    assert all(value > 0 for value in dataclasses.astuple(limits))
